"""The whole ``privet run`` beside the bare loop of its engine, in one process and in turns.

The bare loop plays the rounds of the command on the cohort engine, and nothing else: no data are
read, nobody enrols, nothing is evaluated, written or drawn. What is imported at the first use is
start-up: a small run that is not timed goes before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from privet.data import federation_from_config
from privet.server_apps import read_config
from privet.server_apps.build import build_strategy, starting_model
from privet.sim.inline import grid_of, run_inline
from privet.sim.logs import quiet
from privet.strategies.run.observers import Checkpoints

from .figure import Figure, Show, undisturbed

AGENTS, ROUNDS, TURNS = 5000, 20, 3
COMMAND_GOAL, CHECKPOINT_GOAL = 2.0, 0.1


def bench_command(show: Show, *, quick: bool = False) -> None:
    """Compare processor times, of pairs that follow each other."""
    quiet()
    agents, rounds = (AGENTS // 5, ROUNDS // 4) if quick else (AGENTS, ROUNDS)
    bare: list[float] = []
    whole: list[float] = []
    written: list[float] = []
    with TemporaryDirectory(prefix="privet-bench-") as folder, _timed_checkpoints() as seconds:
        common = {"dataset": "synthetic", "num-server-rounds": rounds, "output-dir": folder}
        run_inline({**common, "num-agents": 20}, "first", engine="cohort")
        for turn in range(1 if quick else TURNS):
            # Of other data in every turn, as those of the last are still there.
            raw = {**common, "num-agents": agents, "data-seed": turn + 1}
            bare.append(_processor_seconds(_bare_loop({**raw, "data-seed": turn + 101})))
            seconds.clear()
            command = partial(run_inline, raw, f"run-{turn}", engine="cohort")
            whole.append(_processor_seconds(command))
            written.append(sum(seconds))
    case = f"privet run, {agents} agents, d 5, {rounds} rounds"
    show(Figure("engine", case, "bare loop, seconds", min(bare)))
    show(Figure("engine", case, "whole command, seconds", min(whole)))
    ratio = median(w / b for w, b in zip(whole, bare, strict=True))
    show(Figure("engine", case, "command / bare loop", ratio, COMMAND_GOAL, at_least=False))
    share = median(w / b for w, b in zip(written, bare, strict=True))
    name = "its checkpoint / a bare round"
    show(Figure("engine", case, name, share, CHECKPOINT_GOAL, at_least=False))


def _processor_seconds(action: Callable[[], Any]) -> float:
    gc.collect()
    with undisturbed():
        begin = time.process_time()
        action()
        return time.process_time() - begin


def _bare_loop(raw: dict[str, Any]) -> Callable[[], None]:
    """Return what plays the rounds of a run config, its agents enrolled and their data there."""
    config = read_config(raw)
    problems = federation_from_config(config, config["num-agents"]).problems
    strategy = build_strategy(config)
    grid = grid_of(config["algorithm"], problems, engine="cohort")
    strategy.begin(grid, starting_model(config, problems[0].dim))

    def play() -> None:
        for number in range(1, config["num-server-rounds"] + 1):
            strategy.play_round(grid, number)

    return play


@contextmanager
def _timed_checkpoints() -> Iterator[list[float]]:
    """Yield the processor seconds of every checkpoint, as they are written."""
    seconds: list[float] = []
    write = Checkpoints._write

    def timed(self: Checkpoints, run: Any) -> None:
        begin = time.process_time()
        write(self, run)
        seconds.append(time.process_time() - begin)

    Checkpoints._write = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Checkpoints._write = write  # type: ignore[method-assign]
