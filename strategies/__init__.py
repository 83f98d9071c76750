"""Server halves of the algorithms as Flower Strategies, on one shared round loop."""

from .base import PrimalDualStrategy
from .cost import Cost
from .dp_iadmm import DPIADMM
from .fed_pdm import FedPDM
from .fed_plt import FedPLT
from .gfl import GFL
from .half import ServerHalf
from .history import Round
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
from .rivals.dp_fedsgd import DPFedSGD
from .rivals.fed_dyn import FedDyn
from .rivals.fed_lin import FedLin
from .rivals.fed_pd import FedPD
from .rivals.fed_split import FedSplit
from .rivals.five_gcs import FiveGCS
from .rivals.led import LED
from .rivals.scaffold import Scaffold
from .rivals.tamuna import Tamuna
from .round import Session
from .sparse_uplink import SparseUplink

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
