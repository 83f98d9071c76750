"""Cells of few records: which counts a site hides so that none of them can be solved for.

A site's counts of a column's categories add up to a number that is known. So one hidden cell would
be known as well. `hidden` hides every cell below the least, empty ones too, and the largest cell
with them: whoever knows the rule and the sum cannot tell a hidden cell of a records from one of
a - 1, as the largest cell may then have one more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .frame import FloatArray


def hidden(counts: FloatArray, least: int) -> NDArray[np.bool_]:
    """Return which cells (K,) are hidden; their sum is at least ``least``.

    None is where no cell is below it.
    """
    small: NDArray[np.bool_] = counts < least
    if least > 1 and small.any() and len(counts):
        small[int(np.argmax(counts))] = True
        return small
    return np.zeros(len(counts), bool)


def carried(counts: FloatArray, least: int) -> FloatArray:
    """Return a histogram (..., parts) without cells of 1 to ``least`` - 1 records.

    From left to right, what is less is carried on until it is enough; what is left over at the end
    is put to the last cell that has some, or is lost where none has. So fewer than ``least`` values
    change their side of any edge.
    """
    if least <= 1:
        return counts
    flat = counts.reshape(-1, counts.shape[-1]).copy()
    for row in flat:
        carry, last = 0.0, -1
        for place in np.flatnonzero(row):
            carry += row[place]
            row[place] = 0.0
            if carry >= least:
                row[place], carry, last = carry, 0.0, int(place)
        if last >= 0:
            row[last] += carry
    result: FloatArray = flat.reshape(counts.shape)
    return result


def is_rare(values: FloatArray, least: int) -> bool:
    """Whether a column of numbers is one of 0 and 1 with 1 to ``least`` - 1 of either."""
    ones = int((values == 1.0).sum())
    if ones + int((values == 0.0).sum()) < len(values):
        return False
    return 0 < ones < least or 0 < len(values) - ones < least
