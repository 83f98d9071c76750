"""Cells of few records: which counts a site hides so that none of them can be solved for.

A site's counts of a column's categories add up to a number that is known. So one hidden cell would
be known as well. `hidden` hides every cell below the least, empty ones too, and the largest cell
with them: whoever knows the rule and the sum cannot tell a hidden cell of a records from one of
a - 1, as the largest cell may then have one more.

Of numbers every histogram is one of `Steps`: values are moved once to the edges of a fine public
grid, at least ``least`` to each. Whatever the edges that are asked for, in however many messages,
the answers are functions of these steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .description_state import EDGES
from .frame import FloatArray

MOST_CODES = 10
"""Different numbers of a column of codes, at most."""
_FINEST = 2.0**18
"""Into how many parts the distance of two public edges is divided: those of a quantile's bound."""


def hidden(
    counts: FloatArray,
    levels: Sequence[str],
    least: int,
    *,
    others: float = 0.0,
    also: bool = False,
) -> NDArray[np.bool_]:
    """Return which cells (K,) are hidden, none where no cell is below ``least``.

    ``others`` is how many rows are in none of the cells, of rare categories that are not named:
    the largest cell is hidden then, and wherever its sum with them leaves them 0 or 1. Of several
    largest cells it is the first by its name, in whatever order they come. ``also`` hides it, too.
    """
    small: NDArray[np.bool_] = counts < least
    if least <= 1 or not len(counts):
        return np.zeros(len(counts), bool)
    place = min(np.flatnonzero(counts == counts.max()).tolist(), key=lambda at: levels[at])
    lower = max(
        float(count) + (level < levels[place]) if at != place else float(least)
        for at, (count, level) in enumerate(zip(counts, levels, strict=True))
    )
    if also or others > 0 or small.any() or counts[place] + others - lower <= 1:
        small[place] = True
    return small


class Steps(NamedTuple):
    """Numbers moved to public edges, at least as many as a cell needs to each.

    Attributes
    ----------
    places : float64 array (s,)
        In increasing order.
    which : int array (n,)
        The step of each number.
    """

    places: FloatArray
    which: NDArray[np.intp]

    @property
    def counts(self) -> FloatArray:
        """How many numbers each step has (s,)."""
        return np.bincount(self.which, minlength=len(self.places)).astype(float)


def steps(values: FloatArray, least: int) -> Steps:
    """Return the steps of finite numbers (n,), n >= ``least``.

    They are cut at the edges of a grid that divides each distance of two public edges into 2^18
    parts. From left to right what is less is carried on until it is enough; what is left over at
    the end goes to the last step. So fewer than ``least`` numbers change their side of any edge.
    """
    cells, inverse, counts = np.unique(_cut(values), return_inverse=True, return_counts=True)
    of_cell, last = merged(counts[None], least)
    return Steps(cells[last], of_cell[inverse])


def merged(counts: NDArray[np.integer], least: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Merge neighbouring cells (m,) until each of several counts (G, m) is 0 or ``least`` or more.

    Returns which merged cell each belongs to, and the last cell of each, without those that are
    left over at the end.
    """
    every = np.cumsum(counts.sum(axis=0)).tolist()
    running = [row.tolist() for row in np.cumsum(counts, axis=1)]  # bisect is fast on lists
    before, size, last = [0] * len(running), len(every), []
    at = bisect_left(every, 1)
    while at < size:
        enough = max(
            bisect_left(row, start + least, at) if start < row[at] < start + least else at
            for row, start in zip(running, before, strict=True)
        )
        if enough > at:
            at = enough
            continue
        last.append(at)
        before = [row[at] for row in running]
        at = bisect_left(every, every[at] + 1, at)
    while len(last) > 1 and any(0 < row[-1] - row[last[-2]] < least for row in running):
        del last[-2]  # what is left over is too little of one that the last cell has none of
    ends = np.array(last, np.intp)
    return np.minimum(np.searchsorted(ends, np.arange(size)), len(ends) - 1), ends


def _cut(values: FloatArray) -> FloatArray:
    """Return the lower ends of the cells of the finest grid that numbers lie in."""
    known = np.concatenate([[2.0 * EDGES[0]], EDGES, [2.0 * EDGES[-1]]])
    places = np.searchsorted(EDGES, values, side="right")
    low, high = known[places], known[places + 1]
    width = (high - low) / _FINEST
    cut: FloatArray = low + np.clip(np.floor((values - low) / width), 0.0, _FINEST - 1.0) * width
    return cut


def has_rare_code(values: FloatArray, least: int) -> bool:
    """Whether a column of numbers has at most 10 different ones, and fewer than ``least`` rows one.

    How many rows, their sum and that of their squares say how many have each of three codes, and
    often of a few more.
    """
    codes, counts = np.unique(values, return_counts=True)
    return len(codes) <= MOST_CODES and bool((counts < least).any())


def is_rare(values: FloatArray, least: int) -> bool:
    """Whether a column of numbers is one of 0 and 1 with 1 to ``least`` - 1 of either."""
    ones = int((values == 1.0).sum())
    if ones + int((values == 0.0).sum()) < len(values):
        return False
    return 0 < ones < least or 0 < len(values) - ones < least
