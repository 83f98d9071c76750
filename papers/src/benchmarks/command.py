"""The whole ``privet run`` beside the bare loop of its engine, in one process and in turns.

The bare loop plays the rounds of the command on the cohort engine, and nothing else: no data are
read, nobody enrols, nothing is evaluated, written or drawn. The command's start-up is what it does
before its first round, which the bare loop has behind it: it makes the data, enrols the agents and
evaluates the start. What is imported at the first use is in neither: a small run that is not timed
goes before.
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

from flwr.serverapp import Grid

from privet.data import federation_from_config
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.observers import Checkpoints
from privet.rounds.session import Round
from privet.server_apps import read_config
from privet.server_apps.build import build_strategy, starting_model
from privet.sim.inline import grid_of, run_inline
from privet.sim.logs import quiet

from .figure import Figure, Show, undisturbed

AGENTS, ROUNDS, TURNS = 5000, 20, 3
COMMAND_GOAL, CHECKPOINT_GOAL = 2.0, 0.1


def bench_command(show: Show, *, quick: bool = False) -> None:
    """Compare processor times, of pairs that follow each other."""
    quiet()
    agents, rounds = (AGENTS // 5, ROUNDS // 4) if quick else (AGENTS, ROUNDS)
    bare: list[float] = []
    starts: list[float] = []
    whole: list[float] = []
    written: list[float] = []
    with (
        TemporaryDirectory(prefix="privet-bench-") as folder,
        _timed_checkpoints() as seconds,
        _noted_rounds() as rounds_begun,
    ):
        common = {"dataset": "synthetic", "num-server-rounds": rounds, "output-dir": folder}
        run_inline({**common, "num-agents": 20}, "first", engine="cohort")
        for turn in range(1 if quick else TURNS):
            # Of other data in every turn, as those of the last are still there.
            raw = {**common, "num-agents": agents, "data-seed": turn + 1}
            bare.append(_processor_seconds(_bare_loop({**raw, "data-seed": turn + 101}))[1])
            seconds.clear()
            rounds_begun.clear()
            command = partial(run_inline, raw, f"run-{turn}", engine="cohort")
            begun, taken = _processor_seconds(command)
            whole.append(taken)
            starts.append(rounds_begun[0] - begun)
            written.append(sum(seconds))
    case = f"privet run, {agents} agents, d 5, {rounds} rounds"
    show(Figure("engine", case, "bare loop, seconds", min(bare)))
    show(Figure("engine", case, "whole command, seconds", min(whole)))
    show(Figure("engine", case, "  its start-up, seconds", min(starts)))
    ratio = median(w / b for w, b in zip(whole, bare, strict=True))
    show(Figure("engine", case, "command / bare loop", ratio))
    ratio = median((w - s) / b for w, s, b in zip(whole, starts, bare, strict=True))
    name = "command after start-up / bare loop"
    show(Figure("engine", case, name, ratio, COMMAND_GOAL, at_least=False))
    share = median(w / b for w, b in zip(written, bare, strict=True))
    name = "its checkpoint / a bare round"
    show(Figure("engine", case, name, share, CHECKPOINT_GOAL, at_least=False))


def _processor_seconds(action: Callable[[], Any]) -> tuple[float, float]:
    """Return the processor's clock before an action, and the seconds that it took."""
    gc.collect()
    with undisturbed():
        begin = time.process_time()
        action()
        return begin, time.process_time() - begin


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
def _noted_rounds() -> Iterator[list[float]]:
    """Yield the processor's clock at the beginning of each round."""
    clocks: list[float] = []
    play = PrimalDualStrategy.play_round

    def noted(self: PrimalDualStrategy, grid: Grid, number: int) -> Round:
        clocks.append(time.process_time())
        return play(self, grid, number)

    PrimalDualStrategy.play_round = noted  # type: ignore[method-assign]
    try:
        yield clocks
    finally:
        PrimalDualStrategy.play_round = play  # type: ignore[method-assign]


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
