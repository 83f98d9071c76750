"""Secure sums with agents that send what they like, and with rounds that are handed in twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from privet.core import RunError
from privet.strategies import FedPLT
from privet.wire import digest, pack, ring
from support.federations import FaultyGrid, app_of, lose_state, position
from support.masked import COUNT, DIM, Recorder, grid_for, play, recorded, ridge_agents, start_at


def words_of(arrays: dict[str, Any]) -> bytes:
    return ring.encode(
        {name: np.asarray(array, float) for name, array in arrays.items()}, 5
    ).to_bytes()


def claims(size: int) -> bytes:
    """Return ring elements whose header says that there are more than there are."""
    data = words_of({"x": np.zeros(DIM), "distance": 0.0, "members": 1.0})
    body = data[16:].replace(DIM.to_bytes(8, "little"), size.to_bytes(8, "little"), 1)
    return data[:8] + digest(np.frombuffer(body, "u1")).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"PVR1",
        pack({"x": np.zeros(DIM)}),
        words_of({"x": np.zeros(DIM + 1), "distance": 0.0, "members": 1.0}),
        words_of({"x": np.zeros((1, DIM)), "distance": 0.0, "members": 1.0}),
        words_of({"x": np.zeros(DIM), "members": 1.0}),
        words_of({"x": np.zeros(DIM), "distance": 0.0}),
        words_of({"distance": 0.0, "x": np.zeros(DIM), "members": 1.0}),
        words_of({"x": np.zeros(DIM), "distance": 0.0, "members": 1.0, "more": 1.0}),
        claims(DIM + 1),
        claims(2**63),
        claims(0),
        7,
    ],
)
def test_uploads_in_bad_form_cost_their_agent_and_the_one_left_out(forged: Any) -> None:
    def forge(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
        reply = grid.normally(message)
        assert reply is not None
        reply.content["privet"]["payload"] = forged
        return reply

    result, _, _ = recorded("fed-plt", {(2, 2): forge}, rounds=3)
    assert [len(done.participants) for done in result.history] == [5, 3, 5]
    assert "2" in result.history[1].failures


@pytest.mark.parametrize("extra", [1, 2**40, 2**63])
def test_a_count_that_is_wrong_spoils_no_model(extra: int) -> None:
    """The masks are right and the arrays are in good form; only the agents do not add up."""

    def miscounts(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
        reply = grid.normally(message)
        assert reply is not None
        words = ring.from_bytes(reply.content["privet"]["payload"])  # type: ignore[arg-type]
        changed = words.words.copy()
        changed[-1:] += np.uint64(extra)
        reply.content["privet"]["payload"] = ring.Words(words.layout, changed).to_bytes()
        return reply

    with pytest.raises(RunError, match="masks of its group did not cancel"):
        recorded("fed-plt", {(3, 2): miscounts}, rounds=3)


def test_an_agent_that_loses_its_key_each_time_costs_the_others_two_attempts() -> None:
    """It gets one new key a round; asked for ever, it would keep the others from any sum."""

    class Amnesiac(Recorder):
        def deliver(self, message: Message) -> Message | None:
            record = message.content.get("privet")
            agent = position(self.contexts[message.metadata.dst_node_id])
            if agent == 2 and record is not None and record.get("round") == 2:
                return lose_state(self, message, agent)
            return super().deliver(message)

    problems = ridge_agents(8)
    app = app_of(problems, "fed-pdm")
    grid = Amnesiac(app, 8, {})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, rounds=3)
    assert [len(done.participants) for done in result.history] == [8, 6, 8]
    assert "does not hold its key" in result.history[1].failures["2"].text
    asked = {
        m.content["privet"]["attempt"]
        for _, m, _ in grid.seen[8:]
        if "attempt" in m.content["privet"]
    }
    assert asked == {1, 2, 3}


@pytest.mark.parametrize("masked", [False, True])
def test_a_round_is_folded_once(masked: bool) -> None:
    """Whatever drives the rounds may hand in the replies again: the model does not move twice."""
    strategy = FedPLT(num_agents=COUNT, secure_sum=masked)
    grid = grid_for("fed-plt")
    messages = strategy.configure_train(1, start_at(0.3), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    arrays, _ = strategy.aggregate_train(1, replies)
    assert strategy.session is not None
    for again in (replies, [*replies, *replies], []):
        with pytest.raises(RunError, match="round 1: its uploads have been combined already"):
            strategy.aggregate_train(1, again)
    state = strategy.half.models(strategy.session.state)["last"]
    assert arrays is not None
    assert np.array_equal(arrays["x"].numpy(), state)
    assert len(strategy.session.history) == 1


@pytest.mark.parametrize("masked", [False, True])
def test_replies_that_come_twice_or_late_are_added_once(masked: bool) -> None:
    models = []
    for twice in (False, True):
        strategy = FedPLT(num_agents=COUNT, secure_sum=masked)
        grid = grid_for("fed-plt")
        late: list[Message] = []
        arrays: Any = start_at(0.3)
        for number in (1, 2):
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages))
            arrays, _ = strategy.aggregate_train(
                number, [*late, *replies, *replies] if twice else replies
            )
            late = replies
        models.append(arrays["x"].numpy())
    assert np.array_equal(*models)
