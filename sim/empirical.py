"""Lower bounds on the epsilon of a mechanism, from its outputs.

A bound is a statement with an error: where the mechanism is as private as it says, the bound is
above what it says with at most that probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privet.kernel.gaussian import gaussian_epsilon

Vector = NDArray[np.float64]

_LARGEST = 60.0
"""Epsilon at which a search ends: e^60 to 1 is no doubt that a guess leaves."""


def guessing_bound(
    correct: int, guesses: int, canaries: int, delta: float, *, error: float
) -> float:
    """Return the epsilon that so many correct guesses prove, with an error of at most ``error``.

    T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run" (2023), Theorem
    5.2. Of m canaries each is in the data, or its neighbour in its place, by the toss of a coin. A
    mechanism that is (epsilon, 0)-private in each of them answers no guess with better odds than
    e^epsilon to 1, whatever it gave out and however the other coins fell; so the number of correct
    ones among r guesses is at most W, binomial with r trials of q = e^epsilon / (1 + e^epsilon), in
    the stochastic order. With delta > 0 there may be F more, of mean at most 2 m delta, and

        P[correct >= v] <= P[W >= v] + sum_i P[F = i] P[v > W >= v - i]
                        <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i.

    All canaries may be in one run. Who guesses may know the outcome of some coins; these are no
    canaries then.

    Parameters
    ----------
    correct, guesses, canaries : int
        v <= r <= m; who guesses may pass.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"{correct} correct guesses of {guesses} on {canaries} canaries: expected 0 <= correct "
            "<= guesses <= canaries"
        )

    def chance(epsilon: float) -> float:
        return guessing_chance(correct, guesses, canaries, epsilon, delta)

    low, high = 0.0, _LARGEST
    if chance(low) > error:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if chance(middle) <= error else (low, middle)
    return low


def guessing_chance(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Return what the chance of so many correct guesses is at most: see `guessing_bound`."""
    from scipy.stats import binom

    odds = 1.0 / (1.0 + math.exp(-epsilon))
    chance = float(binom.sf(correct - 1, guesses, odds))
    if correct and delta:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, odds))
        share = float((below / np.arange(1, correct + 1)).max())
        chance += 2.0 * canaries * delta * share
    return min(chance, 1.0)


def mu_bound(first: Vector, second: Vector, *, error: float) -> float:
    """Return the Gaussian-DP mu that two samples prove, with an error of at most ``error``.

    For Gaussian samples of one variance, as the Gaussian mechanism gives on two neighbours: their
    means differ by at most mu deviations, Student's t of their difference is noncentral with
    mu / sqrt(1/n_1 + 1/n_2), and the bound is the largest mu at which the t that was seen, or a
    larger one, has a chance of at most ``error``. Exact for Gaussian samples, and no statement
    about others. Either sample may be the larger: both directions share the error.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    counts = first.size, second.size
    freedom = sum(counts) - 2
    spread = math.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in (first, second))
    if freedom < 1 or squares <= 0:
        raise ValueError("expected two samples of at least two numbers that differ")
    seen = abs(float(first.mean() - second.mean())) / math.sqrt(squares / freedom) / spread
    # The chance is the mean of Phi(shift - seen s) over s, freedom s^2 chi-squared: the density of
    # log s is analytic, so that sums over even steps converge exponentially.
    reach = 60.0 / freedom
    steps = np.linspace(-math.sqrt(reach) - reach, math.sqrt(reach), 1 << 11)
    weights = np.exp(freedom * (steps - np.expm1(2.0 * steps) / 2.0))
    weights /= weights.sum()
    deviations = seen * np.exp(steps)

    def excess(shift: float) -> float:
        return float(weights @ ndtr(shift - deviations)) - error / 2.0

    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, seen)) * spread


def gaussian_bound(first: Vector, second: Vector, delta: float, *, error: float) -> float:
    """Return the epsilon at delta of `mu_bound`."""
    return gaussian_epsilon(mu_bound(first, second, error=error), delta)


def scale_bound(total: float, count: int, *, error: float) -> float:
    """Return the share of its charged scale that Laplace noise has at most, by what was drawn.

    Let g_1, ..., g_n be independent Laplace draws of one scale s, charged as b. Each |g_i| / s is
    exponential of mean 1, so that their sum T = sum |g_i| / b has 2 T b / s chi-squared with 2 n
    degrees of freedom, and

        P[s / b > T / x] = P[chi^2_{2n} < 2 x] = error   for   x = quantile_{2n}(error) / 2.

    So T / x is above s / b but with probability ``error``, exactly. Of noise that is right it is
    below 1 with that probability: a false alarm. Of n draws with s = f b the bound is about
    f (1 + z / sqrt(n)), z the normal quantile of 1 - error: 100 draws find half of the noise.

    Parameters
    ----------
    total : float
        T; a larger number than the sum gives a larger bound, which is still valid.
    count : int
        n.
    """
    from scipy.stats import chi2

    return 2.0 * total / float(chi2.ppf(error, 2 * count))


def deviation_bound(squares: float, count: int, *, error: float) -> float:
    """Return the share of its charged deviation that Gaussian noise has at most, by what was drawn.

    As `scale_bound`: with draws of deviation s, charged as b, the sum Q of (g_i / b)^2 has Q b^2 /
    s^2 chi-squared with n degrees of freedom, so that s / b is at most the root of Q over its
    quantile at ``error`` but with that probability, exactly. With s = f b it is about
    f (1 + z / sqrt(2 n)).

    Parameters
    ----------
    squares : float
        Q; a larger number than the sum gives a larger bound, which is still valid.
    count : int
        n.
    """
    from scipy.stats import chi2

    return math.sqrt(squares / float(chi2.ppf(error, count)))


def numbers_of_guesses(
    canaries: int, delta: float, *, error: float, shares: Sequence[float]
) -> list[int]:
    """Return the numbers of guesses that can prove something at this delta, all if none can.

    By `guessing_bound` r guesses prove nothing, however many are right, where r is too small for
    the 2 m delta of its last term. They would only use up a part of the error.
    """
    counts = sorted({max(1, round(share * canaries)) for share in shares})
    each = error / len(counts)
    able = [r for r in counts if guessing_bound(r, r, canaries, delta, error=each) > 0]
    return able or [canaries]


def best_guesses(
    scores: Vector, truth: NDArray[np.bool_], delta: float, *, error: float, counts: Sequence[int]
) -> tuple[float, int, int]:
    """Return the best `guessing_bound` of the surest guesses, how many they were, and how many hit.

    Parameters
    ----------
    scores : array (m,)
        What speaks for a canary's presence; the size says how surely.
    truth : bool array (m,)
        Whether it was there.
    counts : sequence of int
        How many canaries are guessed on, the surest first; the error is shared between them. They
        depend on neither array.
    """
    order = np.argsort(-np.abs(scores), kind="stable")
    hits = np.cumsum((scores > 0)[order] == truth[order])
    bounds = []
    for guesses in counts:
        correct = int(hits[guesses - 1])
        bound = guessing_bound(correct, guesses, scores.size, delta, error=error / len(counts))
        bounds.append((bound, guesses, correct))
    return max(bounds)


__all__ = [
    "best_guesses",
    "deviation_bound",
    "gaussian_bound",
    "guessing_bound",
    "guessing_chance",
    "mu_bound",
    "numbers_of_guesses",
    "scale_bound",
]
