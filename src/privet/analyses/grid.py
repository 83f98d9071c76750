"""A public grid of times: whole multiples of a unit, and intervals of it merged at a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .follow_up import FollowUp, Mask
from .frame import FloatArray

Cells = NDArray[np.int64]

DOUBLINGS = 53
"""Powers of two units after which those who leave are counted, to find the end of a grid."""


@dataclass(frozen=True, eq=False)
class GridTimes:
    """Times of follow-up as whole multiples of a unit.

    Attributes
    ----------
    cell : int64 array (n,)
        Of the end: k for a time in (k - 1, k] units.
    event : bool array (n,)
    entry : int64 array (n,)
        Who enters in [k, k + 1) is at risk from k + 1 on; -1 for all who are from the beginning.
    off_grid : int
        The rows of which a time is no whole multiple, and is moved.
    """

    cell: Cells
    event: Mask
    entry: Cells
    off_grid: int

    @classmethod
    def of(cls, times: FollowUp, unit: float, last: int = 0) -> GridTimes:
        """Return the times on the grid of a unit; those after the cell ``last`` > 0 are censored.

        Whoever is still followed at ``last`` leaves there, and who enters later is not at risk.
        Times of more than 2^52 units, which have no exact whole numbers, are of so many: any grid
        ends before, and an error would say of the largest time whether it is above a number of the
        coordinator's.
        """
        cell, moved = _whole(_in_units(times.time, unit), np.ceil)
        entry = np.full(len(cell), -1, np.int64)
        truncated = np.isfinite(times.entry)
        if truncated.any():
            entry[truncated], late = _whole(_in_units(times.entry[truncated], unit), np.floor)
            moved[truncated] |= late
        event = times.event
        if last:
            event = event & (cell <= last)
            cell, entry = np.minimum(cell, last), np.minimum(entry, last)
        return cls(cell, event, entry, int(moved.sum()))

    def taken(self, rows: NDArray[Any]) -> GridTimes:
        """Return the times of some rows, their places or a mask (n,); ``off_grid`` stays."""
        return GridTimes(self.cell[rows], self.event[rows], self.entry[rows], self.off_grid)

    def merged(self, groups: NDArray[np.int32], last: int, least: int) -> GridTimes:
        """Return the times with intervals of the grid merged until no count in them is small.

        By group, the grid is a binary tree of intervals [a 2^j, (a + 1) 2^j). From the bottom, a
        half with fewer than ``least`` but not 0 events, censored rows or entries is merged with as
        many intervals of its other half as it takes. Then two that lie side by side are merged
        where 1 to ``least`` - 1 are at risk across their edge, as of those who have come early
        where others come late. Ends move to the end of the merged interval, entries to its
        beginning. The edges are those of the tree and never a record's time, and which of them go
        follows from counts that are large enough; so all who are at risk at a time are ``least`` or
        more, or none. Where even the whole grid holds too few, it is one interval, and the caller
        must refuse. The price is a curve that is too high inside and, as the censored stay at risk
        until the end of their interval, at the ends: little while many are at risk, much in the
        tail.
        """
        cell, entry = self.cell.copy(), self.entry.copy()
        for group in np.unique(groups):
            rows = groups == group
            truncated = rows & (entry >= 0)
            kinds = (cell[rows & self.event], cell[rows & ~self.event], entry[truncated])
            counts = np.stack([np.bincount(kind, minlength=last + 1) for kind in kinds])
            first, end = _joined(merged_intervals(counts, least)[1], counts, least)
            cell[rows] = end[cell[rows]]
            entry[truncated] = first[entry[truncated]] - 1
        moved = (cell != self.cell) | (entry != self.entry)
        return GridTimes(cell, self.event, entry, max(self.off_grid, int(moved.sum())))


def merged_intervals(counts: NDArray[np.int64], least: int) -> tuple[Cells, Cells]:
    """Return for each cell the first and last cell of its merged interval, of counts (kinds, k).

    See `GridTimes.merged`. Empty halves are one interval, too, which changes nothing.
    """
    depth = max(counts.shape[1] - 1, 0).bit_length()
    size = 1 << depth
    level = np.zeros((len(counts), size), np.int64)
    level[:, : counts.shape[1]] = counts
    before = np.concatenate([np.zeros((len(counts), 1), np.int64), level.cumsum(axis=1)], axis=1)
    first, end = np.arange(size), np.arange(size)
    small = _small(level, least)
    for step in range(1, depth + 1):
        empty = (level == 0).all(axis=0)
        level = level[:, ::2] + level[:, 1::2]
        poor = small | empty
        whole = poor[::2] & poor[1::2]
        for node in np.flatnonzero(~whole & (small[::2] | small[1::2])):
            start, stop = int(node) << step, (int(node) + 1 << step) - 1
            whole[node] = _small(level[:, node], least)
            if whole[node]:
                continue
            if small[2 * node]:
                stop = int(end[start])
                while _small(before[:, stop + 1] - before[:, start], least):
                    stop = int(end[stop + 1])
            else:
                start = int(first[stop])
                while _small(before[:, stop + 1] - before[:, start], least):
                    start = int(first[start - 1])
            first[start : stop + 1], end[start : stop + 1] = start, stop
        cells = np.repeat(whole, 1 << step)
        place = np.arange(size) >> step << step
        first = np.where(cells, place, first)
        end = np.where(cells, place + (1 << step) - 1, end)
        small = whole & _small(level, least)
    return first[: counts.shape[1]], end[: counts.shape[1]]


def _joined(end: Cells, counts: NDArray[np.int64], least: int) -> tuple[Cells, Cells]:
    """Return for each cell the first and last cell of its interval, of those that end at ``end``.

    They are joined where, by counts (3, k) of events, censored rows and entries, 1 to ``least`` - 1
    are at risk from one to the next: who has come in it or before it, and leaves after it.
    """
    places = np.arange(len(end))
    events, censored, entries = counts.cumsum(axis=1)
    left = events + censored
    across = left[-1] - left - (entries[-1] - entries)
    kept = (np.minimum(end, places[-1]) == places) & ~_small(across[None], least)
    ends = np.flatnonzero(kept)
    at = np.searchsorted(ends, places)
    return np.concatenate([[0], ends + 1])[at], ends[at]


def _small(counts: NDArray[np.int64], least: int) -> Mask:
    """Return where one of the counts (kinds, ...) is below ``least`` and not 0."""
    result: Mask = np.asarray(((counts > 0) & (counts < least)).any(axis=0))
    return result


def _in_units(times: FloatArray, unit: float) -> FloatArray:
    with np.errstate(over="ignore"):
        scaled: FloatArray = np.minimum(times / unit, 2.0**52)
    return scaled


def _whole(scaled: FloatArray, rounded: np.ufunc) -> tuple[Cells, Mask]:
    """Return numbers as whole ones, and which had to be moved: those off by more than 1e-9."""
    near = np.rint(scaled)
    moved = np.abs(scaled - near) > 1e-9 * np.maximum(np.abs(scaled), 1.0)
    return np.where(moved, rounded(scaled), near).astype(np.int64), moved
