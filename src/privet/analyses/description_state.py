"""Where the rounds of a description stand: arrays and numbers, for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .analysis import Progress
from .frame import FloatArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that a description has."""
PARTS = 64
"""Into how many parts a round divides the interval of a quantile, and the range of a column."""
_LOW, _HIGH = -40, 60
_POWERS = 2.0 ** np.arange(_LOW, _HIGH + 1)
EDGES: FloatArray = np.concatenate([-_POWERS[::-1], [0.0], _POWERS])
"""Public edges: 0, and the powers of two from 2^-40 to 2^60 with both signs."""
SMALLEST = float(_POWERS[0])
"""The least unit of a column."""


@dataclass(slots=True)
class DescribeState(Progress):
    """What is known of the columns; C are those of numbers, K all categories one after the other.

    Attributes
    ----------
    phase : int
        Rounds that were summed.
    rows, persons : float
        Of all sites; no persons where no site says whose its rows are.
    counts : array (columns, 3)
        Values, missing values, and values of another kind or in a table without the column.
    cells, hidden : array (K,)
        How many rows have a category, and at how many sites that is hidden.
    least : float
        Sum over the sites of how many values, at most, a histogram may have moved past an edge.
    coarse : array (C, len(EDGES) + 1)
    unit : array (C,)
        The power of two that numbers are divided by.
    mean, square : array (C,)
        In these units.
    size : array (C,)
        The power of two near the deviation, in them.
    low, high : array (C,)
        Public edges between which all numbers lie.
    bins : array (C, PARTS)
        Between them.
    left, right : array (C, Q)
        The interval of each quantile.
    below : array (C, Q)
        The numbers below it.
    site_counts, site_cells, site_hidden, site_sums, site_squares : array (sites, ...)
        Those of each site, in the clear; without rows where sums are masked. Squares are
        about the mean of all, in units of ``size``.
    levels : uint8 array
        The agreed columns as JSON.
    """

    phase: int
    rows: float
    persons: float
    least: float
    counts: FloatArray
    cells: FloatArray
    hidden: FloatArray
    coarse: FloatArray
    unit: FloatArray
    mean: FloatArray
    square: FloatArray
    size: FloatArray
    low: FloatArray
    high: FloatArray
    bins: FloatArray
    left: FloatArray
    right: FloatArray
    below: FloatArray
    site_counts: FloatArray
    site_cells: FloatArray
    site_hidden: FloatArray
    site_sums: FloatArray
    site_squares: FloatArray
    levels: NDArray[np.uint8]
