"""Flower's records, made of what was checked already.

Flower checks every key and value that is put into a record, at 2 us each. What this library built
or has read as the right type need not be asked again; everything else goes through Flower's own
constructors.
"""

from __future__ import annotations

from typing import Any, TypeVar

from flwr.app import ConfigRecord, MetricRecord, RecordDict

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
