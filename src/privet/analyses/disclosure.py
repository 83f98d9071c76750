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
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.kernel import Told

from .column_cells import Cells, cells_of
from .follow_up import FollowUp
from .frame import AnalysisError, Codes, FloatArray
from .risk_sets import compared

_ROWS = 1 << 13
_WIDEST = 1 << 10
"""Cells of a table of all pairs, at most."""
_MOST_WORK = 1 << 33
"""Rows of all pairs of columns that are counted one by one, at most: about a minute."""
_DENSE = 8
"""Cells of a pair, by its rows, up to which they are counted without sorting."""


def require_large_cells(
    columns: Iterable[tuple[str, FloatArray]], least: int
) -> list[tuple[str, Cells]]:
    """Refuse columns of which few rows have another value than the others; return their cells.

    Raises
    ------
    AnalysisError
        Names the column.
    """
    names, values = zip(*columns, strict=True)
    found = []
    for name, cells in zip(names, cells_of(values, least), strict=True):
        if cells is None:
            raise _rare(name, least)
        found.append((name, cells))
    return found


def require_large_pairs(
    columns: Iterable[tuple[str, Cells]], factors: Iterable[tuple[str, Codes]], least: int
) -> None:
    """Refuse two columns with few rows in a cell of both.

    Parameters
    ----------
    columns : iterable of (name, Cells)
    factors : iterable of (name, int32 array (n,))
        Codes from 0 on: each has a cell, the reference as well.

    Raises
    ------
    AnalysisError
        Names both, or says that there are too many pairs to count.
    """
    fine = ((name, cells.codes) for name, cells in columns if not cells.coarser)
    every = itertools.chain(factors, fine)
    coded = [(name, codes) for name, codes in every if codes.max(initial=-1) >= 0]
    starts = np.cumsum([0, *(int(codes.max()) + 1 for _, codes in coded)])
    if starts[-1] > _WIDEST:
        _require_pair_by_pair(coded, least)
        return
    counts = np.zeros((starts[-1], starts[-1]))
    for first in range(0, len(coded[0][1]) if coded else 0, _ROWS):
        part = [codes[first : first + _ROWS] for _, codes in coded]
        cells = np.zeros((starts[-1], len(part[0])))
        for start, codes in zip(starts, part, strict=False):
            shown = np.flatnonzero(codes >= 0)
            cells[start + codes[shown], shown] = 1.0
        counts += cells @ cells.T
    rare = np.argwhere((counts > 0) & (counts < least))
    if len(rare):
        places = np.searchsorted(starts, rare[0], side="right") - 1
        raise _rare(" and ".join(dict.fromkeys(coded[place][0] for place in places)), least)


def _require_pair_by_pair(coded: Sequence[tuple[str, Codes]], least: int) -> None:
    """Refuse as `require_large_pairs`, of more cells than a table of all pairs can have."""
    pairs = len(coded) * (len(coded) - 1) // 2
    if pairs * len(coded[0][1]) > _MOST_WORK:
        raise AnalysisError(
            f"min-cell = {least}: {pairs} pairs of columns of few values are too many to count in "
            f"{len(coded[0][1])} rows: take terms out",
            Told.MANY_CELLS,
        )
    for (name, codes), (other, theirs) in itertools.combinations(coded, 2):
        shown = (codes >= 0) & (theirs >= 0)
        first, second = (codes, theirs) if shown.all() else (codes[shown], theirs[shown])
        most = int(second.max(initial=0)) + 1
        if (int(first.max(initial=0)) + 1) * most > _DENSE * len(first):
            found = np.unique(first.astype(np.int64) * most + second, return_counts=True)[1]
            few = bool((found < least).any())
        else:
            few = _has_rare(first.astype(np.intp) * most + second, least)
        if few:
            raise _rare(f"{name} and {other}", least)


def require_large_strata(
    strata: Codes,
    columns: Iterable[tuple[str, Cells]],
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
    fine = ((name, cells.codes) for name, cells in columns if not cells.coarser)
    whole = ("", np.zeros(len(strata), np.int32))
    for name, cells in [whole, *factors, *fine]:
        shown = cells >= 0
        if _has_rare(_joined(strata[shown], cells[shown]), least):
            raise _rare(f"strata-column and {name}" if name else "strata-column", least)


def require_large_risk_sets(
    columns: Iterable[tuple[str, FloatArray]],
    shown: Iterable[Codes],
    times: FollowUp,
    strata: Codes,
    least: int,
) -> None:
    """Refuse columns that differ in few risk sets, or for few of those at risk.

    Where times of entry or strata leave a row at risk by itself it adds 0 to every sum, and so does
    a column that all at risk share: the sums are of the other risk sets, with what rows they have.
    ``shown`` are the columns' cells (n,).

    Raises
    ------
    AnalysisError
        Names the column.
    """
    listed = list(columns)
    codes = [np.unique(values, return_inverse=True)[1] for _, values in listed]
    rows, deaths = compared(np.stack(codes, axis=1), times, strata)
    for (name, _), cells, used, died in zip(listed, shown, rows.T, deaths.tolist(), strict=True):
        own = cells[used]
        few = 0 < died < least or 0 < len(own) < least
        if few or _has_rare(own[own >= 0].astype(np.intp), least):
            raise _rare(f"{name} among those at risk", least)


def require_large_patterns(
    columns: Iterable[tuple[str, Cells]], outcome: tuple[str, Cells] | None, least: int
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
    for _, cells in columns:
        if cells.coarser:
            continue
        if not cells.whole:
            return
        codes = np.maximum(cells.codes, 0)
        joint = codes.astype(np.intp) if joint is None else _joined(joint, codes)
    if joint is None:
        return
    if _has_rare(joint, least):
        raise _rare("all terms together", least)
    if outcome is None:
        return
    name, cells = outcome
    if cells.whole and _has_rare(_joined(joint, np.maximum(cells.codes, 0)), least):
        raise _rare(f"all terms together and {name}", least)


def require_large_left_out(counts: Iterable[int], least: int) -> None:
    """Refuse 1 to ``least`` - 1 rows left out for another reason than a missing value.

    Which number leaves a row out is the coordinator's choice (raises ``AnalysisError``).
    """
    if any(0 < count < least for count in counts):
        raise AnalysisError(
            f"min-cell = {least}: fewer rows begin after until or their end, enter after the end "
            "or the horizon, have no time, event or outcome, no weight or exposure above 0, or a "
            "value that a logarithm or root takes not",
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
