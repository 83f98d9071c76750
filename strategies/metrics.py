"""Averages of what agents measured, of those replies that can be averaged."""

from __future__ import annotations

import logging
import math

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

WEIGHT = "num-examples"

log = logging.getLogger("flwr.privet")


def average_metrics(replies: list[RecordDict], weight: str = WEIGHT) -> MetricRecord | None:
    """Return the mean of each metric, weighted by the one named ``weight``; None without usable
    replies.

    A reply that is not one record of finite numbers with a positive weight, or whose metrics are
    not those of most others, is left out with a warning.
    """
    alike: dict[tuple[str, ...], list[RecordDict]] = {}
    for content in replies:
        alike.setdefault(_names(content, weight), []).append(content)
    alike.pop((), None)
    good = max(alike.values(), key=len, default=[])
    if len(good) < len(replies):
        log.warning("metrics: %d unusable replies left out", len(replies) - len(good))
    return aggregate_metricrecords(good, weight) if good else None


def _names(content: RecordDict, key: str) -> tuple[str, ...]:
    """Return the names of a reply's metrics, none where they cannot be averaged."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        return ()
    values = list(records[0].values())
    weight = records[0].get(key)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return ()
    if not isinstance(weight, int | float) or weight <= 0:
        return ()
    return tuple(sorted(records[0]))
