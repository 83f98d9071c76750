"""Where the rounds of a Cox model stand: arrays and numbers, for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .analysis import Progress
from .frame import FloatArray, Levels
from .glm_state import packed as packed_levels
from .sizes import FIRST_UNIT
from .texts import Bytes, packed

SIZES, EVALUATE, PENALTY, FINAL = range(4)
"""What a round asks for: counts and units; score, information and likelihood at coefficients; the
slope of Firth's penalty there; the second with all else that the table needs."""

LARGEST = 2.0**19
"""A site's sum is no larger than this, so that it fits a secure sum's fixed point."""

TREND = 4
"""Numbers of a trend in time before those of each column: see `cox_site.trend_sums`."""


@dataclass(slots=True)
class CoxProgress(Progress):
    """The state between two rounds; p columns.

    Attributes
    ----------
    phase, rounds : int
        What is asked for next, and how many rounds have been answered.
    names, labels : uint8 arrays
        Packed texts: the columns, and the term of each.
    levels : uint8 array
        The agreed categories as JSON.
    unit, heaviness, time_size : float
        Powers of two near the number of rows, a row's weight, a time.
    sizes : float64 array (p,)
        Powers of two near the columns' standard deviations within strata.
    basis : float64 array (p, p)
        Sums are of the columns x' basis, whose information at 0 is near 1 for each death.
    gamma : float64 array (p,)
        The coefficients of these at which sums are asked for.
    held, held_loglik, step, halvings
        The coefficients before, their (penalised) likelihood, the whole step, its halvings.
    attempts : int
        How often a basis was looked for in vain.
    stalled : int
        Steps in a row that went on as they do where the likelihood has no maximum.
    counts : float64 array (4,)
        Rows, deaths, strata, sites with rows.
    present : float64 array (p,)
        The number of sites at which a column varies within a stratum.
    left_out : float64 array
        Rows that are left out: of all, and by column.
    loglik, score, information
        At the last coefficients; the likelihood but for the deaths' weights times log heaviness.
    null_loglik, null_score, null_information
        At 0.
    slope, bend : float64 arrays (p,), (p, p)
        Of Firth's penalty: its part of the score, and how that changes along the steps.
    meat, cluster : float64 arrays (p, p)
        sum_i w_i^2 r_i r_i' and sum_s U_s U_s', not divided.
    trend : float64 array (2 or, with one baseline, 4, 4 + p)
    pairs : float64 array (3,)
        Concordant, tied and all pairs.
    site_counts, site_tests : float64 arrays (sites, 2), (sites, 3)
        In the clear, rows and deaths of each site, and at the end its test.
    """

    phase: int
    rounds: int
    names: Bytes
    labels: Bytes
    levels: Bytes
    unit: float
    heaviness: float
    time_size: float
    sizes: FloatArray
    basis: FloatArray
    gamma: FloatArray
    held: FloatArray
    held_loglik: float
    step: FloatArray
    halvings: int
    attempts: int
    stalled: int
    counts: FloatArray
    present: FloatArray
    left_out: FloatArray
    loglik: float
    score: FloatArray
    information: FloatArray
    null_loglik: float
    null_score: FloatArray
    null_information: FloatArray
    slope: FloatArray
    bend: FloatArray
    meat: FloatArray
    cluster: FloatArray
    trend: FloatArray
    pairs: FloatArray
    site_counts: FloatArray
    site_tests: FloatArray

    @property
    def whole(self) -> float:
        """What sums are divided by, of weights as the table has them."""
        return self.unit * self.heaviness


def fresh(names: Sequence[str], labels: Sequence[str], levels: Levels, read: int) -> CoxProgress:
    """Return the state before the first round, of columns of the design and ``read`` of a table."""
    width = len(names)
    column, square = np.zeros(width), np.zeros((width, width))
    return CoxProgress(
        gap=float("nan"),
        done=False,
        phase=SIZES,
        rounds=0,
        names=packed(names),
        labels=packed(labels),
        levels=packed_levels(levels),
        unit=FIRST_UNIT,
        heaviness=1.0,
        time_size=1.0,
        sizes=column,
        basis=np.eye(width),
        gamma=column,
        held=column,
        held_loglik=-np.inf,
        step=column,
        halvings=0,
        attempts=0,
        stalled=0,
        counts=np.zeros(4),
        present=column,
        left_out=np.zeros(read + 1),
        loglik=0.0,
        score=column,
        information=square,
        null_loglik=0.0,
        null_score=column,
        null_information=square,
        slope=column,
        bend=square,
        meat=square,
        cluster=square,
        trend=np.zeros((2, TREND + width)),
        pairs=np.zeros(3),
        site_counts=np.zeros((0, 2)),
        site_tests=np.zeros((0, 3)),
    )
