"""Flower's records, made of what was checked already, and read with a check of every field.

Flower checks every key and value that is put into a record, at 2 us each. What this library built
or has read as the right type need not be asked again; everything else goes through Flower's own
constructors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from privet.core.errors import WireError

from .flower_internals import held_by, holding

ARRAYS = "privet.arrays"
"""Name of the record of a message that holds the large fields of its other records."""
APART = 1 << 20
"""Bytes of a field above which it travels as an array."""
MOST_APART = 16
"""Such fields of one message: it has two records at most, each of which has a few."""
_BYTES = "privet.bytes"

MOST_PARTS = 1 << 18
"""Commas and opening brackets of a JSON text at most: room for a roster of 100,000 names."""

T = TypeVar("T")
Record = ArrayRecord | ConfigRecord | MetricRecord

_CONFIG, _CONTENT = ConfigRecord(), RecordDict()


def config_record(held: dict[str, Any]) -> ConfigRecord:
    """Return a record that holds, from now on, this very dict."""
    return holding(_CONFIG, held)


def record_dict(held: dict[str, Any]) -> RecordDict:
    """Return a message's content that holds, from now on, this very dict of records."""
    return holding(_CONTENT, held)


def apart(content: RecordDict) -> RecordDict:
    """Return a message's content whose large fields of bytes are arrays of a record of their own.

    To send a field of a ``ConfigRecord`` Flower copies and hashes its bytes a dozen times, the
    chunks of an array twice. The content that is given stays as it is.
    """
    arrays: dict[str, Array] = {}
    records: dict[str, Any] = {}
    for name, record in held_by(content).items():
        fields = held_by(record) if isinstance(record, ConfigRecord) else {}
        large = {
            key: each for key, each in fields.items() if type(each) is bytes and len(each) > APART
        }
        for key, each in large.items():
            arrays[f"{name}/{key}"] = Array("uint8", (len(each),), _BYTES, each)
        kept = {key: each for key, each in fields.items() if key not in large}
        records[name] = config_record(kept) if large else record
    return record_dict({**records, ARRAYS: ArrayRecord(arrays)}) if arrays else content


def joined(content: RecordDict) -> RecordDict:
    """Return the content of `apart` (raises ``WireError`` for arrays that are no such fields)."""
    held = held_by(content)
    if (arrays := held.get(ARRAYS)) is None:
        return content
    if not isinstance(arrays, ArrayRecord) or len(arrays) > MOST_APART:
        raise WireError(f"message has other than 1 to {MOST_APART} large fields in {ARRAYS!r}")
    fields: dict[str, dict[str, Any]] = {}
    for place, array in arrays.items():
        name, _, key = place.rpartition("/")
        record = held.get(name)
        known = array.stype == _BYTES and len(array.data) > APART
        if not known or not isinstance(record, ConfigRecord) or key in held_by(record):
            what = f"an array {place!r:.80} that is no large field of its records"
            raise WireError(f"message has {what}")
        fields.setdefault(name, {})[key] = array.data
    records = {name: record for name, record in held.items() if name != ARRAYS}
    for name, large in fields.items():
        records[name] = config_record({**held_by(held[name]), **large})
    return record_dict(records)


def own_content(content: RecordDict) -> RecordDict:
    """Return a copy of a message's content whose records are ``own_record``s."""
    return record_dict({name: own_record(record) for name, record in held_by(content).items()})


def own_record(record: Record) -> Record:
    """Return a copy of a record that a node may change without anyone else's seeing it.

    Every node gets its own, on every engine: records that messages share are one object on the way
    there, and Flower's ``copy`` of a record still shares its lists. Arrays are values: they are
    replaced, not changed.
    """
    held = held_by(record)
    copied = (
        {name: value[:] if type(value) is list else value for name, value in held.items()}
        if list in map(type, held.values())
        else held.copy()
    )
    return holding(record, copied)


def read_record(content: RecordDict, name: str) -> dict[str, Any]:
    """Return the fields of a message's ConfigRecord (raises ``WireError`` if it is missing)."""
    record = held_by(content).get(name)
    if not isinstance(record, ConfigRecord):
        raise WireError(f"message has no record {name!r}: not a message of this library")
    return dict(held_by(record))


def read_field(held: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """Return a field of exactly this type, or its default if it has one (raises ``WireError``)."""
    value = held.get(name, default)
    if type(value) is not kind:
        raise WireError(f"message field {name!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def parse_json(text: str, what: str, kind: type[T], longest: int) -> T:
    """Return a JSON text as a value of this type.

    Raises
    ------
    WireError
        If it is too long, has too many parts, is not JSON, or of another type; the line begins with
        ``what``, as in "settings are".
    """
    if len(text) > longest:
        raise WireError(f"{what} longer than {longest} characters")
    # An object of Python takes fifty times the characters of an empty one of JSON.
    if sum(map(text.count, ",[{")) > MOST_PARTS:
        raise WireError(f"{what} of more than {MOST_PARTS} parts")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError(f"{what} not JSON") from None
    if not isinstance(value, kind):
        raise WireError(f"{what} not a JSON {'object' if kind is dict else kind.__name__}")
    return value


def content_bytes(content: RecordDict) -> int:
    """Return the summed lengths of all arrays and bytes values, without transport overhead."""
    total = 0
    for record in held_by(content).values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
            continue
        for value in held_by(record).values():
            if isinstance(value, bytes):
                total += len(value)
            elif isinstance(value, list):
                total += sum(len(item) for item in value if isinstance(item, bytes))
    return total
