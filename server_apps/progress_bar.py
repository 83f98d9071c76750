"""Progress of a run: a live bar on a terminal or in a notebook, log lines elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from privet.core import format as fmt
from privet.strategies import Observer, Round, Run

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
    if not math.isnan(done.clock):
        parts.append(f"clock {done.clock:.6g} s")
    return " | ".join(parts)


@contextmanager
def progress(total: int, *, every: int = 1) -> Iterator[Observer]:
    """Give an observer that shows the rounds as they end."""
    if in_notebook():
        yield _Cell(total)
        return
    if not sys.stderr.isatty():
        yield _Lines(total, every)
        return
    with _bar() as bar:
        yield _Advance(bar, total)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_live() -> bool:
    """Return whether `progress` shows a bar, and no lines of the log."""
    return in_notebook() or sys.stderr.isatty()


class _Cell(Observer):
    """A bar in the output of a notebook's cell; it is updated in place."""

    SECONDS = 0.1
    """Between two updates, so that short rounds do not wait for the page."""

    def __init__(self, total: int) -> None:
        from IPython.display import HTML, display

        self.total, self.html, self.shown = total, HTML, time.monotonic()
        self.handle = display(HTML(self._bar(0, "starting")), display_id=True)

    def _bar(self, done: int, text: str) -> str:
        return f'<progress value="{done}" max="{self.total}"></progress> {fmt.text(text)}'

    def on_round(self, run: Run, done: Round) -> str | None:
        now = time.monotonic()
        if run.stopped or done.round == self.total or now - self.shown >= self.SECONDS:
            self.shown = now
            self.handle.update(self.html(self._bar(done.round, brief(done, self.total))))
        return None


class _Lines(Observer):
    def __init__(self, total: int, every: int) -> None:
        self.total, self.every = total, every

    def on_round(self, run: Run, done: Round) -> str | None:
        if run.stopped or done.round % self.every == 0 or done.round == self.total:
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
