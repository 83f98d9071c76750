"""Cox's partial likelihood of one stratum: who is at risk when somebody dies, and sums over these.

Everything is a sum over *parts* of the times of death: by Breslow (1974) a time has one part, which
weighs as much as all who die then; by Efron (1977) it has as many as die, of the mean weight each,
and in part l of d those who die count 1 - l / d. With r_i = w_i exp(x_i' b) and the counts c_ia of
row i in part a (0 where it is not at risk),

    D_a = sum_i c_ia r_i,   m_a = sum_i c_ia r_i x_i / D_a,   h_a = v_a / D_a

where v_a is the part's weight. Sums over i for each part, and over a for each row, are cumulative
(see `Spans`), so a round takes O(n p^2) time, with times of entry O(n p (p + log n)), and O(n p)
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .follow_up import FollowUp, Mask
from .frame import Codes, FloatArray
from .spans import Places, Spans

_LOWEST = -700.0
"""Of x'b below the largest in the stratum: exp stays above 0."""

_COLUMNS = 8
"""Columns at a time: what is held beside the table."""


@dataclass(frozen=True, eq=False)
class RiskSets:
    """The rows of a stratum that are at risk at a time of death, sorted by time.

    Attributes
    ----------
    columns : float64 array (n, p)
    weights : float64 array (n,)
    time : float64 array (k,)
        The times of death.
    first, last : int arrays (n,)
        Row i is at risk at the times of the places first_i to last_i - 1; last rises.
    dead : bool array (n,)
        Who dies, at the place last_i - 1.
    part_time : int array (a,)
        The place of each part's time.
    part_share : float64 array (a,)
        l / d.
    part_weight : float64 array (a,)
    spans : Spans
        Of first and last.
    """

    columns: FloatArray
    weights: FloatArray
    time: FloatArray
    first: Places
    last: Places
    dead: Mask
    part_time: Places
    part_share: FloatArray
    part_weight: FloatArray
    spans: Spans

    @classmethod
    def of(
        cls, columns: FloatArray, weights: FloatArray, times: FollowUp, efron: bool
    ) -> RiskSets | None:
        """Return the risk sets of a stratum; None where nobody dies."""
        death = np.unique(times.time[times.event])
        if not len(death):
            return None
        first = np.searchsorted(death, times.entry, side="right")
        last = np.searchsorted(death, times.time, side="right")
        used = np.flatnonzero(first < last)
        order = used[np.argsort(times.time[used], kind="stable")]
        first, last, dead = first[order], last[order], times.event[order]
        weights = weights[order]
        place = last[dead] - 1
        count = np.bincount(place, minlength=len(death))
        heavy = np.bincount(place, weights[dead], minlength=len(death))
        if not efron:
            count = np.ones_like(count)  # one part of their whole weight
        part_time = np.repeat(np.arange(len(death)), count)
        number = np.arange(len(part_time)) - np.repeat(np.cumsum(count) - count, count)
        share, weight = number / count[part_time], (heavy / count)[part_time]
        spans = Spans.of(first, last, len(death))
        parts = (part_time, share, weight)
        # The likelihood is that of columns about any centre, and near 0 they cancel least.
        own = columns[order] - columns[order].mean(axis=0)
        return cls(own, weights, death, first, last, dead, *parts, spans)

    def seen_at(self, basis: FloatArray, heaviness: float) -> RiskSets:
        """Return these with the columns times a basis (p, q), and weights in units of heaviness."""
        return replace(
            self,
            columns=self.columns @ basis,
            weights=self.weights / heaviness,
            part_weight=self.part_weight / heaviness,
        )

    def among(self, values: FloatArray) -> FloatArray:
        """Return the sums of values (n, ...) over those at risk at each time (k, ...)."""
        return self.spans.over_rows(values)

    def at_death(self, values: FloatArray) -> FloatArray:
        """Return the sums of values (n, ...) over those who die at each time (k, ...)."""
        dying = values[self.dead]
        places = self.last[self.dead] - 1
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        summed: FloatArray = np.add.reduceat(dying, starts, axis=0)
        return summed

    def by_row(self, values: FloatArray) -> FloatArray:
        """Return sum_a c_ia f_a (n, ...) of values f (a, ...)."""
        starts = np.flatnonzero(np.diff(self.part_time, prepend=-1))
        share = self.part_share.reshape(-1, *[1] * (values.ndim - 1))
        total = np.add.reduceat(values, starts, axis=0)
        dying = np.add.reduceat(values * share, starts, axis=0)
        found = self.spans.over_times(total)
        found[self.dead] -= dying[self.last[self.dead] - 1]
        return found


def compared(
    values: NDArray[np.integer], times: FollowUp, strata: Codes
) -> tuple[Mask, NDArray[np.intp]]:
    """Return which rows sums of the partial likelihood rest on, by columns of codes (n, p).

    They rest on the deaths at which a column is not the same in all at risk: (p,) says how many
    die at these, and (n, p) which rows are at risk at any of them.
    """
    rows, deaths = np.zeros(values.shape, bool), np.zeros(values.shape[1], np.intp)
    order = np.argsort(strata, kind="stable")
    starts = np.flatnonzero(np.diff(strata[order], prepend=-1))
    for own in np.split(order, starts[1:]) if len(order) else []:
        event, time = times.event[own], times.time[own]
        death = np.unique(time[event])
        if not len(death):
            continue
        first = np.searchsorted(death, times.entry[own], side="right")
        last = np.searchsorted(death, time, side="right")
        used = np.flatnonzero(first < last)
        used = used[np.argsort(last[used], kind="stable")]
        spans = Spans.of(first[used], last[used], len(death))
        several = spans.over_rows(np.ones((len(used), 1)))
        died = last[used][event[used]] - 1
        for place in range(0, values.shape[1], _COLUMNS):
            part = slice(place, place + _COLUMNS)
            code = values[own[used], part].astype(np.float64)
            code -= code.min(axis=0)
            # Of n whole numbers n sum c^2 - (sum c)^2 is 0, or n - 1 at least.
            spread = several * spans.over_rows(code**2) - spans.over_rows(code) ** 2
            differ = (several > 1.5) & (spread > (several - 1.0) / 2.0)
            rows[own[used], part] = spans.over_times(differ.astype(np.float64)) > 0.5
            deaths[part] += differ[died].sum(axis=0)
    return rows, deaths


@dataclass(frozen=True, eq=False)
class AtCoefficients:
    """A stratum's likelihood at coefficients.

    Attributes
    ----------
    sets : RiskSets
    risk : float64 array (n,)
        exp(x_i' b - max_j x_j' b).
    loglik : float
        sum_dead w_i x_i' b - sum_a v_a log D_a.
    means : float64 array (a, p)
        m_a.
    hazard : float64 array (n,)
        sum_a c_ia h_a.
    hazard_means : float64 array (n, p)
        sum_a c_ia h_a m_a.
    """

    sets: RiskSets
    risk: FloatArray
    loglik: float
    means: FloatArray
    hazard: FloatArray
    hazard_means: FloatArray

    @classmethod
    def of(cls, sets: RiskSets, coefficients: FloatArray) -> AtCoefficients:
        """Return the likelihood at coefficients (p,)."""
        score = sets.columns @ coefficients
        score = np.maximum(score - score.max(), _LOWEST)
        risk = np.exp(score)
        heavy = sets.weights * risk
        whole, dying = sets.among(heavy), sets.at_death(heavy)
        moved = heavy[:, None] * sets.columns
        places, share = sets.part_time, sets.part_share
        sizes = whole[places] - share * dying[places]
        sums = sets.among(moved)[places] - share[:, None] * sets.at_death(moved)[places]
        means = sums / sizes[:, None]
        rates = sets.part_weight / sizes
        died = sets.weights[sets.dead] @ score[sets.dead]
        loglik = float(died - sets.part_weight @ np.log(sizes))
        hazard = sets.by_row(rates)
        return cls(sets, risk, loglik, means, hazard, sets.by_row(rates[:, None] * means))

    @property
    def score(self) -> FloatArray:
        """sum_dead w_i x_i - sum_a v_a m_a (p,)."""
        sets = self.sets
        died = sets.weights[sets.dead] @ sets.columns[sets.dead]
        result: FloatArray = died - sets.part_weight @ self.means
        return result

    @property
    def information(self) -> FloatArray:
        """sum_a v_a (sum_i c_ia r_i x_i x_i' / D_a - m_a m_a') (p, p)."""
        sets = self.sets
        heavy = sets.weights * self.risk * self.hazard
        second = (sets.columns * heavy[:, None]).T @ sets.columns
        return second - (self.means * sets.part_weight[:, None]).T @ self.means

    @property
    def deviations(self) -> FloatArray:
        """x_i less the mean of m_a over the parts of its time, of those who die (d, p).

        Schoenfeld's residuals, in the order of the rows.
        """
        sets = self.sets
        starts = np.flatnonzero(np.diff(sets.part_time, prepend=-1))
        counts = np.diff(np.append(starts, len(sets.part_time)))
        means = np.add.reduceat(self.means, starts, axis=0) / counts[:, None]
        result: FloatArray = sets.columns[sets.dead] - means[sets.last[sets.dead] - 1]
        return result

    @property
    def residuals(self) -> FloatArray:
        """Each row's part of the score (n, p): they add up to it, weighted.

        1[i dies] (x_i - m(t_i)) - exp(x_i' b) sum_a c_ia h_a (x_i - m_a): Lin and Wei (1989), with
        Efron's parts as in Therneau and Grambsch, Modeling Survival Data, section 4.6.
        """
        sets = self.sets
        drift = sets.columns * self.hazard[:, None] - self.hazard_means
        result: FloatArray = -self.risk[:, None] * drift
        result[sets.dead] += self.deviations
        return result

    def penalty_slope(self, inverse: FloatArray) -> FloatArray:
        """Return tr(M dI / db_r) for all r (p,), of a matrix M (p, p).

        dI / db_r is the third central moment of x over the risk sets: with q_i = x_i' M x_i and the
        sums A_i, B_i of h and h m of row i, the trace is
        sum_i r_i (q_i (A_i x_i - B_i) - 2 (x_i' M B_i) x_i) + 2 sum_a v_a (m_a' M m_a) m_a.
        """
        sets, columns = self.sets, self.sets.columns
        heavy = sets.weights * self.risk
        turned = columns @ inverse
        squares = (turned * columns).sum(axis=1)
        crossed = (turned * self.hazard_means).sum(axis=1)
        total = (heavy * squares * self.hazard - 2.0 * heavy * crossed) @ columns
        total -= (heavy * squares) @ self.hazard_means
        of_means = ((self.means @ inverse) * self.means).sum(axis=1)
        result: FloatArray = total + 2.0 * (sets.part_weight * of_means) @ self.means
        return result
