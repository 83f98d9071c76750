"""Messages as plain tuples, so that a whole batch is one small pickle with its bytes beside it.

Flower's records check every field when they are built and pickle as objects of their own; here they
travel as what they hold, which was checked once. A record that several messages share (the
broadcast) is encoded once. Large byte values lie in memory that the processes share where there is
some (``privet.sim.arena``), else they are handed over as buffers, which the object store keeps
outside the pickle: either way they are copied once on either side.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pickle import PickleBuffer
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from privet.sim.arena import Arena, Placed, Tray
from privet.sim.grid import filled

LARGE = 1 << 12
"""Bytes from which a value travels beside the pickle."""

_CONTENT, _CONFIG, _METRIC = RecordDict(), ConfigRecord(), MetricRecord()

Record = ArrayRecord | ConfigRecord | MetricRecord
Encoded = tuple[str, Any]
"""Kind of record, and what it holds."""
Parcel = bytes | tuple[bytes, list[PickleBuffer]]
"""A pickle, with the large values beside it that are in no shared memory."""


class Letter(NamedTuple):
    """One message on its way to a node.

    ``content`` names the records in order; one that is shared stands there as its number in the
    list of shared records.
    """

    message_id: str
    node: int
    kind: str
    ttl: float
    group: str
    content: tuple[tuple[str, int | Encoded], ...]


class Answer(NamedTuple):
    """A node's reply: records in order, or an error."""

    content: tuple[tuple[str, Encoded], ...] = ()
    error: tuple[int, str | None] | None = None


def encode_messages(messages: Sequence[Message], tray: Tray) -> tuple[list[Encoded], list[Letter]]:
    """Return the records that several messages share, and the messages."""
    count: dict[int, int] = {}
    for message in messages:
        for record in message.content.values():
            count[id(record)] = count.get(id(record), 0) + 1
    shared: list[Encoded] = []
    number: dict[int, int] = {}

    def place(record: Record) -> int | Encoded:
        key = id(record)
        if count[key] == 1:
            return encode_record(record, tray)
        if key not in number:
            number[key] = len(shared)
            shared.append(encode_record(record, tray))
        return number[key]

    letters = [
        Letter(
            message.metadata.message_id,
            message.metadata.dst_node_id,
            message.metadata.message_type,
            message.metadata.ttl,
            message.metadata.group_id,
            tuple((name, place(record)) for name, record in message.content.items()),
        )
        for message in messages
    ]
    return shared, letters


def decode_messages(
    shared: Iterable[Encoded], letters: Iterable[Letter], arena: Arena | None
) -> Iterable[Message]:
    """Give the messages one by one, without their ids; shared records are one object again."""
    records = [decode_record(record, arena) for record in shared]
    for letter in letters:
        content = filled(
            _CONTENT,
            {
                name: records[record] if isinstance(record, int) else decode_record(record, arena)
                for name, record in letter.content
            },
        )
        yield Message(content, letter.node, letter.kind, ttl=letter.ttl, group_id=letter.group)


def encode_reply(reply: Message, tray: Tray) -> Answer:
    """Return a node's reply."""
    if reply.has_error():
        return Answer(error=(reply.error.code, reply.error.reason))
    return Answer(tuple((name, encode_record(one, tray)) for name, one in reply.content.items()))


def decode_reply(answer: Answer, message: Message, arena: Arena | None) -> Message:
    """Return the reply to a message."""
    if answer.error is not None:
        return Message(Error(*answer.error), reply_to=message)
    content = {name: decode_record(record, arena) for name, record in answer.content}
    return Message(filled(_CONTENT, content), reply_to=message)


def encode_record(record: Record, tray: Tray) -> Encoded:
    """Return a record as its kind and what it holds."""
    if isinstance(record, ConfigRecord):
        return "config", {name: _outside(value, tray) for name, value in record.items()}
    if isinstance(record, MetricRecord):
        return "metric", dict(record)
    arrays = [(n, a.dtype, a.shape, a.stype, _outside(a.data, tray)) for n, a in record.items()]
    return "array", arrays


def decode_record(encoded: Encoded, arena: Arena | None) -> Record:
    """Return the record of ``encode_record``; ``arena`` is the one its tray wrote to."""
    kind, held = encoded
    if kind == "config":
        return filled(_CONFIG, {name: _inside(value, arena) for name, value in held.items()})
    if kind == "metric":
        return filled(_METRIC, held)
    arrays = {
        name: Array(dtype, tuple(shape), stype, _inside(data, arena))
        for name, dtype, shape, stype, data in held
    }
    return ArrayRecord(arrays)


def seal(value: Any) -> Parcel:
    """Return encoded records, letters or answers as what Ray hands over at the least cost.

    Left to Ray, each of the tuples would be looked at by a pickler written in Python.
    """
    buffers: list[PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return (data, buffers) if buffers else data


def unseal(parcel: Parcel) -> Any:
    """Return what was sealed, its buffers read-only."""
    data, buffers = (parcel, ()) if isinstance(parcel, bytes) else parcel
    return pickle.loads(data, buffers=buffers)


def weight(parcel: Parcel) -> int:
    """Return the bytes that travel beside a parcel's pickle."""
    return 0 if isinstance(parcel, bytes) else sum(one.raw().nbytes for one in parcel[1])


def _outside(value: Any, tray: Tray) -> Any:
    return tray.place(value) if type(value) is bytes and len(value) >= LARGE else value


def _inside(value: Any, arena: Arena | None) -> Any:
    """Return a value that travelled beside the pickle as bytes again, others as they are."""
    if isinstance(value, str | int | float | bytes | list):
        return value
    if isinstance(value, Placed):
        assert arena is not None
        return arena.read(value)
    return bytes(value)
