"""The log-rank test of survival curves, of counts on a grid of times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .frame import FloatArray


@dataclass(frozen=True, eq=False)
class LogRankSums:
    """Events above those expected, and their covariance: sums over times, strata and sites.

    Attributes
    ----------
    excess : float64 array (g,)
        sum_k d_gk - d_k n_gk / n_k.
    variance : float64 array (g, g)
        sum_k d_k (n_k - d_k) / (n_k - 1) n_gk / n_k (1[g = h] - n_hk / n_k).
    """

    excess: FloatArray
    variance: FloatArray


@dataclass(frozen=True)
class LogRank:
    """A chi-squared statistic with its degrees of freedom and p-value; p is NaN for none."""

    chi2: float
    df: int
    p: float


def log_rank_sums(events: FloatArray, at_risk: FloatArray) -> LogRankSums:
    """Return the sums of one stratum, of events and numbers at risk (g, k) by group and time.

    Mantel (1966); the variance is that of the hypergeometric distribution, also with ties
    (Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, section 1.5).
    """
    used = events.sum(axis=0) > 0
    events, at_risk = events[:, used], at_risk[:, used]
    dead, alive = events.sum(axis=0), at_risk.sum(axis=0)
    share = at_risk / alive
    excess: FloatArray = (events - share * dead).sum(axis=1)
    spread = dead * (alive - dead) / np.maximum(alive - 1.0, 1.0)
    variance = np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T
    return LogRankSums(excess, variance)


def log_rank(sums: LogRankSums) -> LogRank:
    """Return the test z' V^- z of the sums z and V: chi-squared with rank(V) degrees of freedom.

    The rank is one less than the number of groups, or lower where some are never at risk together.
    """
    from scipy.stats import chi2

    values, vectors = np.linalg.eigh(sums.variance)
    # Variances are in events: below a millionth they are rounding, of two groups never together.
    kept = values > max(1e-10 * float(values[-1]), 1e-6)
    if not kept.any():
        return LogRank(0.0, 0, float("nan"))
    scores = vectors[:, kept].T @ sums.excess
    statistic = float((scores**2 / values[kept]).sum())
    df = int(kept.sum())
    return LogRank(statistic, df, float(chi2.sf(statistic, df)))
