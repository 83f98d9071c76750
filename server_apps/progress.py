"""Progress of a run: a live bar on a terminal, one log line a round elsewhere."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from privet.strategies import PrimalDualStrategy, Round
from privet.strategies.loop import Observer

from .report import format as fmt

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("flwr.privet")


def line(done: Round, total: int) -> str:
    """Return one round as one line."""
    parts = [f"round {done.round}/{total}", f"{len(done.participants)} agents"]
    if not math.isnan(done.accuracy):
        parts.append(f"accuracy {done.accuracy:.4f}")
    if not math.isnan(done.loss):
        parts.append(f"loss {done.loss:.4f}")
    if not math.isnan(done.stationarity):
        parts.append(f"stationarity {done.stationarity:.2e}")
    if math.isfinite(done.epsilon):
        parts.append(f"epsilon {fmt.epsilon(done.epsilon)}")
    if done.failures:
        parts.append(f"{len(done.failures)} failed")
    parts.append(f"{done.seconds:.2f} s")
    return " | ".join(parts)


@contextmanager
def progress(total: int, *, every: int = 1) -> Iterator[Observer]:
    """Give an observer that shows the rounds as they end."""
    if not sys.stderr.isatty():

        def show(done: Round, strategy: PrimalDualStrategy) -> None:
            if done.round % every == 0 or done.round == total:
                log.info("%s", line(done, total))

        yield show
        return
    with _bar() as bar:
        task = bar.add_task("starting", total=total)

        def advance(done: Round, strategy: PrimalDualStrategy) -> None:
            bar.update(task, completed=done.round, description=line(done, total))

        yield advance


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
