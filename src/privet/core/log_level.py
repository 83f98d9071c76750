"""A context in which less of the log is shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

SILENT = logging.CRITICAL + 1
"""A level that shows nothing, for searches: settings that diverge are part of them."""


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
