"""What one round was: the line that goes into ``history.jsonl``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round.

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
        """Return the line as JSON types: NaN is null, infinity the string "inf"."""
        return {
            "round": self.round,
            "participants": list(self.participants),
            "failures": dict(self.failures),
            "notes": list(self.notes),
            "loss": _number(self.loss),
            "accuracy": _number(self.accuracy),
            "stationarity": _number(self.stationarity),
            "residual": _number(self.residual),
            "bytes-up": self.bytes_up,
            "bytes-down": self.bytes_down,
            "seconds": self.seconds,
            "epsilon": _number(self.epsilon),
            **({"measures": _numbers(self.measures)} if self.measures else {}),
        }

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


def _numbers(values: dict[str, float]) -> dict[str, float | str | None]:
    return {name: _number(value) for name, value in values.items()}


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
