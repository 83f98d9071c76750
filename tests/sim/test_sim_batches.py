"""Messages as plain tuples: what comes out is what went in, and what is shared goes once."""

from __future__ import annotations

import enum
import gc
import os
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from privet.sim.engine import InlineGrid
from privet.sim.grid import set_message_id
from privet.sim.ray.arena import LARGEST, Arena, Tray
from privet.sim.ray.batches import (
    Letter,
    decode_letter,
    decode_record,
    decode_shared,
    encode_messages,
    encode_record,
    encode_reply,
    encode_shared,
    seal,
    unseal,
    weight,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is not shared here")


class Colour(enum.IntEnum):
    """A value that Flower takes for the integer it is."""

    RED = 7


RECORDS = {
    "config": ConfigRecord(
        {"a": 1, "b": [0.5], "c": "text", "d": b"x" * 10_000, "e": [b"y"], "f": True, "g": b""}
    ),
    "metric": MetricRecord({"loss": 0.25, "counts": [1, 2]}),
    "small": ArrayRecord({"x": Array(np.arange(6.0).reshape(2, 3)), "y": Array(np.zeros(0))}),
    "large": ArrayRecord([np.ones(10_000, "f4"), np.arange(3)]),
    "subclasses": ConfigRecord(
        {
            "a": np.float64(0.5),
            "b": np.str_("text"),
            "c": Colour.RED,
            "d": np.bytes_(b"x" * 10_000),
            "e": [np.float64(1.5)],
        }
    ),
    "metric subclasses": MetricRecord({"loss": np.float64(0.25), "colour": Colour.RED}),
    "empty": ConfigRecord(),
}


@pytest.fixture(autouse=True)
def server() -> None:
    """Let messages be made in this process."""
    InlineGrid(lambda message, context: message, 1)


def travelled(value: Any) -> Any:
    """Return a value as another process gets it: what lies beside the pickle is read-only."""
    parcel = seal(value)
    if not isinstance(parcel, bytes):
        parcel = (parcel[0], [memoryview(bytes(buffer)) for buffer in parcel[1]])
    return unseal(parcel)


class Way:
    """How large values travel: a tray, and the arena as the other process sees it."""

    def __init__(self, room: int | None) -> None:
        ours = None if room is None else Arena()
        self.room = 0 if ours is None else ours.grow(room or 0)
        self.tray = Tray(ours, self.room)
        self.arena = None if ours is None else Arena(ours.address)


@pytest.fixture(
    params=[None, pytest.param(1_000_000, marks=linux), pytest.param(9_999, marks=linux)],
    ids=["buffers", "shared memory", "too little"],
)
def way(request: Any) -> Way:
    """Return one of the ways."""
    return Way(request.param)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_every_kind_come_back_as_they_were(name: str, way: Way) -> None:
    record = RECORDS[name]
    encoded = encode_record(record, way.tray)
    large = {"config": 10_000, "large": 40_128}.get(name, 0)  # arrays have a header of 128 bytes
    assert way.tray.needed == large
    parcel = seal(encoded)
    assert isinstance(parcel, bytes) == (large <= way.room)
    assert weight(parcel) >= (0 if large <= way.room else large)
    back = decode_record(travelled(encoded), way.arena)
    assert back == record
    assert type(back) is type(record)
    assert list(back) == list(record)
    assert list(map(type, back.values())) == list(map(type, record.values()))


@pytest.mark.parametrize("name", RECORDS)
def test_a_pickle_alone_holds_all_where_nothing_can_travel_beside_it(name: str, way: Way) -> None:
    parcel = seal(encode_record(RECORDS[name], way.tray), in_band=True)
    assert isinstance(parcel, bytes)
    assert weight(parcel) == len(parcel)
    assert decode_record(unseal(parcel), way.arena) == RECORDS[name]


def message_to(node: int, content: RecordDict, **options: Any) -> Message:
    made = Message(content, node, MessageType.TRAIN, **options)
    set_message_id(made, str(node))
    return made


def encoded(messages: list[Message], way: Way) -> tuple[list[Any], list[Letter]]:
    shared, number = encode_shared(messages, way.tray)
    return shared, encode_messages(messages, number, way.tray)


def decoded(shared: Any, letters: list[Letter], way: Way) -> list[Any]:
    records = decode_shared(shared, way.arena)
    return [decode_letter(letter, records, way.arena) for letter in letters]


def test_messages_come_back_with_what_was_said_of_them(way: Way) -> None:
    content = RecordDict(dict(RECORDS))
    messages = [message_to(7, content, ttl=30.0, group_id="3"), message_to(8, RecordDict())]
    shared, letters = travelled(encoded(messages, way))
    back = decoded(shared, letters, way)
    assert [one.metadata.message_id for one in back] == ["7", "8"]
    assert back[0].content == content
    assert list(back[0].content) == list(content)
    for ours, theirs in zip(back, messages, strict=True):
        assert vars(ours.metadata) == vars(theirs.metadata)
        assert ours.metadata.dst_node_id in (7, 8)
        assert not ours.has_error()


def test_what_several_messages_share_is_sent_once_and_belongs_to_each_of_them(way: Way) -> None:
    broadcast = ConfigRecord({"payload": bytes(100_000)})
    messages = [
        message_to(node, RecordDict({"all": broadcast, "own": ConfigRecord({"tag": node})}))
        for node in range(20)
    ]
    shared, letters = encoded(messages, way)
    assert len(shared) == 1
    assert way.tray.needed == 100_000
    assert len(pickle.dumps((shared, letters), protocol=5)) < 110_000
    back = decoded(*travelled((shared, letters)), way)
    assert len({id(one.content["all"]) for one in back}) == 20
    (payload,) = {id(one.content["all"]["payload"]): one for one in back}.values()
    assert payload.content["all"]["payload"] == bytes(100_000)
    assert [one.content["own"]["tag"] for one in back] == list(range(20))
    assert len({id(one.content) for one in back}) == 20


def test_replies_carry_content_or_an_error(way: Way) -> None:
    asked = message_to(7, RecordDict())
    for reply in (
        Message(RecordDict(dict(RECORDS)), reply_to=asked),
        Message(Error(101, "agent 3: no"), reply_to=asked),
    ):
        back = decode_letter(travelled(encode_reply(reply, way.tray)), (), way.arena)
        assert vars(back.metadata) == vars(reply.metadata)
        assert back.metadata.reply_to_message_id == "7"
        assert back.metadata.src_node_id == 7
        assert back.has_error() == reply.has_error()
        if reply.has_error():
            assert (back.error.code, back.error.reason) == (101, "agent 3: no")
        else:
            assert back.content == reply.content


# ------------------------------------------------------------------ shared memory


@linux
def test_values_that_do_not_fit_are_buffers_and_the_tray_says_what_was_needed() -> None:
    way = Way(25_000)
    values = [bytes([n]) * 10_000 for n in range(4)]
    placed = [way.tray.place(value) for value in values]
    assert placed[:2] == [(0, 10_000), (10_000, 20_000)]
    assert [bytes(*one) for one in placed[2:]] == values[2:]
    assert way.tray.needed == 40_000
    assert way.arena is not None
    assert [way.arena.read((begin, begin + 10_000)) for begin in (0, 10_000)] == values[:2]


@linux
def test_arena_grows_and_is_written_again() -> None:
    ours = Arena()
    theirs = Arena(ours.address)
    for size in (5_000, 50_000, 20_000):
        value = os.urandom(size)
        assert ours.grow(size) >= size
        assert theirs.read(ours.write(0, value)) == value
        assert ours.read(theirs.write(0, value[::-1])) == value[::-1]
    assert ours.grow(1 << 40) == LARGEST


@linux
def test_arena_of_another_process_or_machine_is_not_mistaken_for_ours() -> None:
    """The address may name a file of something else there, or none at all."""
    ours, other = Arena(), Arena()
    path = ours.address.split()[0]
    name = other.address.split()[1]
    for wrong in (f"{path} {name}", f"/proc/self/fd/0 {name}", f"/proc/0/fd/9 {name}"):
        with pytest.raises(OSError, match=r"memory that is meant|No such file|Invalid argument"):
            Arena(wrong)


@linux
def test_arena_that_is_no_longer_used_is_given_back() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        way = Way(10_000)
        way.tray.place(bytes(5_000))
        assert way.arena is not None
        assert way.arena.read((0, 5_000)) == bytes(5_000)
    del way
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
