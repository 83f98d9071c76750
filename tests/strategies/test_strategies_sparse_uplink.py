"""Sparse replies around Flower's own FedAvg and a client that knows nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import sparse_mod
from privet.core import ConfigError
from privet.sim.engine import InlineGrid
from privet.strategies import SparseUplink
from privet.wire import Layout, content_bytes
from privet.wire.contract import SPARSE_FIELD
from privet.wire.sparse import encode

SHAPES = {"w": (40, 5), "b": (7,)}


def target(node: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(node)
    return {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}


def client(mods: Any) -> ClientApp:
    """Return a client that answers with a model of its own."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = target(int(context.node_config["partition-id"]))
        arrays = ArrayRecord({name: Array(value) for name, value in own.items()})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


class Counting(InlineGrid):
    """Counts the bytes of replies and can damage them."""

    received = 0
    damage = ""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        assert reply is not None
        self.received += content_bytes(reply.content)
        node = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if self.damage == node:
            record = reply.content["arrays"]
            record[SPARSE_FIELD] = record[SPARSE_FIELD][:-2]  # type: ignore[index]
        return reply


def run(mods: Any, grid_damage: Any = "") -> tuple[dict[str, np.ndarray], int]:
    grid = Counting(client(mods), 3)
    grid.damage = grid_damage
    start = ArrayRecord({name: Array(np.ones(shape)) for name, shape in SHAPES.items()})
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy = SparseUplink(inner)
    result = strategy.start(grid, start, num_rounds=1)
    return {name: value.numpy() for name, value in result.arrays.items()}, grid.received


def test_everything_sent_is_plain_fed_avg() -> None:
    found, _ = run([sparse_mod(1.0)])
    for name in SHAPES:
        mean = np.mean([target(i)[name] for i in range(3)], axis=0)
        assert np.allclose(found[name], mean, atol=1e-12)


def test_largest_changes_travel_and_the_rest_stays() -> None:
    found, received = run([sparse_mod(0.1)])
    expected = np.zeros(207)
    for i in range(3):
        change = np.concatenate([target(i)["w"].reshape(-1), target(i)["b"]]) - 1
        keep = np.argsort(-np.abs(change), kind="stable")[:21]
        one = np.ones(207)
        one[keep] += change[keep]
        expected += one / 3
    assert np.allclose(np.concatenate([found["w"].reshape(-1), found["b"]]), expected, atol=1e-12)
    assert received < 3 * (8 * 21 + 21 + 32)


def test_random_coordinates_need_no_indices() -> None:
    _, received = run([sparse_mod(count=20, sparsifier="rand-k")])
    assert received == 3 * (8 * 20 + 32)


def test_damaged_reply_is_dropped_and_the_others_are_averaged() -> None:
    found, _ = run([sparse_mod(1.0)], grid_damage=1)
    mean = np.mean([target(i)["w"] for i in (0, 2)], axis=0)
    assert np.allclose(found["w"], mean, atol=1e-12)


class Replacing(InlineGrid):
    """One node's reply holds these records in place of its model."""

    records: dict[str, bytes]

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if (
            reply is not None
            and self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        ):
            return reply
        assert reply is not None
        del reply.content["arrays"]
        for name, data in self.records.items():
            reply.content[name] = ConfigRecord({SPARSE_FIELD: data})
        return reply


@pytest.mark.parametrize(
    ("values", "copies", "why"),
    [
        ([], 200, "reply holds 200 sparse models"),
        ([1.0], 2, "reply holds 2 sparse models"),
        *(([value], 1, "not finite") for value in (np.nan, np.inf, -np.inf, 1e38)),
    ],
)
def test_one_reply_takes_no_memory_and_spoils_no_model(
    values: list[float],
    copies: int,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    restore = Layout.restore
    monkeypatch.setattr(Layout, "restore", lambda *all_: made.append(1) or restore(*all_))
    places = np.arange(len(values))
    data = encode(np.array(values, np.float32), places, 207)
    grid = Replacing(client([]), 3)
    grid.records = {f"record-{number}": data for number in range(copies)}
    start = ArrayRecord(
        {name: Array(np.full(shape, 1.0, np.float16)) for name, shape in SHAPES.items()}
    )
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    result = SparseUplink(inner).start(grid, start, num_rounds=1)
    assert made == []
    assert why in caplog.text
    for name in SHAPES:
        mean = np.mean([target(i)[name] for i in (1, 2)], axis=0)
        assert np.allclose(result.arrays[name].numpy(), mean, atol=1e-2)


@pytest.mark.parametrize(
    "settings", [{"share": 0.0}, {"count": -1}, {"sparsifier": "public-top-k"}]
)
def test_parameters_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sparse_mod(**settings)
