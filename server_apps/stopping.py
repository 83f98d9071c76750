"""Ending a run from outside: SIGTERM asks it to end after the round under way."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("flwr.privet")


@contextmanager
def stopped_by_sigterm(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM set an event while the block runs; a second one ends the process.

    SIGINT raises KeyboardInterrupt as ever, and sets the event too: Python drops an exception that
    is raised while it frees an object.

    Python hands signals to its main thread only; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        log.warning("SIGTERM: the run ends after this round")
        stopping.set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, stop)
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, usual)
