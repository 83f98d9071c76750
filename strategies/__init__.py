"""Server halves of the algorithms as Flower Strategies, on one shared round loop."""

from .base import PrimalDualStrategy
from .cost import Cost
from .dp_fedsgd import DPFedSGD
from .dp_iadmm import DPIADMM
from .fed_dyn import FedDyn
from .fed_lin import FedLin
from .fed_pd import FedPD
from .fed_pdm import FedPDM
from .fed_plt import FedPLT
from .fed_split import FedSplit
from .five_gcs import FiveGCS
from .gfl import GFL
from .half import ServerHalf
from .history import Round
from .led import LED
from .loop import PrivetResult
from .participation import (
    All,
    Balanced,
    Fraction,
    Participation,
    PerGroup,
    Probability,
    Schedule,
)
from .round import Session
from .scaffold import Scaffold
from .sparse_uplink import SparseUplink
from .tamuna import Tamuna

__all__ = [
    "DPIADMM",
    "GFL",
    "LED",
    "All",
    "Balanced",
    "Cost",
    "DPFedSGD",
    "FedDyn",
    "FedLin",
    "FedPD",
    "FedPDM",
    "FedPLT",
    "FedSplit",
    "FiveGCS",
    "Fraction",
    "Participation",
    "PerGroup",
    "PrimalDualStrategy",
    "PrivetResult",
    "Probability",
    "Round",
    "Scaffold",
    "Schedule",
    "ServerHalf",
    "Session",
    "SparseUplink",
    "Tamuna",
]
