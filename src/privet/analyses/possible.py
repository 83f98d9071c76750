"""What a site's sums cannot be, whatever its rows are.

Counts are whole and not below 0, parts are no more than the whole, a sum of squares is at least the
square of the sum over the number of rows (Cauchy and Schwarz), and sums of w x x' with w >= 0 are
symmetric without a negative eigenvalue. Each is of a size that a secure sum takes. None of that
needs a record: it follows from how the sums are made. What is within it may be a lie all the same,
and nothing here tells.

Every tolerance is above what the rounding of an honest site's float64 sums, or of a secure sum's
fixed point, comes to; a sum at the bound of its fixed point is not judged, as it is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .analysis import Analysis, Arrays, Claim
from .frame import FloatArray
from .glm_state import LARGEST

_WHOLE = 0.01
"""How far a count may be from a whole number: a secure sum's first round is rounded to 2^-20."""
_MOST = 2.0**23
"""What every sum of an analysis is below, in the units that it is asked for in: 2^63 / 2^40, which
is the most that a secure sum takes (`privet.wire.ring.largest`)."""
_SLACK = 1e-7
"""Of the largest of numbers, and of 1: what their rounding may come to."""


def impossible(
    analysis: Analysis[Any], state: Any, sums: Arrays, rows: float = math.nan, sites: int = 1
) -> str:
    """Return what the sums of a site cannot be, in one line; "" where nothing shows.

    Parameters
    ----------
    state : Progress
        That which asked for them.
    rows : float
        What the same site (or sites) said in the first round; NaN where nothing is known.
    sites : int
        How many sites' total it is: of a secure sum the total alone can be looked at.
    """
    for name, array in sums.items():
        if not np.isfinite(array).all():
            return f"{name} is not finite"
        if (large := np.abs(array) > _MOST).any():
            return f"{name} has {_first(array, large)}, which no secure sum takes"
    said = analysis.rows_said(state, sums)
    if abs(said - rows) > _WHOLE:  # not so where one is NaN
        return f"{said:.10g} rows, and {rows:.10g} in the first round"
    return analysis.impossible(state, Claim(sums, rows if math.isnan(said) else said, sites))


def no_counts(name: str, values: FloatArray, most: float | FloatArray = math.inf) -> str:
    """Say that numbers are no counts, or above ``most``."""
    off = np.abs(values - np.rint(values)) > _WHOLE
    if (off | (values < -_WHOLE)).any():
        return f"{name} has {_first(values, off | (values < -_WHOLE))}, which is no count"
    above = values > np.asarray(most) + _WHOLE
    return f"{name} has {_first(values, above)}, more than there are" if above.any() else ""


def no_later(values: FloatArray, most: float) -> str:
    """Say that numbers of rows that leave after 1, 2, 4, ... units are no counts, or rise."""
    if values.size > 1 and (rising := np.diff(values) > _WHOLE).any():
        return f"later has {_first(values[1:], rising)}, more than leave after half as long"
    return no_counts("later", values, most)


def no_grid(values: FloatArray, most: int) -> str:
    """Say that no grid of at most so many times reaches to where the last of a site's rows leave.

    Parameters
    ----------
    values : array (k,)
        How many leave after 1, 2, 4, ... units.
    """
    times = 1 << int((np.rint(values) > 0).sum())
    if times <= most:
        return ""
    return f"later is of a grid of {times} times, over {most}: it takes a larger time-unit"


def no_left_out(values: FloatArray) -> str:
    """Say that rows left out (1 + c,) are no counts, or more of a column than the first, all."""
    return no_counts("left_out", values) or no_counts("left_out", values, values[0])


def below_0(name: str, values: FloatArray) -> str:
    """Say that sums of numbers that are not below 0 are."""
    low = (values < -slack(values)) & _inside(values)
    return f"{name} has {_first(values, low)}, which is below 0" if low.any() else ""


def no_squares(name: str, matrix: FloatArray) -> str:
    """Say that a matrix (p, p) is no sum of w x x'."""
    if not matrix.size or not _inside(matrix).all():
        return ""
    least = slack(matrix) * len(matrix)
    if np.abs(matrix - matrix.T).max() > least:
        return f"{name} is not symmetric"
    lowest = float(np.linalg.eigvalsh((matrix + matrix.T) / 2.0)[0])
    return f"{name} has the eigenvalue {lowest:.3g}" if lowest < -least else ""


def no_product(name: str, matrix: FloatArray, vector: FloatArray, times: float = 1.0) -> str:
    """Say that a matrix (p, p) is not ``times`` v v'."""
    expected = np.outer(vector, vector) * times
    if not (_inside(matrix) & _inside(expected)).all() or not matrix.size:
        return ""
    off = np.abs(matrix - expected).max() > slack(expected)
    return f"{name} is not the square of the score" if off else ""


def few_squares(squares: FloatArray, total: FloatArray, rows: float) -> str:
    """Say that sums of squares are below the squares of the sums over the number of rows, all in
    one unit.
    """
    least = total**2 / rows if rows else total**2
    low = squares - least < -slack(least)
    return "squares are below the square of the sum over the rows" if low.any() else ""


def slack(values: FloatArray) -> float:
    """Return what the rounding of numbers may come to."""
    return _SLACK * (1.0 + float(np.abs(values).max(initial=0.0)))


def _inside(values: FloatArray) -> Any:
    return np.abs(values) < LARGEST / 2.0


def _first(values: FloatArray, which: Sequence[bool] | Any) -> str:
    return f"{np.asarray(values)[which].flat[0]:.6g}"
