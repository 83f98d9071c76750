"""Waits for results in other processes, which a run that is to stop cuts short."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

STOP_PATIENCE = 5.0
"""Seconds that a round has left when the run is to stop: then it is given up."""


class Waiting:
    """The waits of one engine.

    Parameters
    ----------
    ray : module
        Connected.
    is_to_stop : callable
        Whether the run is to stop.
    """

    def __init__(self, ray: Any, is_to_stop: Callable[[], bool]) -> None:
        self._ray, self._is_to_stop = ray, is_to_stop
        self._stop_at = math.inf

    def left(self, end: float = math.inf) -> float:
        """Return the seconds until ``end`` on the monotonic clock, fewer if the run is to stop."""
        now = time.monotonic()
        if self._is_to_stop():
            self._stop_at = min(self._stop_at, now + STOP_PATIENCE)
        else:
            self._stop_at = math.inf
        return min(end, self._stop_at) - now

    def wait(
        self, references: list[Any], timeout: float, count: int | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Wait for so many references, by default all; return as `ray.wait` does."""
        count, end = len(references) if count is None else count, time.monotonic() + timeout
        while True:
            left = max(0.0, self.left(end))
            turn = min(left, STOP_PATIENCE / 10)
            arrived, missing = self._ray.wait(references, num_returns=count, timeout=turn)
            if len(arrived) >= count or left <= turn:
                return arrived, missing
