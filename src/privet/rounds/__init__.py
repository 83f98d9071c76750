"""A run of any algorithm: its agents, its rounds, how uploads are collected, who observes it."""

from .calibration import Plan, smallest
from .failure import Failure, FailureCode
from .half import HalfState, ServerHalf, mean_row
from .observers import Observer
from .options import RunOptions
from .run import Run
from .session import Round, Session
from .stop import Stop
from .uploads import SPARSE

__all__ = [
    "SPARSE",
    "Failure",
    "FailureCode",
    "HalfState",
    "Observer",
    "Plan",
    "Round",
    "Run",
    "RunOptions",
    "ServerHalf",
    "Session",
    "Stop",
    "mean_row",
    "smallest",
]
