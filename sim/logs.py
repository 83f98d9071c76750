"""How much of Flower's log a command shows."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


def quiet() -> None:
    """Show warnings and errors only."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


def plain() -> None:
    """Show this library's own lines without Flower's prefixes, and Flower's warnings."""
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.WARNING)
    own = logging.getLogger("flwr.privet")
    own.setLevel(logging.INFO)
    own.propagate = False
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    own.handlers = [handler]


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now: a progress bar takes its place, to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
