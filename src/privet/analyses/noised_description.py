"""A description by one noised sum: what each record adds, and what is read from the sum.

A record adds, for each column that a schema states,

    categories   1 in the cell of its category, or in that of missing values
    numbers      1 in the cell of its part of the range, or in that of missing values; beside it
                 u and u^2, with u = (x - low) / (high - low) in [0, 1]

divided by the root of C + 3 D, for C columns of categories and D of numbers: a vector without an
entry below 0, of l2 norm at most 1 (`privet.kernel.programs.statistics`). Cells, ranges and
categories are public; a number outside of its range counts as its end. No decision is made by an
exact count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .frame import AnalysisError, FloatArray, Frame

BINS = 32
_NUMBERS = BINS + 3  # the cells, that of missing values, u and u^2

Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class NoisedLayout:
    """Which entry of the sum is what; columns are in the order of their names.

    Attributes
    ----------
    categories : mapping of str to tuple of str
    ranges : mapping of str to (float, float)
    """

    categories: Mapping[str, Sequence[str]]
    ranges: Ranges

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.categories, *self.ranges}))

    @property
    def width(self) -> int:
        """k, the length of the sum."""
        cells = sum(len(known) + 1 for known in self.categories.values())
        return cells + _NUMBERS * len(self.ranges)

    @property
    def share(self) -> float:
        """1 over the root of C + 3 D, so that a record's vector is of norm at most 1."""
        return 1.0 / math.sqrt(max(len(self.categories) + 3 * len(self.ranges), 1))

    def contributions(self, frame: Frame) -> Iterator[FloatArray]:
        """Yield what each record adds, in blocks (m, k); each row is of that record alone."""
        for part in frame.blocks(self.width):
            yield self._block(part)

    def _block(self, frame: Frame) -> FloatArray:
        added = np.zeros((frame.rows, self.width))
        places, at = np.arange(frame.rows), 0
        for name in self.names:
            if name in self.categories:
                known = self.categories[name]
                codes = frame.factor(name).among(known)
                added[places, at + np.where(codes < 0, len(known), codes)] = 1.0
                at += len(known) + 1
                continue
            share = _shares(frame, name, self.ranges[name])
            there = ~np.isnan(share)
            cells = np.minimum(np.where(there, share, 0.0) * BINS, BINS - 1).astype(int)
            added[places, at + np.where(there, cells, BINS)] = 1.0
            added[:, at + BINS + 1] = np.where(there, share, 0.0)
            added[:, at + BINS + 2] = np.where(there, share * share, 0.0)
            at += _NUMBERS
        return added * self.share

    def table(self, total: FloatArray, deviation: float) -> dict[str, Any]:
        """Return what the noised sum (k,) says of the columns.

        ``deviation`` is the noise's standard deviation on each entry of the sum. Every column's
        cells, that of missing values among them, have each row once: ``rows`` is the mean of their
        sums, weighted by one over the number of cells, and a column's ``n`` is ``rows`` without its
        missing values. ``count_error`` and ``n_error`` are the standard deviations of a cell and,
        at most, of an n. Counts are not rounded, and those below 0 are given as 0. A deviation is
        None where the noised variance is not above 0, a mean where n is not.
        """
        counts, cell = total / self.share, deviation / self.share
        parts = dict(self._parts(counts))
        sums = [float(part.sum()) for part in parts.values()]
        weights = [1.0 / len(part) for part in parts.values()]
        rows = float(np.average(sums, weights=weights)) if parts else 0.0
        columns: dict[str, Any] = {}
        at = 0
        for name, part in parts.items():
            missing, at = float(part[-1]), at + len(part)
            shown: dict[str, Any] = {"n": _count(rows - missing), "missing": _count(missing)}
            shown |= {"other": 0, "by_site": []}
            if name in self.categories:
                cells = dict(zip(self.categories[name], map(_count, part[:-1]), strict=True))
                columns[name] = {"kind": "categories", **shown, "categories": cells}
                continue
            moments, at = counts[at : at + 2], at + 2
            columns[name] = {"kind": "numbers", **shown}
            columns[name] |= _numbers(part[:-1], moments, rows - missing, self.ranges[name])
        return {
            "rows": _count(rows),
            "noised": True,
            "count_error": cell,
            "n_error": cell * math.sqrt(1.0 + 1.0 / sum(weights)) if parts else cell,
            "columns": columns,
        }

    def _parts(self, counts: FloatArray) -> Iterator[tuple[str, FloatArray]]:
        """Yield each column's cells, the last that of missing values."""
        at = 0
        for name in self.names:
            known = self.categories.get(name)
            width = BINS + 1 if known is None else len(known) + 1
            yield name, counts[at : at + width]
            at += _NUMBERS if known is None else width


def _shares(frame: Frame, name: str, ends: tuple[float, float]) -> FloatArray:
    """Return numbers as shares of their range, NaN where a value is missing."""
    if name not in frame.numbers:
        raise AnalysisError(f"column {name} holds texts, and the schema states a range")
    low, high = ends
    share: FloatArray = np.clip((frame.numbers[name] - low) / ((high - low) or 1.0), 0.0, 1.0)
    return share


def _count(noised: float) -> float:
    """Return a noised count, or 0 in place of one below."""
    return max(float(noised), 0.0)


def _numbers(
    cells: FloatArray, moments: FloatArray, values: float, ends: tuple[float, float]
) -> dict[str, Any]:
    low, high = ends
    shown: dict[str, Any] = {"mean": None, "sd": None}
    if values > 0:
        share, square = (float(one) / values for one in moments)
        variance = square - share * share
        shown["mean"] = low + (high - low) * min(max(share, 0.0), 1.0)
        shown["sd"] = (high - low) * math.sqrt(variance) if variance > 0 else None
    return {**shown, "histogram": {"low": low, "high": high, "counts": list(map(_count, cells))}}
