"""Server halves of the algorithms as Flower Strategies, on one shared round loop."""

from privet.agents.terms import PrivacyTerms
from privet.rounds import Failure, FailureCode, Observer, Round, Run, Session, Stop
from privet.rounds.account import Privacy, PrivetResult
from privet.rounds.flower.arguments import RunArguments
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.half import ServerHalf
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.participation import (
    All,
    Balanced,
    Fraction,
    Participation,
    PerGroup,
    Probability,
    Schedule,
)

from .dp_iadmm import DPIADMM
from .fed_pdm import FedPDM
from .fed_plt import FedPLT
from .gfl import GFL
from .rivals.area import AREA
from .rivals.dp_fedavg import DPFedAvg
from .rivals.dp_fedsgd import DPFedSGD
from .rivals.fed_async import FedAsync
from .rivals.fed_buff import FedBuff
from .rivals.fed_dyn import FedDyn
from .rivals.fed_lin import FedLin
from .rivals.fed_pd import FedPD
from .rivals.fed_split import FedSplit
from .rivals.five_gcs import FiveGCS
from .rivals.led import LED
from .rivals.scaffold import Scaffold
from .rivals.tamuna import Tamuna
from .sparse_uplink import SparseUplink

__all__ = [
    "AREA",
    "DPIADMM",
    "GFL",
    "LED",
    "All",
    "Balanced",
    "Cost",
    "DPFedAvg",
    "DPFedSGD",
    "Failure",
    "FailureCode",
    "FedAsync",
    "FedBuff",
    "FedDyn",
    "FedLin",
    "FedPD",
    "FedPDM",
    "FedPLT",
    "FedSplit",
    "FiveGCS",
    "Fraction",
    "Observer",
    "Participation",
    "PerGroup",
    "PrimalDualStrategy",
    "Privacy",
    "PrivacyTerms",
    "PrivetResult",
    "Probability",
    "Round",
    "Run",
    "RunArguments",
    "Scaffold",
    "Schedule",
    "SearchAxis",
    "ServerHalf",
    "Session",
    "SparseUplink",
    "Stop",
    "Tamuna",
]
