"""Server halves of the algorithms as Flower Strategies, on one shared round loop."""

from .base import PrimalDualStrategy
from .dp_fedsgd import DPFedSGD
from .dp_iadmm import DPIADMM
from .fed_dyn import FedDyn
from .fed_pdm import FedPDM
from .fed_plt import FedPLT
from .half import ServerHalf
from .history import Round
from .loop import PrivetResult
from .participation import All, Balanced, Fraction, Participation, Probability, Schedule
from .scaffold import Scaffold
from .sparse_uplink import SparseUplink

__all__ = [
    "DPIADMM",
    "All",
    "Balanced",
    "DPFedSGD",
    "FedDyn",
    "FedPDM",
    "FedPLT",
    "Fraction",
    "Participation",
    "PrimalDualStrategy",
    "PrivetResult",
    "Probability",
    "Round",
    "Scaffold",
    "Schedule",
    "ServerHalf",
    "Session",
    "SparseUplink",
]
