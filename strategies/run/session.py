"""What a run knows between its rounds: its state, its agents, and the history of its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from privet.wire import Layout

from .roster import Roster


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: a line of ``history.jsonl``.

    Attributes
    ----------
    round : int
        Counted from 1.
    participants : tuple of str
        Agents whose upload was folded.
    failures : dict of str to str
        Agents that were asked and not folded, with the reason.
    notes : tuple of str
        What else should be known, e.g. an agent that was sent its state again.
    loss, accuracy, stationarity : float
        From the server's monitor; NaN where not evaluated.
    residual : float
        The algorithm's squared fixed-point residual.
    bytes_up, bytes_down : int
        Array and bytes lengths of the messages, without transport.
    seconds : float
        Wall time of the round with its evaluation.
    epsilon : float
        Largest total epsilon an agent has reported; infinity where a reply was not private.
    measures : dict of str to float
        What else the algorithm or the monitor measures, by kebab-case name.
    """

    round: int
    participants: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loss: float = math.nan
    accuracy: float = math.nan
    stationarity: float = math.nan
    residual: float = math.nan
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    epsilon: float = math.inf
    measures: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the line of ``history.jsonl`` as JSON types: NaN is null, infinity "inf".

        Without measures it has no such entry.
        """
        line = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.measures:
            del line["measures"]
        return {name.replace("_", "-"): _json(value) for name, value in line.items()}

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> Round:
        """Return the round of ``to_dict``."""
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in line.items()}
        for name in ("loss", "accuracy", "stationarity", "residual", "epsilon"):
            values[name] = _float(values[name])
        values["measures"] = {k: _float(v) for k, v in values.get("measures", {}).items()}
        values["participants"] = tuple(values["participants"])
        values["notes"] = tuple(values["notes"])
        return cls(**values)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


@dataclass
class Session:
    """The state of one run on the server."""

    experiment: str
    layout: Layout
    start: NDArray[Any]
    state: Any
    roster: Roster
    round: int = 0
    history: list[Round] = field(default_factory=list)
    settings_before: Mapping[str, Any] = field(default_factory=dict)
    """The agents' settings before a resume, empty in a run that was not resumed."""

    @classmethod
    def of(cls, experiment: str, arrays: ArrayRecord) -> Session:
        """Return the session of a run that starts from a model: without state and agents yet."""
        layout = Layout.of(arrays)
        return cls(experiment, layout, layout.flatten(arrays), None, Roster())
