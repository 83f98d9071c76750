"""Release events: what left an agent, described so that an accountant needs nothing else.

The split follows dp_accounting's: events say what happened, `accountant` says what it costs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

Mechanism: TypeAlias = Literal["gaussian", "laplace", "none"]
Norm: TypeAlias = Literal["l1", "l2"]
Sampling: TypeAlias = Literal["none", "poisson", "without-replacement", "shuffled"]
Relation: TypeAlias = Literal["replace-one", "add-remove"]
Audience: TypeAlias = Literal["coordinator", "world"]
Scalar: TypeAlias = str | int | float | bool

_CHOICES: dict[str, tuple[str, ...]] = {
    "mechanism": get_args(Mechanism),
    "norm": get_args(Norm),
    "sampling": get_args(Sampling),
    "relation": get_args(Relation),
    "unit": ("record",),
    "to": get_args(Audience),
}
_NORM_OF = {"gaussian": "l2", "laplace": "l1"}
_LONGEST_TEXT = 200
_LARGEST_COUNT = 10**12


@dataclass(frozen=True, slots=True)
class Release:
    """One message's worth of release: `count` adaptive uses of one mechanism on one agent's data.

    Parameters
    ----------
    mechanism
        "gaussian", "laplace", or "none" for anything that leaves without noise (its cost is
        infinite).
    scale
        Standard deviation (gaussian) or scale b (laplace) of the noise on each coordinate.
    sensitivity
        Largest change of the un-noised value between neighbours, in `norm`: L2 for gaussian, L1
        for laplace. It belongs to `relation`: no accountant doubles it.
    norm
        "l2" or "l1".
    count
        How many times the mechanism was used within the message (E inner steps, for example).
    sampling
        "none", or the name of a subsampling scheme, which the accountant refuses: no algorithm
        here may claim amplification.
    relation
        Neighbouring relation, "replace-one" or "add-remove".
    unit
        "record".
    to
        "coordinator" or "world".
    what
        Short description for reports.

    Raises
    ------
    ValueError
        Naming the field, for an unknown choice, NaN, infinity or a negative number, a norm that
        does not fit the mechanism, or scale and sensitivity that are both zero.
    """

    mechanism: Mechanism
    scale: float = 0.0
    sensitivity: float = 1.0
    norm: Norm = "l2"
    count: int = 1
    sampling: Sampling = "none"
    relation: Relation = "replace-one"
    unit: str = "record"
    to: Audience = "coordinator"
    what: str = ""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                shown = str(value)[:40]
                raise ValueError(
                    f"release field {name!r} is {shown!r}, expected one of {', '.join(choices)}"
                )
        for name in ("scale", "sensitivity"):
            object.__setattr__(self, name, _non_negative(name, getattr(self, name)))
        object.__setattr__(self, "count", _positive_count(self.count))
        if not isinstance(self.what, str) or len(self.what) > _LONGEST_TEXT:
            raise ValueError(f"release field 'what' is not a text of at most {_LONGEST_TEXT}")
        if self.norm != _NORM_OF.get(self.mechanism, self.norm):
            raise ValueError(
                f"release field 'norm' is {self.norm!r}, but {self.mechanism} noise needs the "
                f"{_NORM_OF[self.mechanism]} sensitivity"
            )
        if self.mechanism != "none" and self.scale == 0 and self.sensitivity == 0:
            raise ValueError("release fields 'scale' and 'sensitivity' are both 0: no multiplier")

    @property
    def noise_multiplier(self) -> float:
        """scale / sensitivity: 0 without noise, inf when the data do not influence the value."""
        if self.mechanism == "none":
            return 0.0
        if self.sensitivity == 0:
            return math.inf
        return self.scale / self.sensitivity

    @property
    def loss(self) -> float:
        """sensitivity / scale: the Gaussian-DP parameter mu, or Laplace's pure epsilon, per use."""
        if self.mechanism == "none":
            return math.inf
        if self.scale == 0:
            return math.inf
        return self.sensitivity / self.scale

    def to_dict(self) -> dict[str, Scalar]:
        """Return the fields as a flat mapping of JSON scalars."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Release:
        """Rebuild a release from `to_dict`'s output.

        The mapping may come from outside: every field must be present, none may be unknown, and
        all values are validated.

        Raises
        ------
        ValueError
            One line that names the offending field.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"release is a {type(mapping).__name__}, expected a mapping")
        if mapping.keys() != _FIELDS.keys():
            for key in mapping:
                if key not in _FIELDS:
                    raise ValueError(f"release field {str(key)[:40]!r} is unknown")
            for name in sorted(_FIELDS):
                if name not in mapping:
                    raise ValueError(f"release field {name!r} is missing")
        return cls(**mapping)


_FIELDS = {field.name: None for field in fields(Release)}
"""The names in the order in which they are written."""


def _positive_count(value: object) -> int:
    """Return value as an int from 1 to 1e12, refusing booleans, floats and texts."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if not 1 <= count <= _LARGEST_COUNT:
        shown = str(value)[:40]
        raise ValueError(f"release field 'count' is {shown!r}, expected an integer from 1 to 1e12")
    return count


def _non_negative(name: str, value: object) -> float:
    """Return value as a float, refusing booleans, texts, NaN, infinity and negative numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"release field {name!r} is {str(value)[:40]!r}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"release field {name!r} is {number!r}, expected a finite number >= 0")
    return number
