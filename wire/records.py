"""Flower's records, made of what was checked already, and read with a check of every field.

Flower checks every key and value that is put into a record, at 2 us each. What this library built
or has read as the right type need not be asked again; everything else goes through Flower's own
constructors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from .errors import WireError

T = TypeVar("T")
Kind = TypeVar("Kind", ConfigRecord, MetricRecord, RecordDict)

_CONFIG, _METRIC, _CONTENT = ConfigRecord(), MetricRecord(), RecordDict()


def config_record(held: dict[str, Any]) -> ConfigRecord:
    """Return a record that holds, from now on, this very dict."""
    return _holding(_CONFIG, held)


def metric_record(held: dict[str, Any]) -> MetricRecord:
    """Return a record that holds, from now on, this very dict."""
    return _holding(_METRIC, held)


def record_dict(held: dict[str, Any]) -> RecordDict:
    """Return a message's content that holds, from now on, this very dict of records."""
    return _holding(_CONTENT, held)


def _holding(empty: Kind, held: dict[str, Any]) -> Kind:
    # What Flower's own ``copy`` of a record does, without the copy of what it holds.
    made = type(empty).__new__(type(empty))
    made.__dict__.update(empty.__dict__, _data=held)
    return made


def read_record(content: RecordDict, name: str) -> dict[str, Any]:
    """Return what a ConfigRecord of a message holds (raises ``WireError`` if it is not there)."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise WireError(f"message has no record {name!r}: not a message of this library")
    # A plain dict answers several times faster than Flower's.
    return dict(record.items())


def read_field(held: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a field of exactly this type (raises ``WireError``)."""
    value = held.get(name)
    if type(value) is not kind:
        raise WireError(f"message field {name!r} is {type(value).__name__}, not {kind.__name__}")
    return value
