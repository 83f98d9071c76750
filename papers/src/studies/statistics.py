"""Means over seeds with 95 % intervals: Student's t on the measured spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

LEVEL = 0.95
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions.

    Attributes
    ----------
    mean : float
    half_width : float
        Of the 95 % interval t_{n-1} s / sqrt(n); 0 for a single, exact value.
    count, tried : int
        Repetitions that gave a number, of how many.
    """

    mean: float
    half_width: float = 0.0
    count: int = 1
    tried: int = 1

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Estimate:
        """Return the mean of what is finite; None and infinities count as tried only."""
        import numpy as np  # help on the commands asks for none

        finite = [float(one) for one in values if one is not None and math.isfinite(one)]
        if not finite:
            return cls(math.nan, math.nan, 0, len(values))
        half = 0.0
        if len(finite) > 1:
            half = student(len(finite)) * float(np.std(finite, ddof=1)) / math.sqrt(len(finite))
        return cls(float(np.mean(finite)), half, len(finite), len(values))

    @property
    def complete(self) -> bool:
        """Whether every repetition gave a number."""
        return self.count == self.tried

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def at(self, chance: float) -> Estimate:
        """Return the estimate with the interval that misses with this chance, in place of 5 %."""
        if self.half_width <= 0 or self.count < 2:
            return self
        wider = student(self.count, chance) / student(self.count)
        return replace(self, half_width=wider * self.half_width)

    @property
    def chance(self) -> float:
        """The chance of a mean as far from 0, if it were 0: of Student's t, two-sided; NaN of one
        value."""
        from scipy.stats import t

        if self.count < 2 or math.isnan(self.mean):
            return math.nan
        if self.half_width <= 0:
            return float(self.mean == 0)
        far = abs(self.mean) / self.half_width * student(self.count)
        return float(2 * t.sf(far, self.count - 1))

    def below(self, bound: float) -> Estimate:
        """Return how far this lies below a bound."""
        return Estimate(bound - self.mean, self.half_width, self.count, self.tried)

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference to an independent estimate."""
        half = math.hypot(self.half_width, other.half_width)
        count, tried = min(self.count, other.count), min(self.tried, other.tried)
        return Estimate(self.mean - other.mean, half, count, tried)

    def __str__(self) -> str:
        if not self.count:
            return f"0 of {self.tried} arrive"
        text = f"{self.mean:.4g}"
        if self.half_width > 0:
            text = f"{self.mean:.4g} ± {self.half_width:.2g}"
        return text if self.complete else f"{text} ({self.count} of {self.tried} arrive)"


@cache
def student(count: int, chance: float = 1 - LEVEL) -> float:
    """Return Student's t for a mean of ``count`` values, which it misses with a chance of 5 %."""
    from scipy.stats import t

    return float(t.isf(chance / 2, count - 1))


def welch(ours: Sequence[float], other: Sequence[float], chance: float = 1 - LEVEL) -> Estimate:
    """Return the mean of ours - other of independent runs, by Welch's t at 1 - ``chance``."""
    import numpy as np
    from scipy.stats import t

    shares = [float(np.var(one, ddof=1)) / len(one) for one in (ours, other)]
    spread, count = sum(shares), min(len(ours), len(other))
    gap = float(np.mean(ours) - np.mean(other))
    if spread <= 0:
        return Estimate(gap, 0.0, count, count)
    pairs = zip(shares, (ours, other), strict=True)
    degrees = spread**2 / sum(share**2 / (len(one) - 1) for share, one in pairs)
    half = float(t.isf(chance / 2, degrees)) * math.sqrt(spread)
    return Estimate(gap, half, count, count)


def common(*own: Sequence[Value]) -> list[Sequence[Value]]:
    """Return values by seed, cut to the seeds that all were played with."""
    count = min(map(len, own))
    return [one[:count] for one in own]


def against(ours: Sequence[float], other: Sequence[float]) -> str:
    """Return two means in per cent with their intervals, over the seeds that both have."""
    own, its = map(Estimate.of, common(ours, other))
    return f"{own} against {its} %"


def difference(ours: Sequence[float | None], other: Sequence[float | None]) -> Estimate:
    """Return the mean of ours - other, paired over the seeds that both were played with.

    Pairs of which one gave no number count as tried.
    """
    pairs = zip(*common(ours, other), strict=True)
    return Estimate.of([None if a is None or b is None else a - b for a, b in pairs])
