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
_BLOCK = 1 << 14
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
        for start in range(0, frame.rows, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, frame.rows))
            yield self._block(frame.taken(rows))

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

        ``deviation`` is the noise's standard deviation on each entry of the sum. Counts are not
        rounded and may be below 0; ``count_error`` is their standard deviation.
        """
        counts, at = total / self.share, 0
        columns: dict[str, Any] = {}
        for name in self.names:
            if name in self.categories:
                known = self.categories[name]
                own = counts[at : at + len(known)]
                columns[name] = {
                    "kind": "categories",
                    "n": float(own.sum()),
                    "missing": float(counts[at + len(known)]),
                    "other": 0,
                    "categories": dict(zip(known, own.tolist(), strict=True)),
                    "by_site": [],
                }
                at += len(known) + 1
                continue
            columns[name] = _numbers(counts[at : at + _NUMBERS], self.ranges[name])
            at += _NUMBERS
        rows = [column["n"] + column["missing"] for column in columns.values()]
        return {
            "rows": float(np.mean(rows)) if rows else 0.0,
            "noised": True,
            "count_error": deviation / self.share,
            "columns": columns,
        }


def _shares(frame: Frame, name: str, ends: tuple[float, float]) -> FloatArray:
    """Return numbers as shares of their range, NaN where a value is missing."""
    if name not in frame.numbers:
        raise AnalysisError(f"column {name} holds texts, and the schema states a range")
    low, high = ends
    share: FloatArray = np.clip((frame.numbers[name] - low) / ((high - low) or 1.0), 0.0, 1.0)
    return share


def _numbers(counts: FloatArray, ends: tuple[float, float]) -> dict[str, Any]:
    low, high = ends
    cells, missing = counts[:BINS], float(counts[BINS])
    values = float(cells.sum())
    shown: dict[str, Any] = {"kind": "numbers", "n": values, "missing": missing, "other": 0}
    shown["by_site"] = []
    if values > 0:
        share = float(counts[BINS + 1]) / values
        variance = max(float(counts[BINS + 2]) / values - share * share, 0.0)
        shown["mean"] = low + (high - low) * min(max(share, 0.0), 1.0)
        shown["sd"] = (high - low) * math.sqrt(variance)
    shown["histogram"] = {"low": low, "high": high, "counts": cells.tolist()}
    return shown
