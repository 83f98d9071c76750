"""A run of any algorithm: its agents, its rounds, how uploads are collected, who observes it."""

from .calibration import Plan, smallest
from .failure import Failure, FailureCode
from .half import HalfState, ServerHalf
from .observers import Observer
from .options import RunOptions
from .run import Run
from .session import Round, Session
from .stop import Stop

__all__ = [
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
    "smallest",
]
