"""How much of Flower's log a command shows."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

SILENT = logging.CRITICAL + 1
"""A level that shows nothing, for searches: settings that diverge are part of them."""


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


@contextmanager
def hushed(level: int = logging.WARNING) -> Iterator[None]:
    """Show warnings and errors only, or what is given, for as long as the block takes."""
    loggers = [logging.getLogger("flwr"), logging.getLogger("flwr.privet")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(level)
    try:
        yield
    finally:
        for one, restored in zip(loggers, before, strict=True):
            one.setLevel(restored)
