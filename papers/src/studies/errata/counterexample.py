"""What a counterexample is, and the erratum that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

Number: TypeAlias = Fraction | float
"""Exact where the arithmetic allows."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """One instance that meets all that a statement asks, and what it breaks.

    Attributes
    ----------
    instance : mapping
        The numbers that name it.
    measured : str
        What is bounded.
    found : Fraction or float
        Its value here, or a bound from below.
    claimed : Fraction or float
        The most that the printed statement allows.
    corrected : Fraction, float or None
        The most that the corrected statement allows; None where it promises nothing here.
    """

    instance: Mapping[str, Any]
    measured: str
    found: Number
    claimed: Number
    corrected: Number | None = None

    @property
    def refutes(self) -> bool:
        """Whether more was found than the printed statement allows."""
        return self.found > self.claimed

    @property
    def agrees(self) -> bool:
        """Whether the corrected statement holds here, rounding apart."""
        return self.corrected is None or self.found <= self.corrected * (1 + 1e-9) + 1e-12


@dataclass(frozen=True, slots=True)
class Erratum:
    """A statement of a paper that does not hold.

    Attributes
    ----------
    name : str
        ``paper/statement`` as on the command line, e.g. ``fed-plt/prop-3``.
    claim : str
        What the paper states, in our words.
    correction : str
        What holds in its place.
    counterexample : callable
        Its defaults are the instance that refutes the claim; it takes others, on which the
        corrected statement is tested.
    """

    name: str
    claim: str
    correction: str
    counterexample: Callable[[], Counterexample]
