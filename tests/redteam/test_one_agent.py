"""One agent lies at enrolment or in a reply: it is left out, and the run of the others goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message

from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.data.meaning import Meaning
from privet.sim.engine import InlineGrid
from privet.strategies import GFL, DPFedSGD, FedPLT, PrimalDualStrategy, PrivetResult
from privet.strategies.run.failure import FailureCode
from privet.wire import ENROL
from support.federations import app_of, logistic_agents

Change = Callable[[Any, Message], Message | None]
COUNT = 5


class Liar(InlineGrid):
    """Changes what one agent answers, of one kind of message."""

    liar, kind = "2", ENROL
    keys: dict[str, bytes]
    change: Change

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        name = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        enrols = message.metadata.message_type == ENROL
        if reply is None or not reply.has_content() or enrols != (self.kind == ENROL):
            return reply
        record: Any = reply.content["privet"]
        if enrols and name != self.liar:
            self.keys[name] = record.get("public-key", b"")
        return reply if name != self.liar else self.change(record, message) or reply


def grid(algorithm: str, change: Change, liar: str, kind: str = ENROL) -> Liar:
    nodes = [{"partition-id": place, "num-examples": 40} for place in range(COUNT)]
    made = Liar(app_of(logistic_agents(COUNT), algorithm), nodes)
    made.change, made.liar, made.kind, made.keys = change, liar, kind, {}
    return made


def setting(**fields: Any) -> Change:
    def change(record: Any, _: Message) -> None:
        for name, value in fields.items():
            record[name] = value

    return change


def private(**run: Any) -> DPFedSGD:
    return DPFedSGD(
        num_agents=COUNT, clip=1.0, noise_scale=1.0, step_size_base=0.1, patience=2.0, **run
    )


def plain(**run: Any) -> FedPLT:
    return FedPLT(num_agents=COUNT, patience=2.0, **run)


def play(
    strategy: PrimalDualStrategy, nodes: InlineGrid, arrays: dict[str, int] | None = None
) -> PrivetResult:
    start = {name: Array(np.zeros(size)) for name, size in (arrays or {"x": 4}).items()}
    return strategy.start(nodes, ArrayRecord(start), num_rounds=2, timeout=20.0)


def others(liar: str) -> list[tuple[str, ...]]:
    return [tuple(name for name in map(str, range(COUNT)) if name != liar)] * 2


@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("key", [bytes(32), bytes([1]) + bytes(31)], ids=["zero", "one"])
def test_a_public_key_of_low_order_is_turned_away(make: Any, key: bytes) -> None:
    strategy = make(secure_sum=True)
    nodes = grid(strategy.half.name, setting(**{"public-key": key}), "4")
    result = play(strategy, nodes)
    assert [done.participants for done in result.history] == others("4")
    assert "X25519 cannot use" in str(strategy.run.session.roster.rejected)


def test_a_copy_of_a_public_key_is_turned_away() -> None:
    strategy = private(secure_sum=True)

    def copy(record: Any, _: Message) -> None:
        record["public-key"] = nodes.keys["1"]

    nodes = grid("dp-fedsgd", copy, "4")
    result = play(strategy, nodes)
    assert [done.participants for done in result.history] == others("4")
    assert "gives the public key of agent 1" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("liar", ["0", "4"])
@pytest.mark.parametrize(
    "fields",
    [
        {"layout": '[["a",[3]]]', "dim": 3},
        {"layout": '[["a",[3]],["b",[1]]]', "buffers": '[["b",[1]]]'},
        {"layout": '[["a",[3]]]', "buffers": '[["b",[1]]]', "dim": 3},
    ],
    ids=["part", "both", "buffer"],
)
def test_a_layout_of_its_own_chooses_for_nobody_else(
    make: Any, liar: str, fields: dict[str, Any]
) -> None:
    strategy = make()
    nodes = grid(strategy.half.name, setting(**fields), liar)
    result = play(strategy, nodes, {"a": 3, "b": 1})
    assert [done.participants for done in result.history] == others(liar)


@pytest.mark.parametrize("code", [-3, -2, -1])
@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("masked", [False, True])
def test_an_error_code_of_the_coordinator_s_own_ends_no_run(
    make: Any, code: int, masked: bool
) -> None:
    strategy = make(secure_sum=masked)

    def stop(_: Any, message: Message) -> Message:
        return Message(Error(code, "stop"), reply_to=message)

    result = play(strategy, grid(strategy.half.name, stop, "2", kind="train"))
    assert result.status == "completed"
    for done in result.history:  # a masked sum that was tried again leaves one more agent out
        assert len(done.participants) >= COUNT - 1 - masked
        assert done.failures["2"].code is FailureCode.LOST


@pytest.mark.parametrize("unit", ["9", "x"])
def test_a_unit_that_is_not_there_ends_no_run(unit: str) -> None:
    strategy = GFL(num_agents=COUNT, units=2, graph="path", local_epochs=2)
    result = play(strategy, grid("gfl", setting(unit=unit), "2"))
    assert [done.participants for done in result.history] == others("2")


NUMBERS: dict[str, Callable[[Meaning], Meaning]] = {
    "rows": lambda own: replace(own, rows={"age": [60.0, 1.0, 9.0]}),
    "label": lambda own: replace(own, rows={"": [60.0, 1.0, 9.0]}),
    "scale": lambda own: replace(own, scale={"age": [5.0, 2.0]}),
}


@pytest.mark.parametrize("liar", ["0", "2"])
@pytest.mark.parametrize("what", list(NUMBERS))
def test_numbers_of_rows_stand_in_for_nobody_s_digests(
    tmp_path: Path, what: str, liar: str
) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns]\nage = [0, 100]\ndose = [0, 10]\ny = ["0", "1"]\n')
    rng, nodes = np.random.default_rng(0), []
    for place in range(3):
        rows = [f"{rng.integers(100)},{rng.integers(10)},{rng.integers(2)}" for _ in range(60)]
        table = tmp_path / f"{place}.csv"
        table.write_text("\n".join(["age,dose,y", *rows, ""]))
        nodes.append(
            {"partition-id": place, "num-partitions": 3, "dataset": "csv", "schema": str(schema),
             "data-path": str(table), "label-column": "y", "partition": "none"}
        )  # fmt: skip

    class States(Liar):
        def deliver(self, message: Message) -> Message | None:
            context = self.contexts[message.metadata.dst_node_id]

            def state(record: Any, _: Message) -> None:
                own: Any = problem_from_context(context)
                record["encoding"] = NUMBERS[what](own.meaning).text

            self.change = state
            return super().deliver(message)

    made = States(client_app(None, problem_from_context), nodes)
    made.liar, made.keys = liar, {}
    strategy = DPFedSGD(num_agents=3, clip=1.0, noise_scale=1.0, step_size_base=0.1)
    result = play(strategy, made, {"x": 3})
    honest = tuple(name for name in "012" if name != liar)
    assert [done.participants for done in result.history] == [honest] * 2
    assert "by numbers of its rows" in str(strategy.run.session.roster.rejected)
