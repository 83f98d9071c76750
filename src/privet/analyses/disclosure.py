"""What the sums of a regression would give away of single records, which a node refuses.

At coefficients of 0 the information X' X is the cross-table of the columns that have two values,
and the score that of each of them with the outcome. Whatever the two values are, 1 and 2 or 0 and
1 less their mean, the counts can be solved for. So a site shows a cell of as many records with

- one to ``least`` - 1 rows whose value is not that of all others, of any column: their sum too;
- as many of a value in a column of few: the numbers of rows, of those that are not 0, the sums of
  the values, of their squares and of their logarithms say how many rows have each;
- as many in a cell of two columns of two values, of two factors (their references are the rest), or
  of one of these and the outcome;
- as many of one category among the rows in which a column is not what it is in most;
- as many of a stratum in any of these cells, or as events;
- as many with one value in each column, where all have few values, or of one outcome among these.

Cells of three columns beside one of many values are not looked at.

A model with more than a third as many terms as rows shows rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.kernel import Told

from .follow_up import FollowUp
from .frame import AnalysisError, Codes, FloatArray
from .risk_sets import compared
from .small_cells import MOST_CODES, has_rare_code, on_lattice

_ROWS = 1 << 13


def require_large_cells(columns: Iterable[tuple[str, FloatArray]], least: int) -> None:
    """Refuse columns of which few rows have another value than the others.

    Raises
    ------
    AnalysisError
        Names the column.
    """
    listed = list(columns)
    for name, values in listed:
        counts = np.unique(values, return_counts=True)[1]
        others = len(values) - int(counts.max(initial=0))
        if 0 < others < least or has_rare_code(counts, least):
            raise _rare(name, least)
        if (counts < least).any() and len(counts) <= _solved_codes(len(listed)):
            most = _solved_codes(_functions_of(values, [column for _, column in listed]))
            if len(counts) <= most and _are_codes(values, len(counts), most):
                raise _rare(name, least)


def _are_codes(values: FloatArray, different: int, most: int) -> bool:
    """Whether so many different numbers are of a list that others can know, of ``most`` codes."""
    if 2 * different <= len(values):
        return True
    units = on_lattice(np.unique(values))
    return units is not None and float(units[-1]) < most


def _solved_codes(functions: int) -> int:
    """Return of how many different numbers the sums of a regression say how many rows have each.

    So many independent equations for these counts are in the rounds of a logistic regression on
    powers of whole numbers, up to 60 of them: 11, 16, 23, 26 and 34 at 1, 2, 3, 4 and 6 powers,
    where what is below 1e-13 of the largest singular value is rounding.
    """
    return 7 + 5 * functions


def _functions_of(values: FloatArray, columns: Iterable[FloatArray]) -> int:
    """Return how many columns (n,) vary and have one value wherever ``values`` (n,) have one."""
    _, first, places = np.unique(values, return_index=True, return_inverse=True)
    return sum(
        bool((column == column[first][places]).all() and (column != column[0]).any())
        for column in columns
    )


def require_large_pairs(
    columns: Iterable[tuple[str, FloatArray]],
    factors: Iterable[tuple[str, Codes]],
    least: int,
) -> None:
    """Refuse two columns with few rows in a cell of both.

    Parameters
    ----------
    columns : iterable of (name, float64 array (n,))
        One of 2 to 10 values has a cell for each; one of more a cell for the rows that are not what
        at least half of them are.
    factors : iterable of (name, int32 array (n,))
        Codes from 0 on: each has a cell, the reference as well.

    Raises
    ------
    AnalysisError
        Names both.
    """
    every = itertools.chain(factors, ((name, _cells(values)) for name, values in columns))
    coded = [(name, codes) for name, codes in every if codes.max(initial=-1) >= 0]
    widths = [int(codes.max()) + 1 for _, codes in coded]
    starts = np.cumsum([0, *widths])
    counts = np.zeros((starts[-1], starts[-1]))
    for first in range(0, len(coded[0][1]) if coded else 0, _ROWS):
        part = [codes[first : first + _ROWS] for _, codes in coded]
        cells = np.zeros((starts[-1], len(part[0])))
        for start, codes in zip(starts, part, strict=False):
            rows = np.flatnonzero(codes >= 0)
            cells[start + codes[rows], rows] = 1.0
        counts += cells @ cells.T
    rare = np.argwhere((counts > 0) & (counts < least))
    if len(rare):
        places = np.searchsorted(starts, rare[0], side="right") - 1
        raise _rare(" and ".join(dict.fromkeys(coded[place][0] for place in places)), least)


def require_large_strata(
    strata: Codes,
    columns: Iterable[tuple[str, FloatArray]],
    factors: Iterable[tuple[str, Codes]],
    least: int,
) -> None:
    """Refuse strata of few rows, and few rows of a stratum in a cell of a column or factor.

    A sum over strata is of those in which a column varies. As `require_large_pairs` of one factor
    more, by codes (n,) from 0 on, whose table of pairs would grow with their square: strata may be
    nearly as many as rows.

    Raises
    ------
    AnalysisError
        Names the other column.
    """
    whole = ("", np.zeros(len(strata), np.int32))
    for name, cells in [whole, *factors, *((name, _cells(values)) for name, values in columns)]:
        shown = cells >= 0
        if _has_rare(_joined(strata[shown], cells[shown]), least):
            raise _rare(f"strata-column and {name}" if name else "strata-column", least)


def require_large_risk_sets(
    columns: Iterable[tuple[str, FloatArray]], times: FollowUp, strata: Codes, least: int
) -> None:
    """Refuse columns that differ in few risk sets, or for few of those at risk.

    Where times of entry or strata leave a row at risk by itself it adds 0 to every sum, and so does
    a column that all at risk share: the sums are of the other risk sets, with what rows they have.

    Raises
    ------
    AnalysisError
        Names the column.
    """
    listed = list(columns)
    codes = [np.unique(values, return_inverse=True)[1] for _, values in listed]
    rows, deaths = compared(np.stack(codes, axis=1), times, strata)
    for (name, values), used, died in zip(listed, rows.T, deaths.tolist(), strict=True):
        cells = _cells(values)[used]
        few = 0 < died < least or 0 < len(cells) < least
        if few or _has_rare(cells[cells >= 0].astype(np.intp), least):
            raise _rare(f"{name} among those at risk", least)


def require_large_patterns(
    columns: Iterable[tuple[str, FloatArray]],
    outcome: tuple[str, FloatArray] | None,
    least: int,
) -> None:
    """Refuse few rows with the same values in all columns, where each has few values.

    Such a model is the cross-table of its columns: information and meat at a few coefficients are
    as many equations as it has cells. So these, and those of each value of an ``outcome`` of few
    values, have ``least`` rows at least.

    Raises
    ------
    AnalysisError
        For a pattern of fewer rows.
    """
    joint = None
    for _, values in columns:
        found, codes = np.unique(values, return_inverse=True)
        if len(found) > MOST_CODES:
            return
        joint = codes if joint is None else _joined(joint, codes)
    if joint is None:
        return
    if _has_rare(joint, least):
        raise _rare("all terms together", least)
    if outcome is None:
        return
    name, values = outcome
    found, codes = np.unique(values, return_inverse=True)
    if len(found) <= MOST_CODES and _has_rare(_joined(joint, codes), least):
        raise _rare(f"all terms together and {name}", least)


def require_large_left_out(counts: Iterable[int], least: int) -> None:
    """Refuse 1 to ``least`` - 1 rows left out for another reason than a missing value.

    Which number leaves a row out is the coordinator's choice (raises ``AnalysisError``).
    """
    if any(0 < count < least for count in counts):
        raise AnalysisError(
            f"min-cell = {least}: fewer rows begin after until or their end, enter after the end "
            "or the horizon, have no time or event, or no weight above 0",
            Told.SMALL_CELL,
        )


def require_few_terms(terms: int, rows: int) -> None:
    """Refuse more than a third as many terms as rows (raises ``AnalysisError``)."""
    if 3 * terms > rows:
        raise AnalysisError(f"{terms} terms of {rows} rows of this site", Told.MANY_TERMS)


def _rare(name: str, least: int) -> AnalysisError:
    return AnalysisError(f"min-cell = {least}: a cell of {name} has fewer rows", Told.SMALL_CELL)


def _joined(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.intp]:
    """Return codes (n,) from 0 on of the pairs of two codes that occur."""
    most = int(second.max(initial=0)) + 1
    pairs = first.astype(np.int64) * most + second
    found: NDArray[np.intp] = np.unique(pairs, return_inverse=True)[1]
    return found


def _has_rare(codes: NDArray[np.intp], least: int) -> bool:
    counts = np.bincount(codes)
    return bool(((counts > 0) & (counts < least)).any())


def _cells(values: FloatArray) -> Codes:
    """Return the cells of a column as codes (n,); -1 of rows that its sums do not show.

    A column of few values has a cell for each: sums of it and of its square tell three apart.
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    if 2 <= len(counts) <= MOST_CODES:
        return places.astype(np.int32)
    codes = np.full(len(values), -1, np.int32)
    if len(counts) > 2 and 2 * int(counts.max()) >= len(values):
        codes[places != int(counts.argmax())] = 0
    return codes
