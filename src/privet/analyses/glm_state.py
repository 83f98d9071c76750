"""Where a generalised linear model's rounds stand: arrays and numbers, for checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .analysis import Progress
from .design import Design
from .formula import read_formula
from .frame import FloatArray, Levels
from .sizes import FIRST_UNIT

SIZES, START, EVALUATE, MEAT, FIRTH = range(5)
"""What a round asks for: units, a first estimate, sums at coefficients, these with those of robust
errors, Firth's correction."""

LARGEST = 2.0**19
"""A site's sum is no larger than this, so that it fits a secure sum's fixed point."""

GRID = 2.0**-40
"""A secure sum rounds each site's sum to multiples of this."""

Packed = NDArray[np.uint8]


@dataclass(slots=True)
class GlmProgress(Progress):
    """The state between two rounds; p columns.

    Attributes
    ----------
    phase, rounds : int
        What is asked for next, and how many rounds have been answered.
    levels : uint8 array
        The agreed categories as JSON, since a state is made of arrays.
    unit, level, heaviness : float
        Powers of two near the number of rows, the mean variance of a row, the mean weight.
    spread, first_spread, null_spread : float
        The unit of a Gaussian outcome in the model, at first, and in the null model; 1 otherwise.
    mean : float
        Of the outcome, roughly.
    shift : float
        What is taken off a Gaussian outcome, near its mean, where the span holds a constant.
    centre, basis : float64 arrays (p,), (p, p)
        Z = (X - 1 centre') basis.
    scales : float64 array (2, p)
        Root mean squares of the columns about their means and about 0.
    attempts : int
        How often a basis was looked for.
    gamma, alpha
        The coefficients of Z and of the null model at which sums are asked for.
    held, held_loglik, step, halvings
        The coefficients before them, their (penalised) likelihood, the whole step, its halvings.
    stalled, leap : int
        Steps in a row that went on as separated outcomes make them; 1 while one of many steps is
        tried.
    row_count, sites, events : float
    present : float64 array (p,)
        The number of sites at which a column is not all 0.
    left_out : float64 array (c + 1,)
    information, meat, cluster : float64 arrays (p, p)
        The last totals in the coordinates of gamma, of weights divided by ``heaviness``.
    loglik, deviance, pearson, null_loglik, null_deviance, log_weights : float
        Likewise, in units of ``spread`` squared and ``null_spread`` squared.
    bend, correction, centre_of_correction : float64 arrays (p, p), (p,), (p,)
        Firth's penalty: its estimated curvature, its part of the score, and the gamma of that.
    begun : float64 array (p,), or (0,)
        The coefficients of a model that Newton's steps began at, times ``spread``.
    site_counts, site_tests : float64 arrays (sites, 2), (sites, 3)
        In the clear, rows and the outcomes' sum of each site, and at the end its test.
    """

    phase: int
    rounds: int
    levels: Packed
    unit: float
    level: float
    heaviness: float
    spread: float
    first_spread: float
    null_spread: float
    mean: float
    shift: float
    centre: FloatArray
    basis: FloatArray
    scales: FloatArray
    attempts: int
    gamma: FloatArray
    alpha: float
    held: FloatArray
    held_loglik: float
    step: FloatArray
    halvings: int
    stalled: int
    leap: int
    row_count: float
    sites: float
    events: float
    present: FloatArray
    left_out: FloatArray
    information: FloatArray
    meat: FloatArray
    cluster: FloatArray
    loglik: float
    deviance: float
    pearson: float
    null_loglik: float
    null_deviance: float
    log_weights: float
    bend: FloatArray
    correction: FloatArray
    centre_of_correction: FloatArray
    begun: FloatArray
    site_counts: FloatArray
    site_tests: FloatArray

    @property
    def whole(self) -> float:
        """What sums of squares are divided by."""
        return self.unit * self.level


def fresh(levels: Levels, width: int, columns: int) -> GlmProgress:
    """Return the state before the first round, of a design of ``width`` columns."""
    nothing, square = np.zeros(width), np.zeros((width, width))
    return GlmProgress(
        gap=np.nan,
        done=False,
        phase=SIZES,
        rounds=0,
        levels=packed(levels),
        unit=FIRST_UNIT,
        level=1.0,
        heaviness=1.0,
        spread=1.0,
        first_spread=1.0,
        null_spread=1.0,
        mean=0.0,
        shift=0.0,
        centre=nothing,
        basis=square,
        scales=np.zeros((2, width)),
        attempts=0,
        gamma=nothing,
        alpha=0.0,
        held=nothing,
        held_loglik=np.nan,
        step=nothing,
        halvings=0,
        stalled=0,
        leap=0,
        row_count=0.0,
        sites=0.0,
        events=0.0,
        present=nothing,
        left_out=np.zeros(columns + 1),
        information=square,
        meat=square,
        cluster=square,
        loglik=np.nan,
        deviance=np.nan,
        pearson=np.nan,
        null_loglik=np.nan,
        null_deviance=np.nan,
        log_weights=0.0,
        bend=square,
        correction=nothing,
        centre_of_correction=nothing,
        begun=np.zeros(0),
        site_counts=np.zeros((0, 2)),
        site_tests=np.zeros((0, 3)),
    )


def packed(levels: Levels) -> Packed:
    """Return levels as bytes of JSON."""
    plain = {name: list(of_column) for name, of_column in levels.items()}
    return np.frombuffer(json.dumps(plain).encode(), np.uint8).copy()


def design_of(formula: str, levels: Packed) -> Design:
    """Return the design of a formula and packed levels."""
    return _design(formula, levels.tobytes())


@lru_cache(maxsize=16)
def _design(formula: str, levels: bytes) -> Design:
    return Design.of(read_formula(formula), json.loads(levels))
