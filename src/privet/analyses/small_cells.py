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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core.ordered import places

from .description_state import EDGES
from .frame import FloatArray

MOST_CODES = 10
"""Different numbers of a column of codes, at most."""
_DECIMALS = 6
"""Of numbers on a lattice, at most."""
_COARSEST = 1e-6
"""Of their range, the least step of a lattice that numbers are seen to be on."""
_SPARSE = 3.0
"""Places of a lattice for each value, above which most are taken to be none of a list of codes."""
_AMBIGUOUS = 5.0
"""Binary logarithm of how many tables of a column send the same, at least, were all sums as likely:
those in the middle, which most tables have, are sent by thousands then."""
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
    cut = _cut(values)
    inverse = places(cut)
    of_cell, last = merged(np.bincount(inverse)[None], least)
    cells = np.empty(len(of_cell))
    cells[inverse] = cut
    return Steps(cells[last], of_cell[inverse])


def is_solved(values: FloatArray, found: Steps) -> bool:
    """Return whether the sum and the sum of squares of numbers (n,) tell how many a step has of
    each, to who knows how many each step has.

    They are two equations for the rows of the steps that hold more than one value. Of c such rows
    at L places of a lattice, such as whole numbers, tenths or thirds, there are C(c + L - 1, c)
    tables, and of all steps together their product. Where that is not 2^5 times as many as the two
    sums have values, single rows may follow from them: those of a tail behind a few frequent codes.
    It is a count of tables and no proof for each of them.

    The lattice is that of all numbers, and that of nineteen of twenty rows, as if the others were
    known. Where most places are empty and rows are twice as many as values, it is also that of the
    values alone, as of a list of codes. Of other numbers it is not so.
    """
    known, first, counts = np.unique(values, return_index=True, return_counts=True)
    which = found.which[first]
    units = on_lattice(known)
    if units is not None and _is_solved(units, counts, which):
        return True
    sparse = units is None or float(units[-1]) > _SPARSE * len(known)
    if sparse and 2 * len(known) <= len(values):
        codes = np.arange(float(len(known)))
        if _is_solved(codes, counts, which):
            return True
    most = _on_decimals(known, counts)
    if most is None or most.all():
        return False
    units = on_lattice(known[most])
    return units is not None and _is_solved(units, counts[most], which[most])


def _is_solved(units: FloatArray, counts: NDArray[np.intp], which: NDArray[np.intp]) -> bool:
    """Return it of different places (d,) of a lattice, the rows at each, and the step of each."""
    starts = np.flatnonzero(np.diff(which, prepend=-1))
    highest = np.append(units[starts[1:] - 1], units[-1])
    places = np.diff(highest, prepend=units[0] - 1.0)
    rows, most = np.add.reduceat(counts, starts), np.maximum.reduceat(counts, starts)
    mixed = rows > most
    if not mixed.any():
        return False
    rows, places, highest = (
        np.minimum(rows, 2 * (rows - most))[mixed],
        places[mixed],
        highest[mixed],
    )
    fewer = np.minimum(rows, places - 1.0)
    tables = float((fewer * np.log2((rows + places - 1.0) / fewer)).sum())
    wide = abs(highest - (highest[0] + highest[-1]) / 2.0)
    sums = 1.0 + rows @ (places - 1.0)
    squares = 1.0 + (rows * (places - 1.0)) @ (2.0 * wide + places)
    return tables - float(np.log2(sums) + np.log2(squares)) < _AMBIGUOUS


def middles(places: FloatArray, numbers: FloatArray, least: int) -> FloatArray:
    """Return where moments have the rows of steps (s,), which hold ``numbers`` (s,) of them.

    A step of fewer than 2 ``least`` rows may hold what is less than its place, down to the place
    before: it is in the middle of these, so that what is moved does not all go one way. This is a
    function of the steps alone.
    """
    units = _decimal_units(places)
    if units is None or len(places) < 2:
        return places
    between = np.diff(units, prepend=units[0] - 1.0) - 1.0
    down = between / 2.0 * ((places[-1] - places[0]) / units[-1])
    return np.where(numbers < 2 * least, places - down, places)


def on_lattice(known: FloatArray) -> FloatArray | None:
    """Return different numbers (d,), in order, as multiples of their step from the first on.

    The step is one of at most six decimals, or else any that a millionth of their range is less
    than, such as that of whole numbers over 3 or 365.25; None where there is none.
    """
    units = _decimal_units(known)
    return _common_units(known) if units is None else units


def _decimal_units(known: FloatArray) -> FloatArray | None:
    """Return the numbers as `on_lattice`; None where six decimals are too few to write them."""
    for decimals in range(_DECIMALS + 1):
        scaled = known * 10.0**decimals
        whole = np.rint(scaled)
        if abs(whole).max(initial=0.0) >= 2.0**52:
            return None
        if _are_near(scaled, whole).all():
            apart = np.diff(whole).astype(np.int64)
            return (whole - whole[0]) / float(np.gcd.reduce(apart)) if len(apart) else whole * 0.0
    return None


def _on_decimals(known: FloatArray, counts: NDArray[np.intp]) -> NDArray[np.bool_] | None:
    """Return which numbers (d,) are on the coarsest decimals that nineteen of twenty rows are."""
    for decimals in range(_DECIMALS + 1):
        scaled = known * 10.0**decimals
        fine = _are_near(scaled, np.rint(scaled))
        if 20 * int(counts[~fine].sum()) <= int(counts.sum()):
            return fine
    return None


def _are_near(scaled: FloatArray, whole: FloatArray) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = abs(scaled - whole) <= 1e-9 * np.maximum(abs(whole), 1.0)
    return near


def _common_units(known: FloatArray) -> FloatArray | None:
    """Return the numbers as `on_lattice`, by Euclid's algorithm on their distances."""
    if len(known) < 2:
        return None
    apart = known - known[0]
    rounding = 1e-9 * float(abs(known).max())
    rest, step = apart[1:], np.inf
    while len(rest):
        step = float(rest.min())
        if step <= max(_COARSEST * float(apart[-1]), 100.0 * rounding):
            return None
        rest = abs(apart - step * np.rint(apart / step))
        rest = rest[rest > rounding]
    units: FloatArray = np.rint(apart / step)
    return units


def merged(counts: NDArray[np.integer], least: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Merge neighbouring cells (m,) until each of several counts (G, m) is 0 or ``least`` or more.

    Returns which merged cell each belongs to, and the last cell of each, without those that are
    left over at the end.
    """
    size = counts.shape[1]
    running = np.cumsum(counts, axis=1)
    after = _ends(running, least).tolist()
    last: list[int] = []
    at = after[0]
    while at < size:
        last.append(at)
        at = after[at + 1]
    left_over = running[:, -1:] - running
    while len(last) > 1 and _any_below(left_over[:, last[-2]], least):
        del last[-2]  # what is left over is too little of one that the last cell has none of
    ends = np.array(last, np.intp)
    return np.minimum(np.searchsorted(ends, np.arange(size)), len(ends) - 1), ends


def _any_below(counts: NDArray[np.integer], least: int) -> bool:
    return bool(((counts > 0) & (counts < least)).any())


def _ends(running: NDArray[np.integer], least: int) -> NDArray[np.intp]:
    """Return for a merged cell that begins at 0, ..., m where it ends; m where it cannot.

    ``running`` (G, m) are cumulated counts. The cell ends at the first place at which it has any,
    and none of its counts is from 1 to ``least`` - 1; each step moves every cell on that has one.
    """
    before = np.concatenate([np.zeros((len(running), 1), running.dtype), running], axis=1)
    every = before.sum(axis=0)
    enough = [np.searchsorted(row[1:], row + least) for row in before]
    ends: NDArray[np.intp] = np.searchsorted(every[1:], every + 1)
    size, moved = running.shape[1], True
    while moved:
        moved = False
        inside = np.flatnonzero(ends < size)
        for row, reached in zip(before, enough, strict=True):
            counts = row[ends[inside] + 1] - row[inside]
            short = inside[(counts > 0) & (counts < least)]
            later = short[reached[short] > ends[short]]
            ends[later] = reached[later]
            inside = np.flatnonzero(ends < size) if len(later) else inside
            moved = moved or len(later) > 0
    return ends


def _cut(values: FloatArray) -> FloatArray:
    """Return the lower ends of the cells of the finest grid that numbers lie in."""
    known = np.concatenate([[2.0 * EDGES[0]], EDGES, [2.0 * EDGES[-1]]])
    places = np.searchsorted(EDGES, values, side="right")
    low, high = known[places], known[places + 1]
    width = (high - low) / _FINEST
    cut: FloatArray = low + np.clip(np.floor((values - low) / width), 0.0, _FINEST - 1.0) * width
    return cut


def has_rare_code(counts: NDArray[np.intp], least: int) -> bool:
    """Whether a column of numbers has at most 10 different ones, and fewer than ``least`` rows one.

    ``counts`` says how many rows have each.

    How many rows, their sum and that of their squares say how many have each of three codes, and
    often of a few more.
    """
    return len(counts) <= MOST_CODES and bool((counts < least).any())
