"""The cells that a column of a regression has: of each of few values, or of what most are not.

The sums of all columns that are functions of one say how many rows have each of its values, so
which column is a function of which is found first: by the rows that have a value first, on some
rows and then on all, and from there by transitivity. Powers and splines of one column are thereby
compared with all rows once each, and not each with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .frame import Codes, FloatArray
from .small_cells import has_rare_code, on_lattice

_PROBES = 1 << 10
"""Rows by which most columns are seen not to be functions of another."""


class Cells(NamedTuple):
    """The cells of a column that the sums of a regression show.

    Attributes
    ----------
    codes : int32 array (n,)
        The cell of each row from 0 on; -1 of rows that are in none.
    whole : bool
        Whether its cell is all that the column says of a row.
    coarser : bool
        Whether each cell is made of whole cells of another column, which shows all that it does.
    """

    codes: Codes
    whole: bool
    coarser: bool = False


def cells_of(columns: Sequence[FloatArray], least: int) -> list[Cells | None]:
    """Return the cells of columns (n,); None of those of which fewer than ``least`` rows have one.

    A column of few values has a cell for each. One of more has a cell of the rows that are not what
    at least half of them are.
    """
    coded = [_Coded.of(values, least, _solved_codes(len(columns))) for values in columns]
    functions = _functions([one.codes if one.is_few else None for one in coded])
    most = [_solved_codes(len(one)) for one in functions]
    whole = [
        one.is_few and len(one.counts) <= codes and int(one.counts.min()) >= least
        for one, codes in zip(coded, most, strict=True)
    ]
    coarser: set[int] = set()
    for place, others in enumerate(functions):
        if whole[place] and place not in coarser:
            coarser |= others - {place}
    return [
        None if one.is_rare or one.has_rare(least, codes) else one.cells(cells, place in coarser)
        for place, (one, codes, cells) in enumerate(zip(coded, most, whole, strict=True))
    ]


class _Coded(NamedTuple):
    """A column's numbers.

    Attributes
    ----------
    codes : int32 array (n,)
        Which of its different numbers each row has; where these are not few, as of `Cells`.
    is_few, is_one : bool
        Whether there are few, or one.
    is_rare : bool
        Whether fewer than ``least`` rows have another than all others.
    known, counts : arrays (d,)
        The different numbers in order, and how many rows have each, where they are few.
    """

    codes: Codes
    is_few: bool
    is_one: bool
    is_rare: bool
    known: FloatArray
    counts: NDArray[np.intp]

    @classmethod
    def of(cls, values: FloatArray, least: int, most: int) -> _Coded:
        """Return those of numbers (n,), of which ``most`` are few."""
        known, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
        others = len(values) - int(counts.max(initial=0))
        is_rare = 0 < others < least or has_rare_code(counts, least)
        if 2 <= len(known) <= most:
            return cls(codes.astype(np.int32), True, False, is_rare, known, counts)
        cells, none = _but_mode(codes, counts), counts[:0].copy()
        return cls(cells, False, len(known) < 2, is_rare, none.astype(np.float64), none)

    def has_rare(self, least: int, most: int) -> bool:
        """Whether fewer than ``least`` rows have one of at most ``most`` codes."""
        few = self.is_few and len(self.counts) <= most
        return few and int(self.counts.min()) < least and self._are_codes(most)

    def _are_codes(self, most: int) -> bool:
        """Whether the numbers are of a list that others can know, of ``most`` codes."""
        if 2 * len(self.counts) <= len(self.codes):
            return True
        units = on_lattice(self.known)
        return units is not None and float(units[-1]) < most

    def cells(self, whole: bool, coarser: bool) -> Cells:
        """Return its cells: of each number, or of what at least half of the rows are not."""
        codes = _but_mode(self.codes, self.counts) if self.is_few and not whole else self.codes
        return Cells(codes, whole or self.is_one, coarser)


def _but_mode(codes: NDArray[np.integer], counts: NDArray[np.intp]) -> Codes:
    """Return 0 for the rows that are not what at least half are, -1 for these, or for all."""
    cells = np.full(len(codes), -1, np.int32)
    if len(counts) > 2 and 2 * int(counts.max()) >= len(codes):
        cells[codes != int(counts.argmax())] = 0
    return cells


def _solved_codes(functions: int) -> int:
    """Return of how many different numbers the sums of a regression say how many rows have each.

    So many independent equations for these counts are in the rounds of a logistic regression on
    powers of whole numbers, up to 60 of them: 11, 16, 23, 26 and 34 at 1, 2, 3, 4 and 6 powers,
    where what is below 1e-13 of the largest singular value is rounding.
    """
    return 7 + 5 * functions


def _functions(columns: Sequence[Codes | None]) -> list[set[int]]:
    """Return which columns are functions of each, itself among them; none of what has no codes.

    One has one value wherever another has one: fewer values then, or as many. What is a function of
    such a column is one of the other.
    """
    found: list[set[int]] = [set() for _ in columns]
    listed = [(place, one) for place, one in enumerate(columns) if one is not None]
    if not listed:
        return found
    rows = len(listed[0][1])
    probes = np.unique(np.linspace(0, max(rows - 1, 0), min(rows, _PROBES)).astype(np.intp))
    parts = {place: codes[probes] for place, codes in listed}
    last = {place: int(codes.max()) for place, codes in listed}
    listed.sort(key=lambda one: last[one[0]])
    for at, (place, codes) in enumerate(listed):
        firsts = np.empty(last[place] + 1, np.intp)
        firsts[codes[::-1]] = np.arange(rows)[::-1]
        found[place].add(place)
        for other, theirs in reversed(listed[:at]):
            if other in found[place] or (theirs[firsts][parts[place]] != parts[other]).any():
                continue
            if (theirs[firsts][codes] == theirs).all():
                found[place] |= found[other]
        for other in tuple(found[place]):
            if last[other] == last[place]:  # each is a function of the other
                found[other].add(place)
    return found
