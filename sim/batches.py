"""Messages as plain tuples, so that a whole batch is one small pickle with its bytes beside it.

Flower's records check every field when they are built and pickle as objects of their own; here they
travel as what they hold, which was checked once. A record that several messages share (the
broadcast) is encoded once, and large byte values are handed over as buffers, which the object store
keeps outside the pickle: they are copied once on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pickle import PickleBuffer
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from privet.sim.grid import filled

LARGE = 1 << 12
"""Bytes from which a value travels as a buffer."""

_CONTENT, _CONFIG, _METRIC = RecordDict(), ConfigRecord(), MetricRecord()

Record = ArrayRecord | ConfigRecord | MetricRecord
Encoded = tuple[str, Any]
"""Kind of record, and what it holds."""


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


def encode_messages(messages: Sequence[Message]) -> tuple[list[Encoded], list[Letter]]:
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
            return encode_record(record)
        if key not in number:
            number[key] = len(shared)
            shared.append(encode_record(record))
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


def decode_messages(shared: Iterable[Encoded], letters: Iterable[Letter]) -> Iterable[Message]:
    """Give the messages one by one, without their ids; shared records are one object again."""
    records = [decode_record(record) for record in shared]
    for letter in letters:
        content = filled(
            _CONTENT,
            {
                name: records[record] if isinstance(record, int) else decode_record(record)
                for name, record in letter.content
            },
        )
        yield Message(content, letter.node, letter.kind, ttl=letter.ttl, group_id=letter.group)


def encode_reply(reply: Message) -> Answer:
    """Return a node's reply."""
    if reply.has_error():
        return Answer(error=(reply.error.code, reply.error.reason))
    return Answer(tuple((name, encode_record(one)) for name, one in reply.content.items()))


def decode_reply(answer: Answer, message: Message) -> Message:
    """Return the reply to a message."""
    if answer.error is not None:
        return Message(Error(*answer.error), reply_to=message)
    content = filled(_CONTENT, {name: decode_record(record) for name, record in answer.content})
    return Message(content, reply_to=message)


def encode_record(record: Record) -> Encoded:
    """Return a record as its kind and what it holds."""
    if isinstance(record, ConfigRecord):
        return "config", {name: _outside(value) for name, value in record.items()}
    if isinstance(record, MetricRecord):
        return "metric", dict(record)
    arrays = [(n, a.dtype, a.shape, a.stype, _outside(a.data)) for n, a in record.items()]
    return "array", arrays


def decode_record(encoded: Encoded) -> Record:
    """Return the record of ``encode_record``."""
    kind, held = encoded
    if kind == "config":
        return filled(_CONFIG, {name: _inside(value) for name, value in held.items()})
    if kind == "metric":
        return filled(_METRIC, held)
    arrays = {
        name: Array(dtype, tuple(shape), stype, _inside(data))
        for name, dtype, shape, stype, data in held
    }
    return ArrayRecord(arrays)


def weight(records: Iterable[Encoded]) -> int:
    """Return the bytes of encoded records that travel as buffers."""
    return sum(
        value.raw().nbytes
        for record in records
        for value in _values(record)
        if isinstance(value, PickleBuffer)
    )


def _values(encoded: Encoded) -> Iterable[Any]:
    kind, held = encoded
    return [array[-1] for array in held] if kind == "array" else held.values()


def _outside(value: Any) -> Any:
    return PickleBuffer(value) if type(value) is bytes and len(value) >= LARGE else value


def _inside(value: Any) -> Any:
    """Return a buffer as bytes again, which is what records hold, and other values as they are."""
    if isinstance(value, str | int | float | bytes | list):
        return value
    return bytes(value)
