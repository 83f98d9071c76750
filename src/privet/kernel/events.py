"""Privacy-critical: releases of an agent, described so that an accountant needs nothing else.

The split follows dp_accounting's: events say what happened, `accountant` says what it costs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_args

from .bounded import Relation
from .cyclic import MOST_BANDS, width
from .records import Norm

Mechanism: TypeAlias = Literal["gaussian", "laplace", "none"]
Scalar: TypeAlias = str | int | float | bool

SMALLEST, LARGEST = 1e-100, 1e100
"""Bounds of a noised release's scale and sensitivity."""

GRID = 2.0**-12
"""Rounding to the grid moves a value by at most this share of min(sensitivity, scale)."""
SHARED_GRID = 2.0**-16
"""With shared noise: by at most this share of the scale, which all agents know."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "mechanism": get_args(Mechanism),
    "norm": get_args(Norm),
    "relation": get_args(Relation),
}
UNITS: Mapping[str, str] = {
    "replace-one": "one record of one agent",
    "add-remove": "one record of one agent",
    "replace-agent": "all records of one agent",
}
"""The unit that an epsilon protects, by the neighbouring relation; their number is public."""
_NORM_OF = {"gaussian": "l2", "laplace": "l1", "none": "l2"}
_ALWAYS_WRITTEN = ("mechanism", "scale", "sensitivity", "relation")
LONGEST_TEXT = 200
LARGEST_COUNT = 10**12


@dataclass(frozen=True, slots=True)
class Release:
    """One message's worth of release: `count` adaptive uses of one mechanism on one agent's data.

    Parameters
    ----------
    mechanism
        "gaussian", "laplace", or "none" for anything that leaves without noise (its cost is
        infinite).
    scale
        Standard deviation sigma (gaussian) or scale b (laplace) of one draw on each coordinate:
        the number that is drawn with and charged.
    sensitivity
        Largest change of the value handed to the noise between neighbours, in `norm`: L2 for
        gaussian, L1 for laplace. It belongs to `relation`: no accountant doubles it.
    norm
        "l2" or "l1".
    count
        Number of uses of the mechanism within the message (E inner steps, for example).
    relation
        Neighbouring relation: a neighbour differs by one record ("replace-one", "add-remove") or
        by all records of the agent ("replace-agent").
    what
        Short description for reports.
    steps
        Noised steps of one use of which only the last iterate is released; Gaussian noise only.
    contraction
        chi in [0, 1], the Lipschitz constant of such a step.
    agents
        Agents in the masked sum that is all an observer sees of the message, this one included;
        each adds noise of this scale. 1 for an upload in clear; Gaussian noise in one step only.
    colluders
        Number of the other agents that may help the observer, or add no noise.
    sampling
        q in (0, 1]: each record takes part in a use with this probability, by a coin of its own
        that is tossed afresh and stays on the node (`privet.kernel.sampled`). 1 for all that takes
        every record, or rows that others know. Below 1 for Gaussian noise in one step and relation
        "add-remove" only.
    batches
        b of batches in turn, each record in one use of b (`privet.kernel.cyclic`); 1 for all that
        takes other rows. Above 1 for Gaussian noise in one step, in clear, and relation
        "replace-one" only.
    place
        Of the first use, among the batches: 0 begins a cycle, which the first use is charged for.
    bands
        Uses in a row whose noise is correlated; at most b.
    program
        The program that is charged (`privet.kernel.programs`), and the only one that `Records` then
        runs; not written to ledgers.

    Raises
    ------
    ValueError
        Naming the field: an unknown choice, a norm that does not fit the mechanism, a count that
        is no positive integer, or a scale or sensitivity outside [1e-100, 1e100] where there is
        noise.
    """

    mechanism: Mechanism
    scale: float = 0.0
    sensitivity: float = 1.0
    norm: Norm = "l2"
    count: int = 1
    relation: Relation = "replace-one"
    what: str = ""
    steps: int = 1
    contraction: float = 1.0
    agents: int = 1
    colluders: int = 0
    sampling: float = 1.0
    batches: int = 1
    place: int = 0
    bands: int = 1
    program: str = field(default="", compare=False)

    @property
    def deviation(self) -> float:
        """Standard deviation of one draw on each coordinate."""
        return self.scale * math.sqrt(2.0) if self.mechanism == "laplace" else self.scale

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in ("scale", "sensitivity"):
            object.__setattr__(self, name, self._bounded(name))
        for name in ("count", "steps", "agents"):
            object.__setattr__(self, name, _positive_count(name, getattr(self, name)))
        if type(self.colluders) is not int or not 0 <= self.colluders <= LARGEST_COUNT:
            raise ValueError(
                f"release field 'colluders' is {str(self.colluders)[:40]!r}, expected an integer "
                "from 0 to 1e12"
            )
        object.__setattr__(self, "contraction", _number("contraction", self.contraction))
        if self.contraction > 1:
            raise ValueError(
                f"release field 'contraction' is {self.contraction!r}, expected a number in [0, 1]"
            )
        if not isinstance(self.what, str) or len(self.what) > LONGEST_TEXT:
            raise ValueError(f"release field 'what' is not a text of at most {LONGEST_TEXT}")
        if self.mechanism != "none" and self.norm != _NORM_OF[self.mechanism]:
            raise ValueError(
                f"release field 'norm' is {self.norm!r}, but {self.mechanism} noise needs the "
                f"{_NORM_OF[self.mechanism]} sensitivity"
            )
        if self.steps > 1 and self.mechanism != "gaussian":
            raise ValueError(
                f"release field 'steps' is {self.steps}, but hidden steps have a bound for "
                f"gaussian noise only, not for {self.mechanism!r}"
            )

        object.__setattr__(self, "sampling", _number("sampling", self.sampling))
        if not 0 < self.sampling <= 1:
            raise ValueError(
                f"release field 'sampling' is {self.sampling!r}, expected a number in (0, 1]"
            )
        proven = self.mechanism == "gaussian" and self.steps == 1
        if self.sampling < 1 and not (proven and self.relation == "add-remove"):
            raise ValueError(
                f"release field 'sampling' is {self.sampling:g}, but sampled records have a proof "
                "for gaussian noise in one step under relation 'add-remove' only"
            )
        if self.agents > 1 and (self.mechanism != "gaussian" or self.steps > 1):
            raise ValueError(
                f"release field 'agents' is {self.agents}, but noise is shared out as gaussian "
                "noise in one step only"
            )
        self._check_batches(proven and self.sampling == 1 and self.agents == 1)

    def _check_batches(self, proven: bool) -> None:
        for name in ("batches", "bands"):
            object.__setattr__(self, name, _positive_count(name, getattr(self, name)))
        if type(self.place) is not int or not 0 <= self.place < self.batches:
            raise ValueError(
                f"release field 'place' is {str(self.place)[:40]!r}, expected an integer from 0 to "
                "batches - 1"
            )
        if self.batches > 1 and not (proven and self.relation == "replace-one"):
            raise ValueError(
                f"release field 'batches' is {self.batches}, but batches in turn have a proof for "
                "gaussian noise in one step, in clear, under relation 'replace-one' only"
            )
        if self.bands > min(self.batches, MOST_BANDS):
            raise ValueError(
                f"release field 'bands' is {self.bands}, expected at most batches, "
                f"{self.batches}, and {MOST_BANDS}"
            )

    def _bounded(self, name: str) -> float:
        number = _number(name, getattr(self, name))
        if self.mechanism != "none" and not SMALLEST <= number <= LARGEST:
            raise ValueError(
                f"release field {name!r} is {number!r}, expected a number from {SMALLEST:g} to "
                f"{LARGEST:g}"
            )
        return number

    @property
    def loss(self) -> float:
        """Privacy loss of one use: Gaussian-DP mu, or Laplace's pure epsilon; inf without noise.

        Of a sampled record it is the loss given that the record takes part.

        With s' = sensitivity + min(sensitivity, scale) / 4096, which covers the rounding of the
        value to the grid of the noise, it is s' / scale for one step. Of n steps w <- F(w) + noise,
        each moved by at most s and chi-Lipschitz, of which the last iterate alone is released,

            mu = s' sum_{j<n} chi^j / (scale sqrt(sum_{j<n} chi^{2j})),

        because the influence and the noise of step n - j are both contracted j times.

        Of a masked sum over n agents, t of whom may collude, the observer is left with the noise of
        n - t agents at least, this one's among them: a Gaussian of deviation scale sqrt(n - t), to
        which rounding adds what depends on no record (see `privet.kernel.perturb`).
        """
        if self.mechanism == "none":
            return math.inf
        if self.agents > 1:
            rounding = self.scale * SHARED_GRID
        else:
            rounding = min(self.sensitivity, self.scale) * GRID
        return (self.sensitivity + rounding) * self._spread / self.scale

    @property
    def noise_multiplier(self) -> float:
        """The noise as a multiple of what one record can change: 1 / loss but for the grid's
        rounding; 0 without noise."""
        if self.mechanism == "none":
            return 0.0
        return self.scale / (self.sensitivity * self._spread)

    @property
    def honest(self) -> int:
        """Number of agents whose noise hides a record, this one included."""
        return max(self.agents - self.colluders, 1)

    @property
    def _spread(self) -> float:
        """A record's influence relative to the noise, over that of one step sent in clear."""
        if self.steps == 1:
            return 1.0 / math.sqrt(self.honest)
        chi = self.contraction
        return geometric(chi, self.steps) / math.sqrt(geometric(chi * chi, self.steps))

    @property
    def uses(self) -> int:
        """Number of uses that a record takes part in and that were not charged before.

        Of batches in turn it is the number of cycles that are begun.
        """
        return -(-(self.place + self.count) // self.batches) - -(-self.place // self.batches)

    @property
    def drawn(self) -> float:
        """Scale of one draw, of which the noise is made where it is in bands."""
        return self.scale * width(self.bands)

    @property
    def draws(self) -> int:
        """Number of noise vectors that the message takes: count * steps; 0 without noise."""
        return 0 if self.mechanism == "none" else self.count * self.steps

    def to_dict(self) -> dict[str, Scalar]:
        """Return the fields as a flat mapping of JSON scalars, those at their defaults left out.

        mechanism, scale, sensitivity and relation are always there; the norm follows from the
        mechanism unless it is written.
        """
        implied = {**_DEFAULTS, "norm": _NORM_OF[self.mechanism]}
        return {
            name: getattr(self, name)
            for name in _FIELDS
            if name in _ALWAYS_WRITTEN or getattr(self, name) != implied[name]
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Release:
        """Rebuild a release from `to_dict`'s output.

        The mapping may come from outside: no field may be unknown and all values are validated.

        Raises
        ------
        ValueError
            One line that names the offending field.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"release is a {type(mapping).__name__}, expected a mapping")
        for key in mapping:
            if key not in _FIELDS:
                raise ValueError(f"release field {str(key)[:40]!r} is unknown")
        for name in _ALWAYS_WRITTEN:
            if name not in mapping:
                raise ValueError(f"release field {name!r} is missing")
        known = dict(mapping)
        mechanism = known["mechanism"]
        if isinstance(mechanism, str) and mechanism in _NORM_OF:
            known.setdefault("norm", _NORM_OF[mechanism])
        return cls(**known)


_DEFAULTS = {each.name: each.default for each in fields(Release) if each.compare}
_FIELDS = tuple(_DEFAULTS)
"""The names in the order in which they are written."""


def geometric(ratio: float, terms: int) -> float:
    """Return sum_{j < terms} ratio^j for 0 <= ratio <= 1, stable near 1."""
    if ratio == 0:
        return 1.0
    if ratio == 1:
        return float(terms)
    exponent = math.log(ratio)
    return math.expm1(terms * exponent) / math.expm1(exponent)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"release field {name!r} is {str(value)[:40]!r}, expected one of {', '.join(choices)}"
        )


def _positive_count(name: str, value: object) -> int:
    """Return value as an int from 1 to 1e12, refusing booleans, floats and texts."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if not 1 <= count <= LARGEST_COUNT:
        shown = str(value)[:40]
        raise ValueError(f"release field {name!r} is {shown!r}, expected an integer from 1 to 1e12")
    return count


def _number(name: str, value: object) -> float:
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
