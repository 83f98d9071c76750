"""Observers of a run: when they are called, in which order, and how one ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from privet.rounds.keep.checkpoint import load, read_manifest
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, Observer, Round, Run
from support.federations import app_of, logistic_agents, zeros


class Diary(Observer):
    """Writes down what it is told; ends the run with the round that is asked for."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.lines: list[str] = []

    def on_begin(self, run: Run) -> None:
        self.lines.append(f"begin after {run.session.round}")

    def on_round(self, run: Run, done: Round) -> str | None:
        self.lines.append(f"round {done.round} {run.stopped}".strip())
        return "diary" if done.round == self.last else None

    def on_end(self, run: Run) -> None:
        self.lines.append(f"end by {run.stopped}")


def play(observers: Any = (), rounds: int = 3, **start: Any) -> Any:
    strategy = FedPLT(num_agents=3, **start.pop("strategy", {}))
    grid = InlineGrid(app_of(logistic_agents(3)), 3)
    return strategy.start(grid, zeros(4), num_rounds=rounds, observers=observers, **start)


def test_an_observer_is_told_of_the_beginning_every_round_and_the_end() -> None:
    diary = Diary()
    assert play([diary]).stopped == "rounds"
    assert diary.lines == ["begin after 0", "round 1", "round 2", "round 3 rounds", "end by rounds"]


def test_an_observer_ends_a_run_and_the_result_says_why(tmp_path: Path) -> None:
    diary, path = Diary(last=2), tmp_path / "checkpoint.npz"
    result = play([diary], rounds=9, checkpoint=path, checkpoint_every=0)
    assert (result.stopped, len(result.history)) == ("diary", 2)
    assert diary.lines[-1] == "end by diary"
    saved = load(path)
    assert saved.manifest["round"] == 2
    assert [done.round for done in saved.history] == [1, 2]
    resumed = Diary()
    play([resumed], rounds=3, resume=path)
    assert resumed.lines == ["begin after 2", "round 3 rounds", "end by rounds"]


def test_a_run_that_fails_has_no_end() -> None:
    diary = Diary()

    def full(done: Round, strategy: FedPLT) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        play([full, diary])
    assert diary.lines == ["begin after 0"]


def test_the_order_of_a_round_is_measure_evaluate_checkpoint_observers(tmp_path: Path) -> None:
    order: list[str] = []
    path = tmp_path / "checkpoint.npz"

    def saved() -> int:
        return int(read_manifest(path)["round"]) if path.exists() else -1

    def monitor(number: int, models: Any) -> dict[str, float]:
        order.append(f"measure {number}")
        return {"stationarity": 1.0 / max(number, 1), "extra": 2.0}

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        order.append(f"evaluate {number} {saved()}")
        return None

    def watch(done: Round, strategy: FedPLT) -> None:
        order.append(f"watch {done.round} {saved()} {done.measures['extra']:g}")

    result = play(
        [watch],
        rounds=9,
        strategy={"monitor": monitor},
        evaluate_fn=evaluate,
        checkpoint=path,
        checkpoint_every=0,
        tolerance=0.5,
    )
    assert result.stopped == "tolerance"
    assert order == [
        "measure 0", "evaluate 0 -1",
        "measure 1", "evaluate 1 0", "watch 1 0 2",
        "measure 2", "evaluate 2 0", "watch 2 2 2",
    ]  # fmt: skip


def test_what_is_not_due_is_not_measured_but_the_last_round_is() -> None:
    measured: list[int] = []

    def monitor(number: int, models: Any) -> dict[str, float]:
        measured.append(number)
        return {"loss": 1.0}

    result = play(rounds=5, strategy={"monitor": monitor}, evaluate_every=2)
    assert measured == [0, 2, 4, 5]
    assert [np.isfinite(done.loss) for done in result.history] == [False, True, False, True, True]
