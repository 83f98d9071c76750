"""Asynchronous runs by the clock: replies that come late, as errors, expired, or never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.problems.reference import minimize
from privet.rounds.keep.checkpoint import load
from privet.rounds.roster import EXCLUSION
from privet.strategies import FailureCode, FedPLT
from privet.testing import logistic_federation
from privet.wire import RECORD, REFUSED
from privet.wire.contract import need_state_record
from support.federations import app_of, model, zeros
from support.late_grid import LateGrid

pytestmark = pytest.mark.usefixtures("clock")

PROBLEMS = logistic_federation()
AGENTS = len(PROBLEMS)
SLOW = "0"
NOISY: dict[str, Any] = {
    "local_solver": "noisy-gd",
    "clip": 1.0,
    "row_norm": 4.0,
    "noise_variance": 1e-2,
}


def seconds(agent: int, number: int) -> float:
    """Return the length of a task: the first agent is four times slower than the others."""
    return 12.0 if str(agent) == SLOW else 3.0 + agent / 10


def fed_plt(**options: Any) -> FedPLT:
    defaults = {"local_epochs": 10, "asynchronous": True, "buffer": 2, "num_agents": AGENTS}
    return FedPLT(**{**defaults, **options})


def play(strategy: FedPLT, grid: LateGrid, rounds: int, **start: Any) -> Any:
    return strategy.start(grid, zeros(4), num_rounds=rounds, log_rounds=False, **start)


def asked(result: Any, name: str) -> list[tuple[int, int]]:
    """Return of an agent's uploads the version that folded them and the one it was sent."""
    return [
        (done.round, done.versions[done.participants.index(name)])
        for done in result.history
        if name in done.participants
    ]


@pytest.fixture(scope="module")
def optimum() -> NDArray[Any]:
    """The minimiser of the sum, found centrally."""
    return minimize(PROBLEMS, tolerance=1e-12).x


def test_uploads_are_folded_as_they_come_and_the_slow_hold_nobody_up(
    optimum: NDArray[Any],
) -> None:
    grid = LateGrid(PROBLEMS, seconds)
    result = play(fed_plt(), grid, 150)
    clocks = [done.clock for done in result.history]
    assert np.all(np.diff(clocks) > 0)
    assert max(np.diff(clocks)) < 5.0  # of tasks that take 3 seconds, where some take 12
    ages = [folded - sent for folded, sent in asked(result, SLOW)]
    assert clocks[-1] / 15.0 < len(ages) <= clocks[-1] / 12.0
    assert min(ages) > 2
    assert not any(done.failures or done.notes for done in result.history)
    assert np.linalg.norm(model(result) - optimum) < 1e-4 * np.linalg.norm(optimum)


def test_max_delay_waits_for_the_slow_and_no_longer_than_the_timeout() -> None:
    def lengths(**options: Any) -> float:
        result = play(fed_plt(max_delay=3, **options), LateGrid(PROBLEMS, seconds), 30)
        return float(max(np.diff([0.0, *(done.clock for done in result.history)])))

    assert 5.0 < lengths() < 13.0
    assert lengths(round_timeout=8.0) < 5.0


def test_errors_cost_their_own_task_and_withdrawn_uploads_are_dropped(
    optimum: NDArray[Any],
) -> None:
    """Agent 1 sleeps through its second task, agent 2 refuses one, the app of agent 3 dies."""

    def sleeps(agent: int, number: int) -> float:
        return 40.0 if (agent, number) == (1, 2) else 3.0 + agent / 10

    errors = {(2, 3): Error(REFUSED, "agent 2: no"), (3, 2): Error(8, "killed")}
    grid = LateGrid(PROBLEMS, sleeps, lambda *task: errors.get(task))
    result = play(fed_plt(round_timeout=20.0), grid, 150)
    failures = {name: failure for done in result.history for name, failure in done.failures.items()}
    assert {name: failure.code for name, failure in failures.items()} == {
        "1": FailureCode.LATE,
        "2": FailureCode.REFUSED,
        "3": FailureCode.LOST,
    }
    late = [done for done in result.history if "1" in done.failures]
    assert 20.0 <= late[0].clock - 3.1 < 24.0  # when the next version ends after its withdrawal
    # The node works off the withdrawn task first, and its upload is dropped when it comes; the
    # next task began late and may be withdrawn as well.
    assert len(late) <= 2
    back = next(folded for folded, _ in asked(result, "1") if folded > late[0].round)
    assert 46.0 < result.history[back - 1].clock < 55.0
    assert np.linalg.norm(model(result) - optimum) < 1e-4 * np.linalg.norm(optimum)
    assert grid.pulls < 20 * len(result.history)  # it waits, and does not look all the time


def test_an_expired_message_ends_its_task_at_once() -> None:
    """As of a SuperLink that was started anew and has lost its messages."""
    grid = LateGrid(PROBLEMS, seconds)

    def lose(done: Any, _: Any) -> None:
        if done.round == 2:
            for key, one in grid.out.items():
                grid.out[key] = one._replace(reply=None, expires=0.0)

    result = play(fed_plt(buffer=1), grid, 60, observers=[lose])
    lost = [done for done in result.history if done.failures]
    assert len(lost) == 1
    assert lost[0].clock < 10.0
    assert set(asked(result, "1")[-1]) & set(range(50, 61))
    assert grid.pulls < 1000


def test_an_agent_that_lost_its_state_is_sent_it_with_the_present_model(
    optimum: NDArray[Any],
) -> None:
    grid = LateGrid(PROBLEMS, seconds)

    def lose(done: Any, _: Any) -> None:
        if done.round == 3:
            for context in grid.inner.contexts.values():
                context.state = RecordDict()

    result = play(fed_plt(), grid, 150, observers=[lose])
    notes = [note for done in result.history for note in done.notes]
    assert len(notes) == AGENTS
    assert all("was sent its state of round" in note for note in notes)
    assert not any(done.failures for done in result.history)
    assert np.linalg.norm(model(result) - optimum) < 1e-4 * np.linalg.norm(optimum)


def test_an_agent_that_always_asks_for_its_state_holds_nobody_up() -> None:
    honest = app_of(PROBLEMS)

    def app(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            return Message(RecordDict({RECORD: need_state_record("1")}), reply_to=message)
        reply: Message = honest(message, context)
        return reply

    grid = LateGrid(PROBLEMS, seconds, app=app)
    result = play(fed_plt(buffer=5, round_timeout=50.0), grid, 4)
    assert all("1" not in done.participants for done in result.history)
    assert grid.asked[1] <= 2 * len(result.history)
    assert any("does not hold its state" in done.failures["1"].text for done in result.history[:1])


def test_a_node_that_is_killed_and_comes_back_goes_on_with_its_state(
    optimum: NDArray[Any],
) -> None:
    grid = LateGrid(PROBLEMS, seconds)
    hit: list[str] = []

    def break_things(done: Any, strategy: Any) -> None:
        if done.round == 14:
            hit.append(max(strategy.session.tasks))
            grid.kill(int(hit[0]))
        if done.round == 30:
            grid.start_again(int(hit[0]))

    strategy = fed_plt(recover_by_name="yes")
    result = play(strategy, grid, 150, observers=[break_things])
    (lost,) = [done for done in result.history if done.failures]
    assert lost.round == 15
    assert {name: why.code for name, why in lost.failures.items()} == {hit[0]: FailureCode.LOST}
    notes = [note for done in result.history for note in done.notes]
    assert [note.split(" of round")[0] for note in notes] == [f"agent {hit[0]} was sent its state"]
    assert not {folded for folded, _ in asked(result, hit[0])} & set(range(15, 31))
    assert np.linalg.norm(model(result) - optimum) < 1e-4 * np.linalg.norm(optimum)


def test_a_run_with_nobody_left_waits_as_long_as_it_has_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 0.001)

    class Away(LateGrid):
        """All nodes are gone from one look at the grid on, for some looks."""

        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            if self.looks == 12:
                for agent in range(AGENTS):
                    self.kill(agent)
            if self.looks == 18:
                for agent in range(AGENTS):
                    self.start_again(agent)
            return sorted(self.online)

    grid = Away(PROBLEMS, seconds)
    result = play(fed_plt(recover_by_name="yes", patience=600.0), grid, 30)
    assert len(result.history) == 30
    assert grid.looks > 18
    tried = [note for done in result.history for note in done.notes if note.startswith("tried")]
    assert len(tried) == 1


@pytest.mark.parametrize("victim", [None, 1])
def test_every_task_of_a_private_run_is_charged_folded_or_not(victim: int | None) -> None:
    def sleeps(agent: int, number: int) -> float:
        return 40.0 if (agent, number) == (victim, 2) else seconds(agent, number)

    grid = LateGrid(PROBLEMS, sleeps)
    strategy = fed_plt(max_uploads=4, round_timeout=35.0, **NOISY)
    result = play(strategy, grid, 4)
    spent = {
        name: sum(times for _, times in ledger.entries)
        for name, ledger in result.privacy.agents.items()
    }
    assert spent == {str(agent): count for agent, count in grid.computed.items()}
    assert sum(spent.values()) > sum(len(done.participants) for done in result.history)


def test_the_upload_of_an_agent_that_was_excluded_meanwhile_is_dropped_and_charged() -> None:
    strategy, grid = fed_plt(max_uploads=12, max_delay=3, **NOISY), LateGrid(PROBLEMS, seconds)

    def exclude(done: Any, _: Any) -> None:
        strategy.run.session.roster.excluded = frozenset(SLOW if 2 <= done.round < 6 else "")

    result = play(strategy, grid, 10, observers=[exclude])
    assert {done.round: dict(done.failures) for done in result.history if done.failures} == {
        3: {SLOW: EXCLUSION}
    }
    assert max(np.diff([done.clock for done in result.history[:6]])) < 4.0  # nobody waits for it
    assert [sent for _, sent in asked(result, SLOW)] == [7]
    spent = {
        name: sum(times for _, times in ledger.entries)
        for name, ledger in result.privacy.agents.items()
    }
    assert spent == {str(agent): count for agent, count in grid.computed.items()}


def test_a_resume_charges_what_was_out_as_lost_and_sends_it_anew(tmp_path: Path) -> None:
    def private(**more: Any) -> FedPLT:
        return fed_plt(max_uploads=9, recover_by_name="yes", **NOISY, **more)

    first = LateGrid(PROBLEMS, seconds)
    file = tmp_path / "checkpoint.npz"
    play(private(), first, 5, checkpoint=file)
    saved = load(tmp_path)
    out = {entry["agent"]: entry["version"] for entry in saved.manifest["tasks"]}
    assert SLOW in out
    second = LateGrid(PROBLEMS, seconds)  # the nodes of the new run begin without a state
    result = play(private(), second, 12, resume=saved, checkpoint=file)
    assert [done.round for done in result.history] == list(range(1, 13))
    assert set(second.asked) == set(range(AGENTS))
    spent = {
        name: sum(times for _, times in ledger.entries)
        for name, ledger in result.privacy.agents.items()
    }
    computed = {str(n): first.computed[n] + second.computed[n] for n in range(AGENTS)}
    assert spent == computed
    assert {sent > 5 for folded, sent in asked(result, SLOW) if folded > 5} == {True}


def test_speeds_are_of_simulated_agents_alone() -> None:
    with pytest.raises(ConfigError, match="speeds = equal: of agents that privet run simulates"):
        play(fed_plt(speeds="equal"), LateGrid(PROBLEMS, seconds), 1)
