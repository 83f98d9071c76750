"""Asynchronous runs in which agents fail, lie, leave, or have had all their tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.sim.inline import app_of, grid_of
from privet.strategies import FedPLT
from privet.strategies.run.outcome import TooFewError
from privet.strategies.run.stop import Stop
from privet.testing import logistic_federation
from privet.testing.absences import upload
from privet.testing.grids import Fate, WatchedCohort, WatchedGrid, disconnect

PROBLEMS = logistic_federation()
START = ArrayRecord({"x": Array(np.zeros(4))})
NODES = [{"partition-id": i, "num-partitions": len(PROBLEMS)} for i in range(len(PROBLEMS))]


def play(strategy: FedPLT, rounds: int, grid: Any = None, **start: Any) -> Any:
    grid = grid or grid_of("fed-plt", PROBLEMS)
    return strategy.start(grid, START, num_rounds=rounds, log_rounds=False, **start)


HOSTILE = {
    "away": disconnect,
    "of another shape": upload(lambda x: np.append(x, x[:1])),
    "not a number": upload(lambda x: x * np.nan),
    "of another digest": upload(lambda x: x + 1e-3),
}


@pytest.mark.parametrize("engine", [WatchedGrid, WatchedCohort])
@pytest.mark.parametrize("fate", HOSTILE.values(), ids=HOSTILE)
def test_an_agent_that_always_fails_takes_no_place_in_a_version(fate: Fate, engine: Any) -> None:
    """Its uploads are dropped at once, and the version waits for another."""
    fates = {("2", version): fate for version in range(1, 40)}
    grid = engine(app_of("fed-plt", PROBLEMS), NODES, fates)
    result = play(FedPLT(asynchronous=True, buffer=2, patience=0.0, relaxation=0.5), 12, grid)
    assert [len(done.participants) for done in result.history] == [2] * 12
    failed = [done for done in result.history if done.failures]
    assert len(failed) > 1
    assert all(list(done.failures) == ["2"] for done in failed)


def test_agents_that_have_had_all_tasks_count_for_min_agents() -> None:
    strategy = FedPLT(
        asynchronous=True, buffer=2, speeds="stragglers", max_uploads=3, min_agents=6, patience=0.0
    )
    assert play(strategy, 100).stopped == Stop.UPLOADS


def test_rounds_that_drop_late_replies_need_min_agents() -> None:
    late = {"speeds": "stragglers", "slow_share": 0.5, "round_timeout": 40.0, "patience": 0.0}
    assert len(play(FedPLT(**late, min_agents=3), 2).history) == 2
    with pytest.raises(TooFewError, match="3 of 6 agents replied, below min-agents = 4"):
        play(FedPLT(**late, min_agents=4), 2)


def test_a_run_that_nobody_can_go_on_with_ends() -> None:
    """One agent is gone for good, all others have had their tasks."""
    grid = grid_of("fed-plt", PROBLEMS)

    def leave(done: Any, _: Any) -> None:
        if done.round == 3:
            grid.online = set(sorted(grid.online)[1:])

    strategy = FedPLT(asynchronous=True, buffer=2, max_uploads=4, patience=0.0)
    with pytest.raises(TooFewError):
        play(strategy, 1000, grid, observers=[leave])
