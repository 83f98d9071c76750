"""Where the rounds of a Cox model with one baseline for all sites stand."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .cox_state import CoxProgress
from .frame import FloatArray

MEANS = 4
"""A phase beside those of `cox_state`: means of columns, and deaths by time."""


@dataclass(slots=True)
class PooledCoxProgress(CoxProgress):
    """The state between two rounds; p columns, k times of death.

    Attributes
    ----------
    units, centre : float64 arrays (p,)
        Of the columns: sums are of (x - centre)' basis.
    cells : int
        The grid ends at so many units; 0 while unknown.
    off_grid : int
    places, deaths, death_weights, risk_units : float64 arrays (k,)
        Cells with deaths, how many die, their weights, powers of two near the sums of risks.
    rates : float64 array (k, 2 + 3 p)
        See `pooled_cox_sums.Pooled.rates`.
    dying : float64 array (k,)
        How many die, also by Breslow.
    at_risk, null_at_risk : float64 arrays (k,)
        The sums of w exp((x - centre)' b) over those at risk, at the last coefficients and at 0.
    """

    units: FloatArray
    centre: FloatArray
    cells: int
    off_grid: int
    places: FloatArray
    deaths: FloatArray
    death_weights: FloatArray
    risk_units: FloatArray
    rates: FloatArray
    dying: FloatArray
    at_risk: FloatArray
    null_at_risk: FloatArray


def begun(state: CoxProgress) -> PooledCoxProgress:
    """Return a fresh state as one of this kind."""
    width, none = len(state.gamma), np.zeros(0)
    return PooledCoxProgress(
        **{field.name: getattr(state, field.name) for field in fields(state)},
        units=np.ones(width),
        centre=np.zeros(width),
        cells=0,
        off_grid=0,
        places=none,
        deaths=none,
        death_weights=none,
        risk_units=none,
        rates=np.zeros((0, 2 + 3 * width)),
        dying=none,
        at_risk=none,
        null_at_risk=none,
    )
