"""Progress of a run: a live bar on a terminal, one log line a round elsewhere."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from privet.strategies import Observer, Round, Run

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
        parts.append(f"loss {fmt.loss(done.loss)}")
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
        yield _Lines(total, every)
        return
    with _bar() as bar:
        yield _Advance(bar, total)


class _Lines(Observer):
    def __init__(self, total: int, every: int) -> None:
        self.total, self.every = total, every

    def on_round(self, run: Run, done: Round) -> str | None:
        if done.round % self.every == 0 or done.round == self.total:
            log.info("%s", line(done, self.total))
        return None


def brief(done: Round, total: int) -> str:
    """Return what fits beside a bar on 80 columns, the most telling first."""
    parts = [f"{done.round}/{total}"]
    if done.failures:
        parts.append(f"{len(done.failures)} failed")
    if not math.isnan(done.accuracy):
        parts.append(f"acc {done.accuracy:.4f}")
    if not math.isnan(done.loss):
        parts.append(f"loss {done.loss:.4g}")
    if math.isfinite(done.epsilon):
        parts.append(f"ε {fmt.epsilon(done.epsilon)}")
    if not math.isnan(done.stationarity):
        parts.append(f"grad² {done.stationarity:.1e}")
    return " ".join(parts)


class _Advance(Observer):
    def __init__(self, bar: Progress, total: int) -> None:
        self.bar, self.total = bar, total
        self.task = bar.add_task("starting", total=total)

    def on_round(self, run: Run, done: Round) -> str | None:
        self.bar.update(self.task, completed=done.round, description=brief(done, self.total))
        return None


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from privet.core.terminal import console

    return Progress(
        BarColumn(bar_width=14),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1)),
        console=console(stderr=True),
        expand=True,
    )
