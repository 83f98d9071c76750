"""Asynchronous runs in which agents fail, lie, leave, or have had all their tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.core import RunError
from privet.core.errors import FruitlessError
from privet.core.exits import Exit, exit_code
from privet.kernel import AgentLedger
from privet.problems import L2, BinaryLogistic
from privet.rounds.collect.outcome import TooFewError
from privet.rounds.exchange import Reply
from privet.rounds.keep.checkpoint import load
from privet.rounds.stop import Stop
from privet.rounds.task import Task, restored, saved
from privet.sim.inline import app_of, grid_of
from privet.strategies import FedPLT
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


@pytest.mark.parametrize("speeds", ["", "stragglers"])
def test_rounds_that_fold_late_replies_end_once_nobody_is_left_to_send_one(speeds: str) -> None:
    """As the rounds of other runs do; agents that are still at work are waited for."""
    grid = grid_of("fed-plt", PROBLEMS)
    rounds: list[int] = []

    def leave(done: Any, _: Any) -> None:
        rounds.append(len(done.participants))
        if done.round == 3:
            grid.online = set()

    late = {"late_replies": "fold", "round_timeout": 40.0, "speeds": speeds}
    with pytest.raises(TooFewError, match="0 of 6 agents replied, below min-agents = 1"):
        play(FedPLT(**late, min_agents=1, patience=0.0), 100, grid, observers=[leave])
    assert rounds == ([5, 5, 5, 0, 1] if speeds else [6, 6, 6])


def private(**more: Any) -> tuple[FedPLT, Any]:
    """Return a strategy whose agents have at most 4 tasks, of which agent 0's are slow."""
    rng = np.random.default_rng(1)
    problems = []
    for _ in range(3):
        rows = rng.standard_normal((20, 4))
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        problems.append(BinaryLogistic(rows, np.sign(rows[:, 0]), regularizer=L2(0.5)))
    how: dict[str, Any] = {"asynchronous": True, "buffer": 1, "max_uploads": 4, **more}
    strategy = FedPLT(local_solver="noisy-gd", clip=1.0, row_norm=1.0, target_epsilon=2.0, **how)
    return strategy, grid_of("fed-plt", problems, engine="inline")


def spent(result: Any) -> dict[str, int]:
    return {
        name: sum(times for _, times in ledger.entries)
        for name, ledger in result.privacy.agents.items()
    }


def test_a_run_whose_last_task_is_lost_ends_and_has_charged_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 1e-3)
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,500\n1,10\n2,10\n")
    strategy, grid = private(speeds=str(trace), round_timeout=100.0)
    result = play(strategy, 1000, grid)
    assert result.stopped == Stop.UPLOADS
    assert spent(result) == {"0": 1, "1": 4, "2": 4}
    assert "0" not in {name for done in result.history for name in done.participants}


WAYS: dict[str, dict[str, Any]] = {
    "asynchronous": {"buffer": 2, "max_uploads": 40},
    "late-replies": {
        "asynchronous": False,
        "buffer": 0,
        "max_uploads": 0,
        "late_replies": "fold",
        "round_timeout": 10.0,
    },
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_the_task_of_an_agent_that_is_excluded_is_withdrawn_and_charged(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """Agent 0's first task would end in round 4, and its second one does in round 10."""
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,35\n1,10\n2,10\n")
    strategy, grid = private(speeds=str(trace), **how)
    idle = []

    def exclude(done: Any, _: Any) -> None:
        session = strategy.run.session
        if done.round in (2, 6):
            session.roster.excluded = frozenset("0" if done.round == 2 else "")
        if "0" not in session.tasks:
            idle.append(done.round)

    result = play(strategy, 10, grid, observers=[exclude])
    third = result.history[2].failures["0"]
    assert (third.code, third.text) == ("excluded", "excluded by the operator")
    assert [done.clock for done in result.history] == [10.0 * n for n in range(1, 11)]
    assert idle == [3, 4, 5, 6, 10]
    folded = [(done.round, done.versions[0]) for done in result.history if "0" in done.participants]
    assert folded == [(10, 7)]
    assert spent(result) == {"0": 2, "1": 10, "2": 10}


@pytest.mark.parametrize("why", ["excluded", "late"])
def test_a_task_that_is_withdrawn_after_a_resume_is_charged_once(why: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,85\n1,10\n2,10\n")
    how = {"speeds": str(trace), "buffer": 2, "max_uploads": 40, "round_timeout": 50.0}
    strategy, grid = private(**how)
    file = tmp_path / "checkpoint.npz"
    play(strategy, 2, grid, checkpoint=file)
    strategy, grid = private(**how)

    def exclude(done: Any, _: Any) -> None:
        strategy.run.session.roster.excluded = frozenset("0" if why == "excluded" else "")

    result = play(strategy, 5, grid, resume=load(tmp_path), checkpoint=file, observers=[exclude])
    codes = {done.round: done.failures["0"].code for done in result.history if done.failures}
    assert codes == {4 if why == "excluded" else 5: why}
    assert spent(result) == {"0": 1, "1": 5, "2": 5}


def test_a_run_ends_when_all_but_excluded_agents_have_had_their_tasks() -> None:
    strategy, grid = private(speeds="equal", patience=0.0)

    def exclude(done: Any, _: Any) -> None:
        strategy.run.session.roster.excluded = frozenset("0")

    result = play(strategy, 1000, grid, observers=[exclude])
    assert result.stopped == Stop.UPLOADS
    assert spent(result) == {"0": 1, "1": 4, "2": 4}


def test_tasks_of_a_server_that_was_killed_count_for_the_cap(tmp_path: Path) -> None:
    """Those that were begun after its last checkpoint as well: the target is never passed."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    folder.mkdir()

    def kill(done: Any, _: Any) -> None:
        if done.round == 5:
            shutil.copytree(folder, copy)

    strategy, grid = private(speeds="equal")
    play(
        strategy,
        6,
        grid,
        checkpoint=folder / "checkpoint.npz",
        checkpoint_every=3,
        observers=[kill],
    )
    killed = load(copy)
    lost = [name for request in killed.requests for name in request.names]
    assert lost
    strategy, grid = private(speeds="equal")
    result = play(strategy, 1000, grid, resume=killed, checkpoint=copy / "checkpoint.npz")
    assert result.stopped == Stop.UPLOADS
    assert spent(result) == {"0": 4, "1": 4, "2": 4}
    assert result.privacy.epsilon <= 2.0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"speeds": "stragglers"}, "speeds lognormal -> stragglers"),
        ({"buffer": 1}, "buffer 2 -> 1"),
        ({"asynchronous": False, "buffer": 0}, "asynchronous true -> false"),
    ],
)
def test_a_resume_with_other_speeds_or_another_buffer_is_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    before = {"asynchronous": True, "buffer": 2, "speeds": "lognormal"}
    play(FedPLT(**before), 3, checkpoint=tmp_path / "checkpoint.npz", checkpoint_every=0)
    with pytest.raises(RunError, match=what):
        play(FedPLT(**{**before, **changes}), 6, resume=load(tmp_path))


@pytest.mark.parametrize("leaves", [3, 25])
def test_the_task_of_a_node_whose_place_is_taken_is_withdrawn(leaves: int, tmp_path: Path) -> None:
    """Its upload is not folded for the node that starts from scratch, which is asked at once."""
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,100\n" + "".join(f"{i},10\n" for i in range(1, 6)))
    nodes = [*NODES, {"partition-id": 0, "num-partitions": 6}]
    grid = WatchedGrid(app_of("fed-plt", PROBLEMS), nodes)
    first, *others, _ = everybody = sorted(grid.online)
    grid.online = {first, *others}

    def replace(done: Any, _: Any) -> None:
        if done.round == leaves:
            grid.online = set(everybody) - {first}

    how = {"speeds": str(trace), "relaxation": 0.5, "recover_by_name": "no"}
    strategy = FedPLT(asynchronous=True, buffer=5, **how)
    result = play(strategy, leaves + 12, grid, observers=[replace])
    assert not any(done.failures for done in result.history)
    after = [done for done in result.history if "0" in done.participants][-1]
    assert after.versions[0] == leaves + 1  # sent to the new node, a hundred seconds before
    assert after.round == leaves + 10


def test_a_checkpoint_holds_what_each_task_was_sent() -> None:
    """A version that is tried again may send another model, after a newcomer."""
    reply = Reply(None, "not connected", 5)
    tasks = {
        name: Task(3, {"y": np.full(2, value)}, 0.0, 1.0, reply=reply)
        for name, value in (("0", 1.0), ("1", 2.0))
    }
    found = restored(*saved(tasks, "fed-plt", 1))
    assert [task.sent["y"].tolist() for task in found.values()] == [[1.0, 1.0], [2.0, 2.0]]


def charged(strategy: FedPLT) -> dict[str, int]:
    """Return by agent the releases that the run's account holds."""
    agents = strategy.run.session.roster.agents
    return {
        name: sum(times for _, times in AgentLedger.joined(agent.accounts).entries)
        for name, agent in agents.items()
    }


@pytest.mark.parametrize(
    "how",
    [
        {"max_uploads": 30},
        {"max_uploads": 1},
        {"asynchronous": False, "buffer": 0, "max_uploads": 0},
    ],
    ids=["asynchronous", "one-upload", "rounds"],
)
def test_a_private_run_whose_tasks_outlast_the_timeout_spends_one_of_each(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """However much patience there is; the line names the timeout and how long a task takes."""
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,35\n1,12.5\n2,10.25\n")
    strategy, grid = private(speeds=str(trace), round_timeout=2.0, patience=1e6, **how)
    line = r"round-timeout = 2 is shorter than a task, of which the quickest took 10\.25 s"
    with pytest.raises(FruitlessError, match=line):
        play(strategy, 1000, grid)
    assert charged(strategy) == {"0": 1, "1": 1, "2": 1}
    assert strategy.run.session.history == []


def test_a_private_run_that_folded_before_fails_as_one_that_may_be_repeated(
    tmp_path: Path,
) -> None:
    """From their second tasks on all agents are too slow."""
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,1\n0,90\n1,1\n1,90\n2,1\n2,90\n")
    strategy, grid = private(speeds=str(trace), round_timeout=5.0, buffer=3, max_uploads=9)
    with pytest.raises(TooFewError, match="round-timeout = 5 is shorter than a task") as failed:
        play(strategy, 1000, grid)
    assert exit_code(failed.value) == Exit.RETRY
    assert charged(strategy) == {"0": 2, "1": 2, "2": 2}


def test_a_plain_run_is_tried_again_for_as_long_as_it_has_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is charged there: the second tasks are in time."""
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 1e-3)
    trace = tmp_path / "trace.csv"
    lines = [f"{agent},90\n{agent},1\n" for agent in range(len(PROBLEMS))]
    trace.write_text("agent,seconds\n" + "".join(lines))
    strategy = FedPLT(asynchronous=True, buffer=2, speeds=str(trace), round_timeout=5.0)
    result = play(strategy, 1)
    assert len(result.history[0].participants) == 2


def test_the_last_agent_is_asked_again_if_it_was_folded_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have had their tasks when its second one is lost; it has two more."""
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 1e-3)
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,50\n0,500\n0,50\n0,50\n1,10\n2,10\n")
    strategy, grid = private(speeds=str(trace), round_timeout=100.0)
    result = play(strategy, 1000, grid)
    assert result.stopped == Stop.UPLOADS
    assert spent(result) == {"0": 4, "1": 4, "2": 4}
    folded = [name for done in result.history for name in done.participants]
    assert {name: folded.count(name) for name in "012"} == {"0": 3, "1": 4, "2": 4}
