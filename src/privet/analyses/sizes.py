"""How large numbers are, as sums that any unit leaves on a fixed-point grid."""

from __future__ import annotations

import numpy as np

from .frame import FloatArray

FIRST_UNIT = 2.0**20
"""What sums are divided by before the number of rows is known."""

_EXPONENTS = np.arange(-128, 129, 16)
UNITS = np.ldexp(1.0, _EXPONENTS.astype(int))
"""Public units, 2^-128 to 2^128."""


def size_sums(values: FloatArray) -> FloatArray:
    """Return sum_i min(1, (x_i / u)^2) for each public unit u, of columns (n, p): (p, units)."""
    sums = np.empty((values.shape[1], len(UNITS)))
    for place, unit in enumerate(UNITS):
        sums[:, place] = (np.minimum(np.abs(values) / unit, 1.0) ** 2).sum(axis=0)
    return sums


def root_mean_squares(values: FloatArray) -> FloatArray:
    """Return the root mean squares (p,) of columns (n, p), of numbers of any size."""
    largest = np.abs(values).max(axis=0, initial=0.0)
    shares = values / np.where(largest > 0.0, largest, 1.0)
    found: FloatArray = largest * np.sqrt((shares**2).sum(axis=0) / max(len(values), 1))
    return found


def sizes(sums: FloatArray, rows: float) -> FloatArray:
    """Return powers of two near the root mean squares (p,), of `size_sums` over all rows.

    They are read off the finest unit in which a quarter of the rows is not exceeded, or of those
    that are not 0 where these are fewer; 0 for a column of zeros.
    """
    found = np.zeros(len(sums))
    for place, column in enumerate(sums / max(rows, 1.0)):
        most = 0.25 if column[0] >= 0.25 else column[0] / 4.0
        within = np.flatnonzero(column < most)
        unit = within[0] if len(within) else len(UNITS) - 1
        if column[unit] < 2.0**-36:  # the unit below is exceeded by a few large numbers alone
            unit = max(unit - 1, 0)
        if column[unit] > 0.0:
            found[place] = 2.0 ** np.rint(np.log2(UNITS[unit] * np.sqrt(column[unit])))
    return found
