"""Cox's partial likelihood of all sites' rows, of the pooled sums over those at risk by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .follow_up import Mask
from .frame import FloatArray

MOST_BYTES = 2**27
"""That a site may send in a round."""

MOST_CELLS = 2**22
"""Of the grid."""


def moments(width: int) -> int:
    """Return how many sums a time has: of 1, of p columns, and of their products once each."""
    return 1 + width + width * (width + 1) // 2


def traffic(times: int, width: int, efron: bool) -> int:
    """Return the bytes that a site sends in a round of k times and p columns."""
    return 8 * (times * moments(width) * (2 if efron else 1) + width + 1)


def baseline_hazard(weights: FloatArray, at_risk: FloatArray) -> FloatArray:
    """Return Breslow's cumulative baseline hazard (k,) after each time of death.

        H_0(t) = sum_{k: t_k <= t} v_k / sum_{i at risk at t_k} w_i exp((x_i - c)' b)

    v_k is the weight (k,) of all who die at t_k, and ``at_risk`` (k,) has the denominators: that of
    a row at the centre c (Breslow, Journal of the Royal Statistical Society B 34, 1972, 216-217).
    With ties it is Breslow's also where the coefficients are Efron's, as in lifelines.
    """
    result: FloatArray = np.cumsum(weights / at_risk)
    return result


def transforms_of(dying: FloatArray, weights: FloatArray, at_risk: FloatArray) -> FloatArray:
    """Return the ranks of deaths over their number, and 1 - S, at each time of death (2, k).

    Deaths at one time have their mean rank. S is the curve by Kaplan and Meier after the time, of
    the weights of those who die (k,) and of those at risk (k,). ``dying`` (k,) counts who die.
    """
    ranks = (np.cumsum(dying) - (dying - 1.0) / 2.0) / max(dying.sum(), 1.0)
    left = np.maximum(1.0 - weights / at_risk, 0.0)
    return np.stack([ranks, 1.0 - np.cumprod(left)])


@dataclass(frozen=True, eq=False)
class Pooled:
    """The likelihood at coefficients b, in the notation of `risk_sets`.

    Attributes
    ----------
    at_risk : float64 array (k, m)
        sum_i r_i (1, x_i, x_i x_i') over those at risk at each time; products j <= l in rows.
    dying : float64 array (k, m)
        The same over those who die then; zeros by Breslow.
    deaths, weights : float64 arrays (k,)
        Parts of each time (1 by Breslow), and the weight of all who die.
    died : float64 array (p,)
        sum_dead w_i x_i.
    """

    at_risk: FloatArray
    dying: FloatArray
    deaths: FloatArray
    weights: FloatArray
    died: FloatArray

    def _parts(self) -> Iterator[tuple[Mask, FloatArray, FloatArray, FloatArray]]:
        """Yield the times that have part l, and there l / d, v, and the sums over D."""
        for part in range(int(self.deaths.max())):
            here = self.deaths > part
            share = part / self.deaths[here]
            sums = self.at_risk[here] - share[:, None] * self.dying[here]
            size = sums[:, 0]
            yield here, share, self.weights[here] / self.deaths[here], sums / size[:, None]

    def likelihood(self, coefficients: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return l, its slope (p,) and the information (p, p) at the coefficients b of the sums."""
        width = len(self.died)
        loglik = float(self.died @ coefficients)
        score, information = self.died.copy(), np.zeros((width, width))
        upper = np.triu_indices(width)
        for here, share, weight, means in self._parts():
            size = self.at_risk[here, 0] - share * self.dying[here, 0]
            mean = means[:, 1 : 1 + width]
            loglik -= float(weight @ np.log(size))
            score -= weight @ mean
            second = np.zeros((width, width))
            second[upper] = weight @ means[:, 1 + width :]
            information += second + np.triu(second, 1).T - (mean * weight[:, None]).T @ mean
        return loglik, score, information

    @property
    def rates(self) -> FloatArray:
        """Sums over the parts of each time (k, 2 + 3 p): of h, h l / d, h m, h m l / d, m / d."""
        width = len(self.died)
        found = np.zeros((len(self.deaths), 2 + 3 * width))
        for here, share, weight, means in self._parts():
            size = self.at_risk[here, 0] - share * self.dying[here, 0]
            rate, mean = weight / size, means[:, 1 : 1 + width]
            moved = rate[:, None] * mean
            parts = [rate[:, None], (rate * share)[:, None], moved, moved * share[:, None]]
            parts.append(mean / self.deaths[here][:, None])
            found[here] += np.concatenate(parts, axis=1)
        return found
