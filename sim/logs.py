"""Logging levels and formats of the commands."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


def quiet() -> None:
    """Show warnings and errors only."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


def plain() -> None:
    """Show this library's lines without Flower's prefixes, and Flower's warnings."""
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.WARNING)
    library_log = logging.getLogger("flwr.privet")
    library_log.setLevel(logging.INFO)
    library_log.propagate = False
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    library_log.handlers = [handler]


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now: a progress bar takes its place, to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
