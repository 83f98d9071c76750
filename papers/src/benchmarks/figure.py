"""One measured figure, and how times are taken."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a benchmark.

    ``goal`` is a lower bound where ``at_least``, else an upper bound; None where the figure is
    information only.
    """

    bench: str
    case: str
    figure: str
    value: float
    goal: float | None = None
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met, None without one."""
        if self.goal is None:
            return None
        # Of a numpy number it is numpy's truth, which is not JSON.
        return bool(self.value >= self.goal if self.at_least else self.value <= self.goal)

    @property
    def goal_text(self) -> str:
        """The goal with its direction."""
        return f"{'>=' if self.at_least else '<='} {self.goal:g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON line."""
        return {
            "bench": self.bench,
            "case": self.case,
            "figure": self.figure,
            "value": self.value,
            "goal": self.goal,
            "holds": True if self.holds is None else self.holds,
        }


Show = Callable[[Figure], None]


class Benchmark(Protocol):
    """Measures and shows figures as they come."""

    def __call__(self, show: Show, *, quick: bool = False) -> None:
        """Run the benchmark."""
        ...


def best_seconds(action: Callable[[], Any], repeats: int) -> float:
    """Return the shortest of several timings: the one least disturbed by other work."""
    times = []
    for _ in range(repeats):
        with undisturbed():
            begin = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin)
    return min(times)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Python's garbage collector out of a measurement, as ``timeit`` does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
