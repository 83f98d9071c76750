"""What an audit would have found: the smallest lack of noise, and the canaries that find one.

A lack of s means that the noise has (1 - s) times the deviation, or scale, that is charged. It is
found where a bound comes out above the epsilon that the run states; here with a probability of
`CHANCE`.

*By the draws.* Their sizes in units of the charged scale have exact laws
(`privet.sim.empirical`): with f = 1 - s and the quantiles q of chi-squared of n degrees of freedom,
the bound f sqrt(Q / q(e)) is below 1 with probability P[Q < q(e) / f^2], so that the smallest lack
has f = sqrt(q(e) / q(.9)); of Laplace draws f = q(e) / q(.9) with 2 n degrees. This sees draws
alone: noise that is made smaller after it was drawn is divided by what becomes of a draw that is
given, and looks right.

*By the canaries.* The scores of the two sides are taken for N(-m / 2, 1) and N(m / 2, 1), with m as
measured in the audit, and m / f where noise is missing, wherever it got lost. That is exact where
scores are Gaussian and what tells the sides apart is as in this audit. The gap's t is then
noncentral with m / (f w), w = sqrt(1/n_1 + 1/n_2), and is found beyond the t* that has a chance of
error / 2 at the claimed mu. Of N canaries the r surest are right with

    p = Phi(m / 2f - c) / (Phi(m / 2f - c) + Phi(-m / 2f - c)),    the denominator r / N,

each, and the lack is found where at least as many are as prove more than the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .empirical import guessing_chance

Vector = NDArray[np.float64]

CHANCE = 0.9
"""Probability with which a lack is found that counts as found."""
MOST_CANARIES = 1 << 30
_SLACK = 2.0**-9
"""Sizes of draws are taken as larger by less than this (`privet.sim.residuals`)."""
_CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Power:
    """What decides which lack the canaries of an audit find.

    Attributes
    ----------
    separation : float
        m: the distance of the two sides' mean scores in deviations.
    epsilon, delta : float
        The claim.
    mu : float
        Its Gaussian-DP parameter; NaN where the account is not Gaussian.
    error : float
        The chance of a false alarm of each bound.
    shares : sequence of float
        Of the canaries that are guessed on.
    """

    separation: float
    epsilon: float
    delta: float
    mu: float
    error: float
    shares: Sequence[float]

    def chance(self, lack: float, canaries: int) -> float:
        """Return the probability that the better test of the canaries finds a lack.

        ``canaries`` are those left to guess on.
        """
        apart = self.separation / (1.0 - lack)
        return max(self._by_gap(apart, canaries), self._by_guesses(apart, canaries))

    def smallest_lack(self, canaries: int) -> float:
        """Return the smallest lack that is found; NaN if none is."""
        low, high = 0.0, 1.0 - 1e-6
        if self.chance(high, canaries) < CHANCE:
            return math.nan
        while high - low > _CLOSE:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.chance(middle, canaries) >= CHANCE else (middle, high)
        return high

    def canaries_for(self, lack: float) -> int:
        """Return how many canaries left to guess on find a lack; 0 if `MOST_CANARIES` do not."""
        low, high = 1, 16
        while self.chance(lack, high) < CHANCE:
            low, high = high, 2 * high
            if high > MOST_CANARIES:
                return 0
        while high - low > max(1, high // 1000):
            middle = (low + high) // 2
            low, high = (low, middle) if self.chance(lack, middle) >= CHANCE else (middle, high)
        return high

    def _by_gap(self, apart: float, canaries: int) -> float:
        from scipy.stats import nct

        if math.isnan(self.mu) or canaries < 4:
            return 0.0
        width = math.sqrt(1.0 / (canaries // 2) + 1.0 / (canaries - canaries // 2))
        freedom = canaries - 2
        if apart <= self.mu:
            return 0.0
        if freedom > 1000:  # Student's t is as good as normal, its deviation 1 + shift^2 / 2 n
            first, second = self.mu / width, apart / width
            least = first + _normal_point(self.error / 2.0) * math.hypot(
                1.0, first / math.sqrt(2.0 * freedom)
            )
            return _normal((second - least) / math.hypot(1.0, second / math.sqrt(2.0 * freedom)))
        least = float(nct.isf(self.error / 2.0, freedom, self.mu / width))
        return float(np.nan_to_num(nct.sf(least, freedom, apart / width)))

    def _by_guesses(self, apart: float, canaries: int) -> float:
        from scipy.stats import binom

        counts = sorted({max(1, round(share * canaries)) for share in self.shares})
        best, half = 0.0, apart / 2.0
        for guesses in counts:
            least = _least_right(
                guesses, canaries, self.epsilon, self.delta, self.error / len(counts)
            )
            if least > guesses:
                continue
            far = _surest(half, guesses / canaries)
            right = _normal(half - far)
            wrong = _normal(-half - far)
            rate = right / (right + wrong) if right > 0 else 0.5
            best = max(best, float(binom.sf(least - 1, guesses, rate)))
        return best


def smallest_lack_of_draws(count: int, *, gaussian: bool, error: float) -> float:
    """Return the smallest lack that the spread of so many draws finds; NaN without draws."""
    from scipy.stats import chi2

    if not count:
        return math.nan
    freedom = count if gaussian else 2 * count
    left = float(chi2.ppf(error, freedom) / chi2.ppf(CHANCE, freedom))
    return 1.0 - (math.sqrt(left) if gaussian else left) * (1.0 - _SLACK)


def separation(first: Vector, second: Vector) -> float:
    """Return the distance of two samples' means in deviations of them together; 0 without any."""
    freedom = first.size + second.size - 2
    if min(first.size, second.size) < 1 or freedom < 1:
        return 0.0
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in (first, second))
    return (
        abs(float(first.mean() - second.mean())) / math.sqrt(squares / freedom) if squares else 0.0
    )


def _least_right(guesses: int, canaries: int, epsilon: float, delta: float, error: float) -> int:
    """Return the least number of right guesses that proves more; ``guesses`` + 1 if none does."""
    if guesses > 1 << 16:  # the term of delta is a sum over guesses: its leading order by far
        odds = 1.0 / (1.0 + math.exp(-epsilon))
        mean, spread = guesses * odds, math.sqrt(guesses * odds * (1.0 - odds))
        left = error - 4.0 * canaries * delta / max(spread, 1.0)
        if left <= 0:
            return guesses + 1
        return min(math.ceil(mean + _normal_point(left) * spread) + 1, guesses + 1)
    low, high = 0, guesses + 1
    while low < high:
        middle = (low + high) // 2
        if middle > guesses or guessing_chance(middle, guesses, canaries, epsilon, delta) <= error:
            high = middle
        else:
            low = middle + 1
    return low


def _surest(half: float, share: float) -> float:
    """Return the size beyond which that share of the scores lies."""
    if share >= 1:
        return 0.0
    low, high = 0.0, half + 10.0
    for _ in range(60):
        middle = (low + high) / 2.0
        beyond = _normal(half - middle) + _normal(-half - middle)
        low, high = (middle, high) if beyond > share else (low, middle)
    return (low + high) / 2.0


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2.0)) / 2.0


def _normal_point(chance: float) -> float:
    """Return the point that a normal number exceeds with this chance."""
    from scipy.special import ndtri

    return -float(ndtri(chance))


__all__ = ["CHANCE", "Power", "separation", "smallest_lack_of_draws"]
