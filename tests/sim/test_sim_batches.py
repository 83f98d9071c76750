"""Messages as plain tuples: what comes out is what went in, and what is shared goes once."""

from __future__ import annotations

import pickle
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

from privet.sim.batches import (
    decode_messages,
    decode_record,
    decode_reply,
    encode_messages,
    encode_record,
    encode_reply,
    weight,
)
from privet.sim.engine import InlineGrid
from privet.sim.grid import set_message_id

RECORDS = {
    "config": ConfigRecord(
        {"a": 1, "b": [0.5], "c": "text", "d": b"x" * 10_000, "e": [b"y"], "f": True, "g": b""}
    ),
    "metric": MetricRecord({"loss": 0.25, "counts": [1, 2]}),
    "small": ArrayRecord({"x": Array(np.arange(6.0).reshape(2, 3)), "y": Array(np.zeros(0))}),
    "large": ArrayRecord([np.ones(10_000, "f4"), np.arange(3)]),
    "empty": ConfigRecord(),
}


@pytest.fixture(autouse=True)
def server() -> None:
    """Let messages be made in this process."""
    InlineGrid(lambda message, context: message, 1)


def travelled(value: Any) -> Any:
    """Return a value as another process gets it: large buffers beside the pickle, read-only."""
    buffers: list[Any] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    beside = [memoryview(bytes(buffer)) for buffer in buffers]
    return pickle.loads(data, buffers=beside)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_every_kind_come_back_as_they_were(name: str) -> None:
    record = RECORDS[name]
    encoded = encode_record(record)  # arrays have a header of 128 bytes
    assert weight([encoded]) == {"config": 10_000, "large": 40_128}.get(name, 0)
    back = decode_record(travelled(encoded))
    assert back == record
    assert type(back) is type(record)
    assert list(back) == list(record)


def message_to(node: int, content: RecordDict, **options: Any) -> Message:
    made = Message(content, node, MessageType.TRAIN, **options)
    set_message_id(made, str(node))
    return made


def test_messages_come_back_with_what_was_said_of_them() -> None:
    content = RecordDict(dict(RECORDS))
    messages = [message_to(7, content, ttl=30.0, group_id="3"), message_to(8, RecordDict())]
    shared, letters = travelled(encode_messages(messages))
    back = list(decode_messages(shared, letters))
    assert [letter.message_id for letter in letters] == ["7", "8"]
    assert back[0].content == content
    assert list(back[0].content) == list(content)
    for ours, theirs in zip(back, messages, strict=True):
        for name in ("dst_node_id", "src_node_id", "message_type", "ttl", "group_id", "run_id"):
            assert getattr(ours.metadata, name) == getattr(theirs.metadata, name)


def test_what_several_messages_share_is_sent_once_and_is_one_object_again() -> None:
    broadcast = ConfigRecord({"payload": bytes(100_000)})
    messages = [
        message_to(node, RecordDict({"all": broadcast, "own": ConfigRecord({"tag": node})}))
        for node in range(20)
    ]
    shared, letters = encode_messages(messages)
    assert len(shared) == 1
    assert weight(shared) == 100_000
    assert len(pickle.dumps((shared, letters), protocol=5)) < 110_000
    back = list(decode_messages(*travelled((shared, letters))))
    assert len({id(one.content["all"]) for one in back}) == 1
    assert [one.content["own"]["tag"] for one in back] == list(range(20))
    assert len({id(one.content) for one in back}) == 20


def test_replies_carry_content_or_an_error() -> None:
    asked = message_to(7, RecordDict())
    for reply in (
        Message(RecordDict(dict(RECORDS)), reply_to=asked),
        Message(Error(101, "agent 3: no"), reply_to=asked),
    ):
        back = decode_reply(travelled(encode_reply(reply)), asked)
        assert back.metadata.reply_to_message_id == "7"
        assert back.metadata.src_node_id == 7
        assert back.has_error() == reply.has_error()
        if reply.has_error():
            assert (back.error.code, back.error.reason) == (101, "agent 3: no")
        else:
            assert back.content == reply.content
