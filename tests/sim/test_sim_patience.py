"""A round that too few agents reply in is tried again, for as long as the run has patience."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict

from privet.core import RunError
from privet.kernel import AgentLedger
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from privet.wire import FAILED, REFUSED
from support.federations import FaultyGrid, app_of, logistic_agents, lose_reply, model, train, zeros
from support.masked import recorded

pytestmark = pytest.mark.usefixtures("clock")
ROUNDS = 4
PROBLEMS = logistic_agents(3)
LOOKS = 3
"""How often a run asks a grid for its nodes up to the end of round 1."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: Any) -> None:
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 0.001)


def answers_with(code: int) -> Any:
    def react(grid: FaultyGrid, message: Message, agent: int) -> Message:
        return Message(Error(code, f"agent {agent}: no"), reply_to=message)

    return react


class Counted(FaultyGrid):
    """Counts the training messages by agent and round."""

    def __init__(self, faults: Any) -> None:
        super().__init__(app_of(PROBLEMS), len(PROBLEMS), faults)
        self.count: dict[tuple[int, int], int] = {}

    def deliver(self, message: Message) -> Message | None:
        record = message.content["privet"]
        key = (message.metadata.dst_node_id - 1000, int(record.get("round", 0)))
        self.count[key] = self.count.get(key, 0) + 1
        return super().deliver(message)


def test_a_round_in_which_everybody_was_late_is_tried_again() -> None:
    grid = Counted({(agent, 2): lose_reply for agent in range(3)})
    result, _, _ = train(PROBLEMS, ROUNDS, grid=grid, round_timeout=0.05)
    assert [done.participants for done in result.history] == [("0", "1", "2")] * ROUNDS
    assert np.array_equal(model(result), model(train(PROBLEMS, ROUNDS)[0]))
    (note,) = result.history[1].notes
    assert note.startswith("tried 2 times: too few agents replied")
    assert result.history[1].bytes_down == 2 * result.history[2].bytes_down
    assert all(grid.count[agent, 2] == 2 for agent in range(3))


def test_who_answered_is_not_asked_again_and_its_reply_counts() -> None:
    grid = Counted({(0, 2): lose_reply})
    options = {"min_agents": 3, "round_timeout": 0.05}
    result, _, _ = train(PROBLEMS, ROUNDS, grid=grid, **options)
    assert result.history[1].participants == ("0", "1", "2")
    assert not result.history[1].failures
    assert [grid.count[agent, 2] for agent in range(3)] == [2, 1, 1]
    assert np.array_equal(model(result), model(train(PROBLEMS, ROUNDS)[0]))


class Away(InlineGrid):
    """Nodes are away from some look at the grid on, for some looks of a hundredth of a second."""

    def __init__(self, nodes: set[int], first: int, looks: int) -> None:
        super().__init__(app_of(PROBLEMS), len(PROBLEMS))
        self.nodes, self.away = nodes, range(first, first + looks)
        self.looks = itertools.count()

    def get_node_ids(self) -> Any:
        time.sleep(0.01)
        gone = self.nodes if next(self.looks) in self.away else set[int]()
        self.online = set(self.contexts) - gone
        return super().get_node_ids()


@pytest.mark.parametrize("nodes", [{1000, 1001, 1002}, {1001}])
def test_nodes_that_are_away_for_a_while_are_waited_for(nodes: set[int], caplog: Any) -> None:
    grid = Away(nodes, LOOKS, 5)
    result, _, _ = train(PROBLEMS, ROUNDS, grid=grid, min_agents=3)
    assert np.array_equal(model(result), model(train(PROBLEMS, ROUNDS)[0]))
    assert "below min-agents = 3: agent" in caplog.text
    assert "not connected; tried again in" in caplog.text


@pytest.mark.parametrize(("patience", "tries"), [(0.0, 1), (0.2, 4)])
def test_patience_ends(patience: float, tries: int, caplog: Any) -> None:
    grid = Away({1000, 1001, 1002}, LOOKS, 10**6)
    with pytest.raises(RunError, match="round 2: 0 of 3 agents replied, below min-agents = 1"):
        train(PROBLEMS, ROUNDS, grid=grid, patience=patience)
    assert caplog.text.count("tried again in") >= tries - 1
    assert ("tried again in" in caplog.text) == (patience > 0)


@pytest.mark.parametrize("code", [REFUSED, FAILED, 2])
def test_agents_that_said_no_are_not_waited_for(code: int) -> None:
    grid = Counted({(agent, 2): answers_with(code) for agent in range(3)})
    with pytest.raises(RunError, match="round 2: 0 of 3"):
        train(PROBLEMS, ROUNDS, grid=grid)
    assert grid.count[0, 2] == 1


def test_nodes_that_all_come_back_as_others_begin_the_round_anew() -> None:
    """Two of three nodes restart without a key: the round cannot be ended by those it knows."""

    class Restarts(Counted):
        def deliver(self, message: Message) -> Message | None:
            node, record = message.metadata.dst_node_id, message.content["privet"]
            if record.get("round") == 2 and node in (1001, 1002):
                self.online.discard(node)
                config = self.contexts[node].node_config
                self.contexts[node + 5000] = Context(7, node + 5000, config, RecordDict(), {})
                self.online.add(node + 5000)
                return None
            return super().deliver(message)

    grid = Restarts({})
    result, _, _ = train(
        PROBLEMS, 30, grid=grid, min_agents=3, round_timeout=0.05, recover_by_name="no"
    )
    assert result.history[1].participants == ("0", "1", "2")
    assert sum("starts from scratch" in note for note in result.history[1].notes) == 2
    assert np.allclose(model(result), model(train(PROBLEMS, 30)[0]), atol=1e-2)


def test_without_start_a_round_fails_at_once() -> None:
    """Flower's own loop waits for nobody."""
    grid = Counted({(agent, 1): lose_reply for agent in range(3)})
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3)
    messages = strategy.configure_train(1, zeros(4), None, grid)  # type: ignore[arg-type]
    replies = grid.send_and_receive(messages)
    with pytest.raises(RunError, match="round 1: 0 of 3"):
        strategy.aggregate_train(1, replies)


# ------------------------------------------------------------------ secure sums


def lost_in(round_: int, agents: int) -> dict[tuple[int, int], Any]:
    return {(agent, round_): lose_reply for agent in range(agents)}


def test_a_masked_round_that_failed_is_asked_with_the_next_attempt() -> None:
    result, _, grid = recorded("fed-plt", lost_in(2, 5), rounds=4, round_timeout=0.2)
    attempts = [
        message.content["privet"]["attempt"]
        for agent, message, _ in grid.seen
        if agent == 0 and message.content["privet"]["round"] == 2
    ]
    assert attempts == [1, 2]
    assert [len(done.participants) for done in result.history] == [5] * 4
    undisturbed, _, _ = recorded("fed-plt", {}, rounds=4)
    assert np.array_equal(model(result), model(undisturbed))


PRIVATE: dict[str, Any] = {
    "clip": 1.0,
    "noise_variance": 0.5,
    "local_solver": "noisy-gd",
    "row_norm": 9.0,
}


def test_a_masked_attempt_after_a_lost_reply_is_charged_again() -> None:
    """Of the five, the one whose reply was lost and another are left out of the second attempt."""
    lost = {(4, 2): lose_reply}
    result, strategy, _ = recorded("fed-plt", lost, rounds=3, round_timeout=0.2, **PRIVATE)
    assert [len(done.participants) for done in result.history] == [5, 3, 5]
    for name in result.history[1].participants:
        agent = strategy.session.roster.agents[name]
        assert AgentLedger.from_json(agent.ledger).messages == 4


def test_a_private_masked_round_of_which_all_replies_are_lost_is_not_tried_again() -> None:
    """Each agent was charged for it; the line says that a task may take longer."""
    with pytest.raises(RunError, match="5 agents were charged for tasks without an upload folded"):
        recorded("fed-plt", lost_in(2, 5), rounds=3, round_timeout=0.2, **PRIVATE)
