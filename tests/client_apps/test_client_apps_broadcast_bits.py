"""Coded broadcasts: who is sent which bytes, what both sides go on with, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.client_apps.message_round import MessageRound
from privet.client_apps.value_bits import Coder, heard, is_difference
from privet.core import ConfigError, WireError, algorithm
from privet.kernel.streams import Streams
from privet.problems import L2, BinaryLogistic
from privet.problems.reference import minimize
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPLT
from privet.strategies.rivals import control_variates
from privet.testing import logistic_federation
from privet.testing.grids import WatchedGrid, disconnect, lose_reply, lose_state
from privet.testing.subject import HALF
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
        self.heard: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def deliver(self, message: Message) -> Message | None:
        record = message.content.get("privet")
        if record is not None and "payload" in record:
            name = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            arrays = from_payload(record["payload"])  # type: ignore[arg-type]
            self.heard.setdefault((name, int(record["round"])), []).append(arrays)  # type: ignore
        return super().deliver(message)


def app() -> Any:
    return app_of(PROBLEMS)


def play(rounds: int, fates: Any = None, **settings: Any) -> tuple[Any, Listening, FedPLT]:
    grid = Listening(app(), NODES, fates)
    strategy = FedPLT(num_agents=AGENTS, broadcast_bits="8", **settings)
    start = ArrayRecord({"x": Array(np.full(DIM, 0.01))})
    return strategy.start(grid, start, num_rounds=rounds, log_rounds=False), grid, strategy


def test_agents_hear_the_differences_to_what_they_heard_last_and_all_hold_the_same() -> None:
    fates = {("1", 2): disconnect, ("1", 3): disconnect, ("2", 3): lose_reply, ("4", 3): lose_state}
    result, grid, _ = play(5, fates, round_timeout=5.0)
    assert [sorted(done.failures) for done in result.history] == [[], ["1"], ["1", "2"], [], []]
    held: dict[int, dict[int, Any]] = {name: {} for name in range(AGENTS)}
    for number in range(1, 6):
        found = []
        for name in range(AGENTS):
            failed = str(name) in result.history[number - 1].failures
            for again, arrays in enumerate(grid.heard.get((str(name), number), [])):
                y, last = arrays["y"], held[name].get(max(held[name], default=0))
                # In full in the first round, and for who lost its state and said so.
                assert (y.dtype == np.uint8) == (number > 1 and not again)
                missed = {("1", 3): 1, ("1", 4): 2, ("2", 4): 1}.get((str(name), number), 0)
                assert sorted(set(arrays) - {"y"}) == [f"y.{i}" for i in range(missed)]
                for code in [*(arrays[f"y.{i}"] for i in range(missed)), y]:
                    coded = code.dtype == np.uint8
                    last = decode_values(code, DIM, np.dtype("f8"), last) if coded else code
                found.append(last)
            if not failed:
                held[name][number] = found[-1]
        assert len({one.tobytes() for one in found}) == 1
        assert len(found) == {3: 7}.get(number, AGENTS)


def test_more_differences_than_the_broadcast_in_full_are_not_sent() -> None:
    away = [("3", number) for number in range(2, 20)]
    _, grid, strategy = play(20, dict.fromkeys(away, disconnect), round_timeout=5.0)
    (arrays,) = grid.heard["3", 20]
    assert arrays["y"].dtype == np.float64
    told = strategy.run.session.told
    assert told is not None
    kept = sum(code.nbytes for codes in told.codes.values() for code in codes.values())
    assert 4 * DIM < kept < 8 * DIM


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


STEPS = {"step-size-base": 0.2, "step-size-rule": "constant"}
EXACT: dict[str, dict[str, Any]] = {
    "fed-plt": {},
    "fed-pd": {},
    "led": {},
    "tamuna": {},
    "fed-lin": {},
    "five-gcs": {},
    "scaffold": STEPS,
    "fed-pdm": {**STEPS, "dual": "public", "aggregation": "table"},
}
"""Algorithms whose limit is the centralised optimum, and settings with which it is."""
OPTIMUM = minimize(PROBLEMS, tolerance=1e-14).x


def distance(name: str, rounds: int = 100, **settings: Any) -> float:
    """Return how far a run ends from the centralised optimum."""
    config = {"algorithm": name, "num-agents": AGENTS, "seed": 3, **EXACT[name], **settings}
    strategy = algorithm(name).load_strategy().from_config(read_config(config))
    grid = InlineGrid(app_of(PROBLEMS, name), NODES)
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    assert not any(done.failures for done in result.history)
    return float(np.linalg.norm(result.arrays["x"].numpy() - OPTIMUM))


@pytest.mark.parametrize("part", [{}, HALF], ids=["all", "half"])
@pytest.mark.parametrize("name", EXACT)
def test_coded_both_ways_runs_come_as_near_to_the_optimum(name: str, part: dict[str, Any]) -> None:
    plain = distance(name, **part)
    coded = distance(name, **part, **{"value-bits": "8", "broadcast-bits": "8"})
    assert plain < 1e-3
    assert coded < 1.05 * plain + 1e-13


def test_errors_of_x_are_fed_back_to_control_variates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that the h_i of LED do not sum to zero, and its limit is another."""
    bits = {"broadcast-bits": "8"}
    assert distance("led", **bits) < 1e-13
    monkeypatch.setattr(control_variates, "column_sums", lambda table: np.zeros_like(table[0]))
    assert distance("led", **bits) > 1e-4


def played(name: str, grid: Any, strategy_keys: dict[str, Any], **start: Any) -> Any:
    """Play a run in which every array that an agent hears is compared with what the server told."""
    config = {"algorithm": name, "num-agents": AGENTS, "seed": 3, **strategy_keys}
    strategy = algorithm(name).load_strategy().from_config(read_config(config))
    grid.strategy = strategy
    dtype, dim = PROBLEMS[0].dtype, start.pop("dim", DIM)
    begin = ArrayRecord({"x": Array(np.full(dim, 0.01, start.pop("dtype", dtype)))})
    return strategy.start(grid, begin, log_rounds=False, **start)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compare what agents decode with what the server goes on with, in every message."""
    grids: list[Any] = []
    decode = MessageRound._decoded

    def compared(round_: Any, broadcast: Any, state: Any) -> Any:
        found = decode(round_, broadcast, state)
        session = grids[-1].strategy.run.session
        for name in round_.half.hears:
            if name in found:
                assert found[name].tobytes() == session.told.arrays[name].tobytes(), name
        return found

    monkeypatch.setattr(MessageRound, "_decoded", compared)

    def made(problems: Any, name: str, fates: Any = None) -> Any:
        grids.append(WatchedGrid(app_of(problems, name), NODES, fates))
        return grids[-1]

    return made


@pytest.mark.parametrize(
    ("dim", "dtype", "bits"), [(4, "f8", "8"), (7, "f4", "4"), (DIM, "f4", "32")]
)
@pytest.mark.parametrize("name", EXACT)
def test_what_is_not_worth_a_code_is_no_reference_that_changes(
    told: Any, name: str, dim: int, dtype: str, bits: str
) -> None:
    """A server may go on in the array that it sent: SCAFFOLD adds to c in its place."""
    problems = [
        BinaryLogistic(one.features.astype(dtype), one.labels.astype(dtype), regularizer=L2(0.5))
        for one in logistic_federation(AGENTS, dim=dim)
    ]
    keys = {**EXACT[name], "broadcast-bits": bits}
    result = played(name, told(problems, name), keys, dim=dim, dtype=dtype, num_rounds=6)
    assert not any(done.failures for done in result.history)


@pytest.mark.parametrize("name", [*EXACT, "dp-fedsgd", "fed-dyn"])
def test_a_state_that_was_sent_is_none_that_heard_a_broadcast(told: Any, name: str) -> None:
    """An agent lost its state, and then the reply for which it was sent the state."""

    def lose_both(grid: WatchedGrid, message: Message) -> Message | None:
        asked: Any = message.content["privet"]
        node: Any = grid.node_configs[message.metadata.dst_node_id]
        grid.fates[str(node["partition-id"]), int(asked["round"])] = lose_reply
        return lose_state(grid, message)

    for number in (3, 4):
        keys = {**EXACT.get(name, STEPS), "broadcast-bits": "8", "round-timeout": 0.05}
        result = played(name, told(PROBLEMS, name, {("1", number): lose_both}), keys, num_rounds=8)
        assert [done.round for done in result.history if done.failures] == [number]


@pytest.mark.parametrize("name", [*EXACT, "dp-fedsgd", "fed-dyn"])
def test_a_round_that_failed_is_no_reference_after_a_resume(
    told: Any, name: str, tmp_path: Path
) -> None:
    """A run is asked to end while it waits to try a round again."""

    def stop(grid: Any, message: Message) -> Message | None:
        grid.strategy.run.stopping.set()
        return disconnect(grid, message)

    keys = {"broadcast-bits": "8", "min-agents": AGENTS, "patience": 60.0, "round-timeout": 5.0}
    keys = {**EXACT.get(name, STEPS), **keys}
    path = tmp_path / "checkpoint.npz"
    run = {"checkpoint": path, "checkpoint_every": 0}
    cut = played(name, told(PROBLEMS, name, {("1", 5): stop}), keys, num_rounds=8, **run)
    assert (cut.stopped, len(cut.history)) == ("request", 4)
    whole = played(name, told(PROBLEMS, name), keys, num_rounds=8, resume=path)
    assert len(whole.history) == 8
    assert not any(done.failures for done in whole.history)


def test_zeros_of_a_broadcast_do_not_travel() -> None:
    """FedPDM with a sparse downlink: the same limit, and half of the numbers at 8 bits each."""
    settings = {"alpha-d": 0.5, "value-bits": "8"}
    results = {}
    for bits in ("0", "8"):
        config = {"algorithm": "fed-pdm", "num-agents": AGENTS, **EXACT["fed-pdm"], **settings}
        config["broadcast-bits"] = bits
        strategy = algorithm("fed-pdm").load_strategy().from_config(read_config(config))
        grid = InlineGrid(app_of(PROBLEMS, "fed-pdm"), NODES)
        start = ArrayRecord({"x": Array(np.zeros(DIM))})
        results[bits] = strategy.start(grid, start, num_rounds=100, log_rounds=False)
        sent = strategy.run.session.state.sent
        assert np.count_nonzero(sent) == DIM // 2
    plain, coded = (results[bits].arrays["x"].numpy() for bits in ("0", "8"))
    assert np.linalg.norm(coded - plain) < 1e-6 * np.linalg.norm(plain)
    down = {bits: results[bits].history[50].bytes_down / AGENTS for bits in results}
    assert down["0"] > 8 * DIM / 2
    assert down["8"] < DIM / 2 + 110


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
    assert "coded values" in result.history[1].failures["0"].text


def test_what_cannot_be_coded_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="broadcast-bits: not with secure-sum"):
        FedPLT(secure_sum=True, broadcast_bits="8")
    with pytest.raises(ConfigError, match="broadcast-bits"):
        read_config({"algorithm": "dp-fedsgd", "secure-sum": True, "broadcast-bits": "8"})
    with pytest.raises(ConfigError, match="broadcast-bits"):
        read_config({"algorithm": "gfl", "broadcast-bits": "8"})
    assert DPFedSGD(broadcast_bits="8").half.agent.broadcast_width == 8


@settings(max_examples=300)
@given(st.data())
def test_mutated_arrays_of_a_broadcast_are_refused_or_vectors(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    vector, last = rng.standard_normal((2, DIM))
    vector[: data.draw(st.sampled_from([0, 20, DIM]))] = 0.0
    coder = Coder(Streams(1, "", 3), data.draw(st.sampled_from([4, 8, 16])))
    kept, full, code = coder.broadcast(vector, last, "x")
    assert not kept[vector == 0.0].any()
    for array in (full, code):
        if array.dtype == np.uint8:
            reference = last if is_difference(array) else None
            assert heard(array, DIM, vector.dtype, reference).tobytes() == kept.tobytes()
    raw = bytearray(code.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    hostile = np.frombuffer(bytes(raw[: data.draw(st.integers(0, len(raw)))]), np.uint8)
    is_difference(hostile)
    with suppress(WireError):
        found = heard(hostile, DIM, vector.dtype, last)
        assert (found.shape, found.dtype) == (vector.shape, vector.dtype)
