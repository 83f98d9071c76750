"""A run of any algorithm: its agents, its rounds, how uploads are collected, who observes it."""

from .observers import Observer
from .options import RunOptions
from .run import Run
from .session import Round, Session

__all__ = ["Observer", "Round", "Run", "RunOptions", "Session"]
