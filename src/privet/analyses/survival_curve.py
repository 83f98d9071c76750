"""A survival curve by Kaplan and Meier, of counts on a grid of times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .frame import FloatArray

NORMAL_QUANTILE = 1.959963984540054
"""Of 0.975, for intervals of 95 per cent."""


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """The product-limit curve of one group.

        S(t) = prod_{k: t_k <= t} (1 - d_k / n_k)

    Kaplan and Meier (1958), with Greenwood's variance S^2 sum d / (n (n - d)).

    Attributes
    ----------
    time : float64 array (k,)
        The times at which somebody leaves, rising.
    events, censored, at_risk : float64 array (k,)
    """

    time: FloatArray
    events: FloatArray
    censored: FloatArray
    at_risk: FloatArray

    @classmethod
    def of(
        cls, times: FloatArray, events: FloatArray, censored: FloatArray, at_risk: FloatArray
    ) -> SurvivalCurve:
        """Return the curve of counts (K,) on a grid, at the times at which somebody leaves."""
        used = events + censored > 0
        return cls(times[used], events[used], censored[used], at_risk[used])

    @cached_property
    def survival(self) -> FloatArray:
        """S after each time (k,)."""
        return np.asarray(np.cumprod(1.0 - self.events / self.at_risk), np.float64)

    @cached_property
    def _greenwood(self) -> FloatArray:
        """The sums of d / (n (n - d)) up to each time; infinite once S is 0."""
        left = self.at_risk - self.events
        with np.errstate(divide="ignore"):
            terms = np.where(self.events > 0, self.events / (self.at_risk * left), 0.0)
        result: FloatArray = np.cumsum(terms)
        return result

    @cached_property
    def se(self) -> FloatArray:
        """Greenwood's standard error of S (k,); 0 where S is 0."""
        alive = self.survival > 0
        spread = np.where(alive, self._greenwood, 0.0)
        result: FloatArray = self.survival * np.sqrt(spread)
        return result

    def interval(self) -> tuple[FloatArray, FloatArray]:
        """Return S + and - z se, within 0 and 1 (two arrays (k,)); NaN where S is 0."""
        reach = np.where(self.survival > 0, NORMAL_QUANTILE * self.se, np.nan)
        return np.maximum(self.survival - reach, 0.0), np.minimum(self.survival + reach, 1.0)

    def log_log_interval(self) -> tuple[FloatArray, FloatArray]:
        """Return S^exp(+ and - z v), v = sqrt(sum d / (n (n - d))) / log S; NaN where S is 0.

        Symmetric on the scale log(-log S) (Kalbfleisch and Prentice, section 1.4); [1, 1] before
        the first event.
        """
        inside = (self.survival > 0) & (self.survival < 1)
        survival = np.where(inside, self.survival, 0.5)
        with np.errstate(invalid="ignore"):
            reach = NORMAL_QUANTILE * np.sqrt(np.where(inside, self._greenwood, 0.0))
        reach = reach / np.log(survival)
        outside = np.where(self.survival > 0, 1.0, np.nan)
        low = np.where(inside, survival ** np.exp(-reach), outside)
        high = np.where(inside, survival ** np.exp(reach), outside)
        return low, high

    def quantile(self, level: float) -> float:
        """Return the first time with S(t) <= level; infinity where there is none."""
        return first_below(self.time, self.survival, level)

    def median_interval(self) -> tuple[float, float]:
        """Return the times at which the bounds of the log-log interval fall to 1/2.

        Brookmeyer and Crowley (1982), on the scale log(-log S).
        """
        low, high = self.log_log_interval()
        return first_below(self.time, low, 0.5), first_below(self.time, high, 0.5)

    def restricted_mean(self, until: float) -> tuple[float, float]:
        """Return int_0^until S(t) dt and its standard error.

        The variance is sum_k (int_{t_k}^until S)^2 d_k / (n_k (n_k - d_k)) (Klein and
        Moeschberger, Survival Analysis, section 4.5).
        """
        before = self.time < until
        edges = np.concatenate([[0.0], self.time[before], [until]])
        heights = np.concatenate([[1.0], self.survival[before]])
        areas = heights * np.diff(edges)
        beyond = np.cumsum(areas[::-1])[::-1][1:]
        left = self.at_risk[before] - self.events[before]
        used = (self.events[before] > 0) & (left > 0)
        at_risk, events = self.at_risk[before][used], self.events[before][used]
        variance = (beyond[used] ** 2 * events / (at_risk * left[used])).sum()
        return float(areas.sum()), float(np.sqrt(variance))


def first_below(times: FloatArray, heights: FloatArray, level: float) -> float:
    """Return the first time at which the heights are at most the level, or infinity.

    A product that is the level but for rounding counts as the level.
    """
    there = np.flatnonzero(heights <= level * (1.0 + 1e-12))
    return float(times[there[0]]) if len(there) else float("inf")
