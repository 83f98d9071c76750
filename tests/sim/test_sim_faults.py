"""Faults of agents: each leaves one clear line, and the good replies of the round are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from privet.client_apps import client_app
from privet.core import RunError
from privet.problems import BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.strategies import Failure, FailureCode, FedPLT, Schedule
from privet.strategies.fed_plt import Server
from privet.wire import pack
from privet.wire.contract import LONGEST_ABOUT
from support.federations import (
    FaultyGrid,
    app_of,
    logistic_agents,
    lose_reply,
    model,
    position,
    train,
    zeros,
)

ROUNDS = 6


def alter(change: Callable[[Any], None]) -> Callable[[FaultyGrid, Message, int], Message | None]:
    """Return a reaction that delivers normally and then changes the reply's record."""

    def react(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
        reply = grid.normally(message)
        assert reply is not None
        change(reply.content["privet"])
        return reply

    return react


def set_field(name: str, value: Any) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        record["about"] = json.dumps({**json.loads(record["about"]), name: value})

    return change


def not_a_payload(record: Any) -> None:
    record["payload"] = b"PVD1"


def too_large(record: Any) -> None:
    record["payload"] = pack({"x": np.full(4, 1.7e308)})  # finite, but 2 (x - y) is not


def too_long(record: Any) -> None:
    record["about"] = "[" * (LONGEST_ABOUT + 1)


def merely_absent(problems: list[Any], agent: int, number: int) -> np.ndarray:
    """Return the model of a run in which the agent was not asked in that round."""
    names = [str(i) for i in range(len(problems))]
    schedule = Schedule(
        tuple(
            tuple(n for n in names if (n, r) != (str(agent), number)) for r in range(1, ROUNDS + 1)
        )
    )
    return model(train(problems, ROUNDS, participation=schedule)[0])


@pytest.mark.parametrize(
    ("reaction", "reason"),
    [
        (alter(too_large), "not finite, or too large"),
        (alter(too_long), "longer than"),
        (alter(set_field("ledger", 3)), "'ledger' is int"),
        (alter(set_field("protocol", "a\nb\x1b[2J" + 999 * "c")), "a b?[2Jccc"),
        (alter(set_field("version", 99)), "version 99"),
        (alter(set_field("protocol", "fed-avg")), "fed-avg"),
        (alter(set_field("round", 1)), "round 1"),
        (alter(not_a_payload), "payload"),
    ],
)
def test_bad_reply_counts_as_absence(reaction: Any, reason: str) -> None:
    problems = logistic_agents(4)
    grid = FaultyGrid(app_of(problems), 4, {(2, 3): reaction})
    result, _, _ = train(problems, ROUNDS, grid=grid, round_timeout=0.05)
    failed = result.history[2]
    assert list(failed.failures) == ["2"]
    assert reason in failed.failures["2"].text
    assert failed.failures["2"].text.isprintable()
    assert len(failed.failures["2"].text) <= 300
    assert failed.participants == ("0", "1", "3")
    # The agent's next upload starts from the state last accepted: the run is the one in which
    # that agent was merely absent, bit for bit.
    assert np.array_equal(model(result), merely_absent(problems, 2, 3))


def test_two_lost_replies_in_a_row_roll_back_to_the_last_accepted() -> None:
    problems = logistic_agents(3)
    faults = {(1, 2): lose_reply, (1, 3): lose_reply}
    grid = FaultyGrid(app_of(problems), 3, faults)
    result, _, _ = train(problems, ROUNDS, grid=grid, round_timeout=0.05)
    schedule = Schedule((("0", "1", "2"), ("0", "2"), ("0", "2"), *[("0", "1", "2")] * 3))
    absent = model(train(problems, ROUNDS, participation=schedule)[0])
    assert np.array_equal(model(result), absent)


class LateGrid(FaultyGrid):
    """Replies put into ``late`` arrive with the next push, after their round has been closed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.late: dict[str, Message] = {}

    def push_messages(self, messages: Any) -> Any:
        arriving, self.late = self.late, {}
        ids = super().push_messages(messages)
        self._replies.update(arriving)
        return ids


def come_late(grid: FaultyGrid, message: Message, agent: int) -> None:
    assert isinstance(grid, LateGrid)
    reply = grid.normally(message)
    assert reply is not None
    grid.late[message.metadata.message_id] = reply


def test_late_reply_is_never_folded() -> None:
    problems = logistic_agents(3)
    grid = LateGrid(app_of(problems), 3, {(0, 2): come_late})
    result, _, _ = train(problems, ROUNDS, grid=grid, round_timeout=0.05)
    assert result.history[1].failures.keys() == {"0"}
    assert result.history[2].failures == {}
    assert np.array_equal(model(result), merely_absent(problems, 0, 2))


def test_client_that_raises_is_named_and_the_others_go_on() -> None:
    problems = logistic_agents(3)

    class Broken(BinaryLogistic):
        def gradient(self, x: Any, rows: Any = None) -> Any:
            raise ZeroDivisionError("the disk is on fire")

    broken = Broken(problems[1].features, problems[1].labels)
    result, _, _ = train([problems[0], broken, problems[2]], 2)
    assert result.history[0].participants == ("0", "2")
    assert result.history[0].failures == {
        "1": Failure(FailureCode.FAILED, "agent 1: the disk is on fire")
    }


def test_fewer_replies_than_min_agents_end_the_run_with_one_line() -> None:
    problems = logistic_agents(3)
    grid = FaultyGrid(app_of(problems), 3, {(0, 2): lose_reply, (1, 2): lose_reply})
    with pytest.raises(RunError, match=r"round 2: 1 of 3 agents replied, below min-agents = 2: ag"):
        train(problems, ROUNDS, grid=grid, round_timeout=0.05, min_agents=2, patience=0)


def test_too_few_nodes_say_how_many_came_and_what_to_give() -> None:
    problems = logistic_agents(2)
    grid = InlineGrid(app_of(problems), 2)
    with pytest.raises(RunError) as caught:
        train(problems, 1, grid=grid, num_agents=5, wait_timeout=0.2)
    text = str(caught.value)
    assert "5 agents and 2 came" in text
    assert "--federation-config 'num-supernodes=5'" in text


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: BinaryLogistic(np.ones((2, 4)), [1, 3]), "3"),
        (lambda: BinaryLogistic(np.ones((0, 4)), []), "no data"),
    ],
)
def test_agent_with_unusable_data_is_turned_away_by_name(make: Any, reason: str) -> None:
    problems: list[Any] = [*logistic_agents(2), None]
    app = client_app("fed-plt", lambda context: problems[position(context)] or make())
    grid = InlineGrid(app, 3)
    strategy = FedPLT(num_agents=3)
    result = strategy.start(grid, zeros(4), num_rounds=2)
    assert strategy.session is not None
    (why,) = strategy.session.roster.rejected.values()
    assert why.startswith("agent 2: ")
    assert reason in why
    assert result.history[-1].participants == ("0", "1")


def test_nobody_usable_is_one_line() -> None:
    app = client_app("fed-plt", lambda context: BinaryLogistic(np.ones((1, 4)), [7]))
    with pytest.raises(RunError, match="0 agents could be enrolled, below min-agents = 1: agent 0"):
        FedPLT(num_agents=1).start(InlineGrid(app, 1), zeros(4), num_rounds=1)


def test_model_of_another_size_or_precision_is_turned_away() -> None:
    problems = logistic_agents(2)
    strategy = FedPLT(num_agents=2)
    with pytest.raises(RunError, match="has 4 parameters, the server's 7"):
        strategy.start(InlineGrid(app_of(problems), 2), zeros(7), num_rounds=1)
    with pytest.raises(RunError, match="computes in float64, the server in float32"):
        strategy.start(InlineGrid(app_of(problems), 2), zeros(4, "float32"), num_rounds=1)


class NextVersion(Server):
    """A server half that speaks a later version of the protocol."""

    version = 2


def test_agent_of_another_protocol_version_is_turned_away() -> None:
    problems = logistic_agents(2)
    strategy = FedPLT(num_agents=2)
    half = strategy.half
    assert isinstance(half, Server)
    strategy.half = NextVersion(half.agent, half.h)
    with pytest.raises(RunError, match="speaks fed-plt version 1, this run fed-plt version 2"):
        strategy.start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=1)


class HostileGrid(InlineGrid):
    """Agent 1 answers messages of one type with whatever ``change`` makes of its reply."""

    def __init__(self, count: int, kind: str, change: Callable[[Message], None]) -> None:
        problems = logistic_agents(count)
        super().__init__(app_of(problems), count)
        self.kind, self.change = kind, change

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        agent = position(self.contexts[message.metadata.dst_node_id])
        if reply is not None and agent == 1 and message.metadata.message_type == self.kind:
            self.change(reply)
        return reply


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("agent", "1" * 5000, "agent name"),
        ("agent", "ward\nb", "agent name"),
        ("agent", "", "agent name"),
        ("rounds", ["x"], "'rounds'"),
        ("dim", "4", "'dim'"),
        ("dtype", "x" * 5000, "computes in xxx"),
    ],
)
def test_enrolment_that_is_not_one_turns_its_node_away(field: str, value: Any, reason: str) -> None:
    def change(reply: Message) -> None:
        reply.content["privet"][field] = value

    grid = HostileGrid(3, "query.privet", change)
    strategy = FedPLT(num_agents=3)
    result = strategy.start(grid, zeros(4), num_rounds=2)
    assert result.history[-1].participants == ("0", "2")
    assert strategy.session is not None
    (why,) = strategy.session.roster.rejected.values()
    assert reason in why
    assert "node 1001" in why or "agent 1" in why
    assert len(why) < 400


def test_upload_that_no_check_foresees_costs_its_agent_only(monkeypatch: Any) -> None:
    accept = Server.accept

    def strict(self: Any, state: Any, block: Any) -> Any:
        return accept(self, state, block) if block.positions != [1] else block.upload["w"]

    monkeypatch.setattr(Server, "accept", strict)
    result, _, _ = train(logistic_agents(3), 2)
    assert result.history[-1].participants == ("0", "2")
    assert result.history[-1].failures == {
        "1": Failure(FailureCode.DROPPED, "reply cannot be used (KeyError('w'))")
    }


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"x": ConfigRecord({"loss": 1.0})}),
        RecordDict({"metrics": MetricRecord({"loss": 1.0})}),
        RecordDict({"metrics": MetricRecord({"loss": float("nan"), "num-examples": 20})}),
        RecordDict({"metrics": MetricRecord({"loss": 1.0, "num-examples": -60})}),
        RecordDict({"metrics": MetricRecord({"other": [1.0], "num-examples": 20})}),
        RecordDict(),
    ],
)
def test_evaluation_that_cannot_be_averaged_is_left_out(content: RecordDict) -> None:
    def change(reply: Message) -> None:
        reply.content = content

    grid = HostileGrid(3, "evaluate", change)
    result = FedPLT(num_agents=3, fraction_evaluate=1.0).start(grid, zeros(4), num_rounds=1)
    problems = logistic_agents(3)
    expected = np.mean([problems[i].value(model(result)) for i in (0, 2)])
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(expected)
