"""Messages as plain tuples, so that a whole batch is one small pickle with its bytes beside it.

Flower's records check every field when they are built and pickle as objects of their own; here they
travel as what they hold, which was checked once. A record that several messages share (the
broadcast) is encoded once. Large byte values lie in memory that the processes share where there is
some (``privet.sim.ray.arena``), else they are handed over as buffers, which the object store keeps
outside the pickle: either way they are copied once on either side.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pickle import PickleBuffer
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from privet.sim.grid import about, message_about
from privet.sim.ray.arena import Arena, Carried, Placed, Tray
from privet.wire.records import Record, config_record, metric_record, own_record, record_dict

LARGE = 1 << 12
"""Bytes from which a value travels beside the pickle."""

Encoded = tuple[str, Any]
"""Kind of record, and what it holds."""
Parcel = bytes | tuple[bytes, list[PickleBuffer]]
"""A pickle, with the large values beside it that are in no shared memory."""


Letter = tuple[
    dict[str, Any], tuple[tuple[str, int | Encoded], ...] | None, tuple[int, str | None] | None
]
"""One message on its way to a node or back: what is said of it, its content, its error.

The content names the records in order; one that several messages share stands there as its number
in the list of shared records. In its place a reply may hold an error, code and reason. (A plain
tuple: a named one is pickled by a call in Python.)
"""


def encode_shared(messages: Iterable[Message], tray: Tray) -> tuple[list[Encoded], dict[int, int]]:
    """Return the records that several messages share, and the number of each by its ``id``."""
    seen: set[int] = set()
    number: dict[int, int] = {}
    shared: list[Encoded] = []
    for message in messages:
        for record in message.content.values():
            key = id(record)
            if key in seen and key not in number:
                number[key] = len(shared)
                shared.append(encode_record(record, tray))
            seen.add(key)
    return shared, number


def encode_messages(
    messages: Iterable[Message], number: Mapping[int, int], tray: Tray
) -> list[Letter]:
    """Return messages that share the records of ``encode_shared`` with others."""

    def place(record: Record) -> int | Encoded:
        shared = number.get(id(record))
        return encode_record(record, tray) if shared is None else shared

    return [
        (about(message), tuple([(n, place(one)) for n, one in message.content.items()]), None)
        for message in messages
    ]


def decode_shared(shared: Iterable[Encoded], arena: Arena | None) -> list[Record]:
    """Return the records that several messages share."""
    return [decode_record(record, arena) for record in shared]


def decode_letter(letter: Letter, shared: Sequence[Record], arena: Arena | None) -> Message:
    """Return a message with records of its own, or a reply, of which none is shared."""
    said, content, error = letter
    if content is None:
        return message_about(said, None, Error(*error) if error else None)
    records = {
        name: own_record(shared[record])
        if isinstance(record, int)
        else decode_record(record, arena)
        for name, record in content
    }
    return message_about(said, record_dict(records))


def encode_reply(reply: Message, tray: Tray) -> Letter:
    """Return a node's reply."""
    if reply.has_error():
        return about(reply), None, (reply.error.code, reply.error.reason)
    content = tuple([(name, encode_record(one, tray)) for name, one in reply.content.items()])
    return about(reply), content, None


def encode_record(record: Record, tray: Tray) -> Encoded:
    """Return a record as its kind and what it holds."""
    if isinstance(record, ConfigRecord):
        return "config", {
            name: _placed(value, tray) if type(value) is bytes else value
            for name, value in record.items()
        }
    if isinstance(record, MetricRecord):
        return "metric", dict(record.items())
    return "array", [
        (
            name,
            a.dtype,
            a.shape,
            a.stype,
            _placed(a.data, tray) if type(a.data) is bytes else a.data,
        )
        for name, a in record.items()
    ]


def decode_record(encoded: Encoded, arena: Arena | None) -> Record:
    """Return the record of ``encode_record``; ``arena`` is the one its tray wrote to."""
    kind, held = encoded
    if kind == "config":
        return config_record(
            {
                name: _taken(value, arena) if type(value) is tuple else value
                for name, value in held.items()
            }
        )
    if kind == "metric":
        return metric_record(held)
    arrays = {
        name: Array(
            dtype, tuple(shape), stype, _taken(data, arena) if type(data) is tuple else data
        )
        for name, dtype, shape, stype, data in held
    }
    return ArrayRecord(arrays)


def seal(value: Any, *, in_band: bool = False) -> Parcel:
    """Return encoded records, letters or answers as what Ray hands over at the least cost.

    Left to Ray, each of the tuples would be looked at by a pickler written in Python. ``in_band``
    puts the large values into the pickle as well: Ray Client hands over nothing beside it.
    """
    if in_band:
        return pickle.dumps(value, protocol=5)
    buffers: list[PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return (data, buffers) if buffers else data


def unseal(parcel: Parcel) -> Any:
    """Return what was sealed, its buffers read-only."""
    data, buffers = (parcel, ()) if isinstance(parcel, bytes) else parcel
    return pickle.loads(data, buffers=buffers)


def weight(parcel: Parcel) -> int:
    """Return the bytes of a parcel, those beside its pickle included."""
    if isinstance(parcel, bytes):
        return len(parcel)
    return len(parcel[0]) + sum(one.raw().nbytes for one in parcel[1])


def _placed(value: bytes, tray: Tray) -> bytes | Placed | Carried:
    return tray.place(value) if len(value) >= LARGE else value


def _taken(placed: tuple[Any, ...], arena: Arena | None) -> bytes:
    """Return the value that ``Tray.place`` gave this for."""
    if len(placed) == 1:
        return bytes(placed[0])
    assert arena is not None
    begin, end = placed
    return arena.read((begin, end))
