"""An empirical lower bound on epsilon from draws of a mechanism on two neighbouring data sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def clopper_pearson(successes: Array, trials: int, error: float) -> tuple[Array, Array]:
    """One-sided lower and upper confidence limits of binomial probabilities."""
    lower = stats.beta.ppf(error, successes, trials - successes + 1)
    upper = stats.beta.ppf(1 - error, successes + 1, trials - successes)
    return np.nan_to_num(lower, nan=0.0), np.nan_to_num(upper, nan=1.0)


def epsilon_lower_bound(
    first: Array, second: Array, delta: float, *, confidence: float = 0.95, thresholds: int = 40
) -> float:
    """Return a lower confidence bound on the epsilon that holds at delta.

    `first` and `second` are the values of one statistic (monotone in the likelihood ratio) on the
    two data sets. Half of the draws choose thresholds, the other half is counted; all thresholds,
    both tails and both directions share the error (Bonferroni), so the bound is valid as a whole.
    """
    chosen = np.concatenate([first[::2], second[::2]])
    levels = np.unique(np.quantile(chosen, np.linspace(0.0005, 0.9995, thresholds)))
    counted = first[1::2], second[1::2]
    error = (1 - confidence) / (8 * levels.size)
    best = 0.0
    for one, two in (counted, counted[::-1]):
        for sign in (1, -1):
            hits = [(sign * draws[:, None] > sign * levels).sum(axis=0) for draws in (one, two)]
            true_low, _ = clopper_pearson(hits[0], one.size, error)
            _, false_high = clopper_pearson(hits[1], two.size, error)
            gain = np.log(np.maximum(true_low - delta, 1e-300) / false_high)
            best = max(best, float(gain.max()))
    return best
