"""A resume while agents are away: it waits, says for whom, and begins with those that are there."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from privet.core import ConfigError, RunError
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import Failure, FailureCode, FedPLT
from support.federations import app_of, logistic_agents, train, zeros

PROBLEMS = logistic_agents(3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the checkpoint of two rounds of three agents."""
    train(PROBLEMS, 2, start={"checkpoint": tmp_path / "checkpoint.npz"})
    return tmp_path / "checkpoint.npz"


class Away(InlineGrid):
    """Some nodes are away for the first looks at the grid."""

    def __init__(self, nodes: set[int], looks: int) -> None:
        super().__init__(app_of(PROBLEMS), 3)
        self.nodes, self.looks = nodes, iter(itertools.chain(range(looks), itertools.repeat(looks)))
        self.last = looks

    def get_node_ids(self) -> Any:
        here = next(self.looks) >= self.last
        self.online = set(self.contexts) - (set() if here else self.nodes)
        return super().get_node_ids()


def resumed(grid: InlineGrid, file: Path, **options: Any) -> Any:
    given = {"num_agents": 3, "min_agents": 2, "wait_timeout": 0.3, **options}
    strategy = FedPLT(rho=1.0, local_epochs=3, **given)
    return strategy.start(grid, zeros(4), num_rounds=4, resume=file)


def test_a_resume_goes_on_without_one_that_is_away_and_says_who(
    file: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("privet.rounds.enrol.waiting.REPEAT", 0.1)
    result = resumed(Away({1001}, 10**9), file, patience=0.0)
    assert [done.participants for done in result.history[2:]] == [("0", "2")] * 2
    assert result.history[-1].failures == {"1": Failure(FailureCode.NOT_CONNECTED, "not connected")}
    missing = "2 of 3 nodes are connected; not seen: agents 1"
    assert caplog.messages.count(f"resume: waiting for agents: {missing}") >= 1
    assert f"resume: {missing}; the run goes on without them" in caplog.messages


def test_fewer_than_min_agents_are_waited_for_with_patience(file: Path) -> None:
    result = resumed(Away({1000, 1001}, 6), file, wait_timeout=0.1, patience=600.0)
    assert result.history[-1].participants == ("0", "1", "2")
    line = "below min-agents = 2: start their SuperNodes and resume again"
    with pytest.raises(
        RunError, match=f"1 of 3 nodes are connected; not seen: agents 0, 1, {line}"
    ):
        resumed(Away({1000, 1001}, 10**9), file, wait_timeout=0.1, patience=0.2)


def test_a_wait_for_agents_can_be_stopped(file: Path) -> None:
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3, min_agents=2, wait_timeout=600.0)
    threading.Timer(0.2, strategy.stopping.set).start()
    with pytest.raises(RunError, match="asked to stop while waiting"):
        strategy.start(Away({1000, 1001}, 10**9), zeros(4), num_rounds=4, resume=file)


def test_of_two_nodes_of_one_name_the_checkpoints_has_it(file: Path, caplog: Any) -> None:
    """The impostor's node id sorts first, so it is enrolled first."""
    grid = InlineGrid(app_of(PROBLEMS), 3)
    config = {"agent": "0", "partition-id": 0, "num-partitions": 3}
    grid.contexts[7] = Context(
        run_id=grid.run.run_id, node_id=7, node_config=config, state=RecordDict(), run_config={}
    )
    grid.online.add(7)
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3, recover_by_name="node-key")
    strategy.start(grid, zeros(4), num_rounds=3, resume=file)
    assert strategy.session is not None
    assert strategy.session.roster.agents["0"].node == 1000
    lines = [line for line in caplog.messages if "claims this name" in line]
    assert lines == ["agent 0: node 7 claims this name, which node 1000 holds: turned away"]


def test_a_resume_with_no_round_left_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"num-agents": 3, "features": 3, "output-dir": str(tmp_path)}
    keys |= {"dataset": "synthetic", "examples-per-agent": 20, "num-server-rounds": 4}
    first = run_inline(keys, "first").folder
    for rounds in (3, 4):
        again = keys | {"resume": str(first), "num-server-rounds": rounds}
        with pytest.raises(ConfigError, match=f"num-server-rounds = {rounds}, .* played round 4"):
            run_inline(again, "again")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    # The supervisor's `auto` goes on in place, and writes what a full disk has cut.
    (first / "summary.json").unlink()
    run_inline(keys | {"resume": "auto"}, "later")
    assert json.loads((first / "summary.json").read_text())["rounds"] == 4
