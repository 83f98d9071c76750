"""A run of any algorithm: its agents, its rounds, how uploads are collected, who observes it."""

from .failure import Failure, FailureCode
from .observers import Observer
from .options import RunOptions
from .run import Run
from .session import Round, Session
from .stop import Stop

__all__ = [
    "Failure",
    "FailureCode",
    "Observer",
    "Round",
    "Run",
    "RunOptions",
    "Session",
    "Stop",
]
