"""The arguments of Flower's own FedAvg, in this library's terms.

A strategy called with them samples, waits, evaluates and aggregates metrics as
``flwr.serverapp.strategy.FedAvg`` does; what an algorithm sends and averages stays its own.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from heapq import nlargest
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from privet.core import ConfigError
from privet.core.errors import listed
from privet.kernel import stream
from privet.wire import AGENT_RECORD, RECORD
from privet.wire.flower_internals import held_by

from ..participation import Participation
from ..roster import Roster

log = logging.getLogger("flwr.privet")

WEIGHT = "num-examples"
MOST_METRICS = 300
"""Metrics that are read of a reply, the numbers of lists included; one with more is left out."""

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


_OF_FEDAVG = {
    "fraction_train": (
        "share of the agents that take part in a round, in place of ``participation``; > 0"
    ),
    "min_train_nodes": (
        "the least number of agents of a round, if that many are enrolled; FedAvg's default is 2"
    ),
    "min_evaluate_nodes": (
        "the least number of agents of a federated evaluation, if ``fraction_evaluate`` > 0; "
        "FedAvg's default is 2"
    ),
    "min_available_nodes": (
        "nodes that must be connected before a round begins; waits ``wait_timeout`` for them"
    ),
    "weighted_by_key": "the metric that weighs a reply's metrics in averages",
    "arrayrecord_key": "name of the model's record in an evaluation message",
    "configrecord_key": (
        "name of the config's record in an evaluation message. A training message has it "
        "where there is a ``train_config``; the model travels in Privet's own record"
    ),
    "train_metrics_aggr_fn": (
        "``(list of RecordDict, weighted_by_key) -> MetricRecord`` in place of the weighted "
        "mean of the metrics that came with uploads"
    ),
    "evaluate_metrics_aggr_fn": "the same for the metrics of a federated evaluation",
}
"""What each argument of `FlowerOptions` is."""


@dataclass(frozen=True, slots=True)
class FlowerOptions:
    """FedAvg's arguments; these require one node, FedAvg's two."""

    fraction_train: float | None = None
    min_train_nodes: int = 1
    min_evaluate_nodes: int = 1
    min_available_nodes: int = 0
    weighted_by_key: str = WEIGHT
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: Aggregate | None = None
    evaluate_metrics_aggr_fn: Aggregate | None = None

    def __post_init__(self) -> None:
        share = self.fraction_train
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"fraction-train = {share!r}: must be > 0 and <= 1")
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name.replace('_', '-')} must be >= 0")
        if self.configrecord_key in (RECORD, AGENT_RECORD):
            raise ConfigError(f"configrecord-key = {self.configrecord_key!r}: a record of Privet's")

    def participation(self, given: Participation | None) -> Participation | None:
        """Return the participation: FedAvg's sample if ``fraction_train`` is given."""
        if self.fraction_train is None:
            return given
        if given is not None:
            raise ConfigError("give participation or fraction-train, not both")
        return NodeSample(self.fraction_train, self.min_train_nodes)

    def evaluators(self, fraction: float, round_: int, roster: Roster, seed: int) -> list[int]:
        """Return the nodes of the connected agents that are chosen for an evaluation."""
        names = [name for name in roster.names if roster.connected(name)]
        if not names:
            return []
        chosen = NodeSample(fraction, self.min_evaluate_nodes).draw(
            "evaluation", round_, names, seed
        )
        return [roster.agents[name].node for name in chosen]

    def evaluation(self, arrays: ArrayRecord, config: Mapping[str, Any]) -> RecordDict:
        """Return the content of an evaluation message."""
        return RecordDict(
            {self.arrayrecord_key: arrays, self.configrecord_key: ConfigRecord(dict(config))}
        )

    def beside(self, config: Mapping[str, Any], round_: int) -> dict[str, ConfigRecord]:
        """Return what a training message holds for the agents' own handlers, if anything."""
        if not config:
            return {}
        return {self.configrecord_key: ConfigRecord({**config, "server-round": round_})}

    def train_metrics(self, replies: Iterable[RecordDict]) -> MetricRecord | None:
        """Aggregate the metrics that came with a round's uploads; None where there are none."""
        return self._aggregate(replies, self.train_metrics_aggr_fn, "training")

    def evaluate_metrics(self, replies: Iterable[RecordDict]) -> MetricRecord | None:
        """Aggregate the metrics of a federated evaluation; None where there are none."""
        return self._aggregate(replies, self.evaluate_metrics_aggr_fn, "evaluation")

    def _aggregate(
        self, replies: Iterable[RecordDict], aggregate: Aggregate | None, what: str
    ) -> MetricRecord | None:
        # RecordDict.metric_records makes a dict that refers to its own maker, for the collector.
        measured = [one for one in replies if _metric_records(one)]
        kept = [one for one in measured if _is_legible(one)]
        if len(kept) < len(measured):
            log.warning(
                "%s metrics: %d replies left out, which hold more than %d, or names that cannot be "
                "printed",
                *(what, len(measured) - len(kept), MOST_METRICS),
            )
        measured = kept
        if not measured:
            return None
        if aggregate is None:
            return average_metrics(measured, self.weighted_by_key)
        try:
            return aggregate(measured, self.weighted_by_key)
        except Exception:  # whatever an agent reports must not end the run
            log.exception("%s metrics of this round could not be aggregated", what)
            return None


OBJECTS: Mapping[str, tuple[str, Any, str]] = {
    "participation": ("Participation | None", None, "who takes part in a round; all by default"),
    "fraction_evaluate": (
        "float",
        0.0,
        "share of the agents asked for a federated evaluation after each round, as in FedAvg; 0 "
        "asks none. Agents in a private run decline: an evaluation is an un-noised release",
    ),
    "agent_weights": (
        'Literal["equal", "examples"]',
        "equal",
        "what an agent counts. Equal: the objective is sum_i f_i + h, with f_i a mean over the "
        "agent's n_i examples. Examples: it is sum_i (n_i / n) f_i + h with n the mean of the n_i "
        "in the first round, as FedAvg weighs them; the gradients of agent i are that much longer, "
        "and every method reaches what it then reaches on these f_i. Not in private runs, nor for "
        "dp-iadmm, whose f_i count examples alike in any case. Units of gfl remain equal",
    ),
    "monitor": (
        "Monitor | None",
        None,
        '``(round, models) -> {"loss": ..., "accuracy": ..., "stationarity": ...}`` on the server',
    ),
    **{
        # This module's annotations are texts.
        one.name: (str(one.type), one.default, _OF_FEDAVG[one.name])
        for one in fields(FlowerOptions)
    },
}
"""Arguments of every strategy that are no run-config keys: type, default, and what they are."""


def average_metrics(replies: list[RecordDict], weight: str = WEIGHT) -> MetricRecord | None:
    """Return the mean of each metric, weighted by the one named ``weight``; None without usable
    replies.

    A reply that is not one record of finite numbers with a positive weight is left out with a
    warning. So is a metric that fewer than half of the others have; one that is missing in fewer,
    such as the AUC of agents with one class, is the mean of those that have it.
    """
    usable = [one for one in (_usable(content, weight) for content in replies) if one]
    if len(usable) < len(replies):
        log.warning("metrics: %d unusable replies left out", len(replies) - len(usable))
    reporting = Counter(name for one in usable for name in one if name != weight)
    rare = sorted(name for name, count in reporting.items() if 2 * count < len(usable))
    if rare:
        log.warning("metrics: %s left out, as most replies lack it", listed(rare))
    means: dict[str, Any] = {
        name: _mean(usable, name, weight) for name in reporting if name not in rare
    }
    return MetricRecord(means) if usable else None


def _mean(records: list[dict[str, float]], name: str, weight: str) -> float:
    """Return the weighted mean of a metric over those that report it, as FedAvg takes it."""
    having = [one for one in records if name in one]
    total = sum(one[weight] for one in having)
    return sum(one[name] * (one[weight] / total) for one in having)


def _metric_records(content: RecordDict) -> list[MetricRecord]:
    return [one for one in content.values() if isinstance(one, MetricRecord)]


def _count(content: RecordDict) -> int:
    """Return how many numbers a reply's metrics hold, lists of them too; a long name is several."""
    records = _metric_records(content)
    held = [(name, value) for record in records for name, value in held_by(record).items()]
    lists = sum(len(value) for _, value in held if isinstance(value, list))
    return len(records) + len(held) + lists + sum(len(name) // 100 for name, _ in held)


def _is_legible(content: RecordDict) -> bool:
    """Whether a reply's metrics are few, and their names can be in a log."""
    names = (name for record in _metric_records(content) for name in held_by(record))
    return _count(content) <= MOST_METRICS and all(map(str.isprintable, names))


def usual_loss(replies: Iterable[RecordDict], weight: str = WEIGHT) -> float:
    """Return the second largest of the losses among replies' metrics, an only one, else NaN.

    No single agent raises it above all others', which raises the mean as it likes.
    """
    usable = (_usable(content, weight) for content in replies if _is_legible(content))
    losses = [float(one["loss"]) for one in usable if "loss" in one]
    return nlargest(2, losses)[-1] if losses else math.nan


def _usable(content: RecordDict, weight: str) -> dict[str, float]:
    """Return a reply's metrics, none where they cannot be averaged."""
    records = _metric_records(content)
    numbers: dict[str, Any] = dict(records[0]) if len(records) == 1 else {}
    most = sys.float_info.max  # a whole number may be larger, where it is no 64 bits
    if not all(isinstance(one, int | float) and abs(one) <= most for one in numbers.values()):
        return {}
    return numbers if numbers.get(weight, 0) > 0 else {}


@dataclass(frozen=True, slots=True)
class NodeSample:
    """As many agents as FedAvg samples: max(int(fraction N), least), at most N, uniformly."""

    fraction: float
    least: int = 1

    def count(self, total: int) -> int:
        """Return the number of agents that are drawn of ``total``."""
        return min(total, max(int(total * self.fraction), self.least, 1))

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the sampled names."""
        return self.draw("participation", round_, names, seed)

    def draw(self, purpose: str, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return a sample of the named stream."""
        rng = stream(seed, purpose, round_=round_)
        chosen = rng.choice(len(names), size=self.count(len(names)), replace=False)
        return [names[i] for i in sorted(chosen)]
