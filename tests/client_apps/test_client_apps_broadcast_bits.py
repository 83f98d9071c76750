"""Coded broadcasts: who is sent which bytes, what both sides go on with, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from privet.server_apps import read_config
from privet.strategies import LED, DPFedSGD, FedPDM, FedPLT
from privet.testing import logistic_federation
from privet.testing.grids import WatchedGrid, lose_reply, lose_state
from privet.wire import ConfigError
from privet.wire.payload import from_payload, to_payload
from privet.wire.value_coding import decode_values
from support.federations import app_of

DIM, AGENTS = 60, 6
PROBLEMS = logistic_federation(AGENTS, examples=30, dim=DIM)
NODES = [{"partition-id": i} for i in range(AGENTS)]


class Listening(WatchedGrid):
    """Keeps the broadcasts as they travel, by agent and round."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heard: dict[tuple[str, int], list[Any]] = {}

    def deliver(self, message: Message) -> Message | None:
        record = message.content.get("privet")
        if record is not None and "payload" in record:
            name = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            array = from_payload(record["payload"])["y"]  # type: ignore[arg-type]
            self.heard.setdefault((name, int(record["round"])), []).append(array)  # type: ignore
        return super().deliver(message)


def app() -> Any:
    return app_of(PROBLEMS)


def play(rounds: int, fates: Any = None, **settings: Any) -> tuple[Any, Listening, FedPLT]:
    grid = Listening(app(), NODES, fates)
    strategy = FedPLT(num_agents=AGENTS, broadcast_bits="8", **settings)
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    return strategy.start(grid, start, num_rounds=rounds, log_rounds=False), grid, strategy


def test_who_took_part_in_the_last_round_hears_the_difference_and_all_hold_the_same() -> None:
    result, grid, _ = play(5, {("1", 2): lose_reply, ("4", 3): lose_state}, round_timeout=5.0)
    assert [sorted(done.failures) for done in result.history] == [[], ["1"], [], [], []]
    last: Any = None
    for number in range(1, 6):
        heard = {name: grid.heard[str(name), number] for name in range(AGENTS)}
        coded = {name for name, some in heard.items() if some[0].dtype == np.uint8}
        full = [some[-1] for some in heard.values() if some[-1].dtype != np.uint8]
        codes = [some[0] for some in heard.values() if some[0].dtype == np.uint8]
        expected = {1: set(), 3: {0, 2, 3, 4, 5}}.get(number, set(range(AGENTS)))
        assert coded == expected
        # Who lost its state is sent it, and the broadcast in full.
        assert len(heard[4]) == (2 if number == 3 else 1)
        decoded = [decode_values(one, DIM, np.dtype("f8"), last) for one in codes]
        assert len({one.tobytes() for one in [*full, *decoded]}) == 1
        last = [*full, *decoded][0].copy()


def test_lost_replies_and_states_move_no_bit_of_the_broadcast() -> None:
    whole, _, _ = play(6)
    hurt, grid, _ = play(6, {("2", 3): lose_state, ("5", 5): lose_state})
    assert whole.arrays["x"].numpy().tobytes() == hurt.arrays["x"].numpy().tobytes()
    assert len(grid.heard["2", 3]) == 2


def test_the_limit_is_that_of_broadcasts_in_full() -> None:
    result, _, strategy = play(60, value_bits="8")
    x = result.arrays["x"].numpy()
    assert np.linalg.norm(sum(problem.gradient(x) for problem in PROBLEMS)) < 1e-12
    assert result.history[-1].bytes_down < AGENTS * (DIM + 70)
    told = strategy.run.session.told
    assert told is not None
    assert told.arrays["y"].tobytes() == strategy.run.session.state.y.tobytes()


def test_a_broadcast_that_is_no_code_costs_nothing_but_that_reply() -> None:
    def spoil(grid: WatchedGrid, message: Message) -> Message | None:
        record: Any = message.content["privet"]
        data = bytearray(from_payload(record["payload"])["y"].tobytes())
        data[4] ^= 1
        message.content["privet"] = type(record)(
            {**record, "payload": to_payload({"y": np.frombuffer(bytes(data), np.uint8)})}
        )
        return grid.deliver_as_is(message)

    result, _, _ = play(3, {("0", 2): spoil})
    assert [sorted(done.failures) for done in result.history] == [[], ["0"], []]
    assert "coded values" in result.history[1].failures["0"]


def test_what_cannot_be_coded_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="broadcast-bits: not with secure-sum"):
        FedPLT(secure_sum=True, broadcast_bits="8")
    with pytest.raises(ConfigError, match="broadcast-bits"):
        read_config({"algorithm": "dp-fedsgd", "secure-sum": True, "broadcast-bits": "8"})
    for name in ("led", "gfl"):
        with pytest.raises(ConfigError, match="broadcast-bits"):
            read_config({"algorithm": name, "broadcast-bits": "8"})
    with pytest.raises(ConfigError, match="broadcast-bits: not with alpha-d"):
        FedPDM(broadcast_bits="8", alpha_d=0.5)
    with pytest.raises(TypeError, match="broadcast_bits"):
        LED(broadcast_bits="8")  # type: ignore[call-arg]
    assert DPFedSGD(broadcast_bits="8").half.agent.broadcast_width == 8
