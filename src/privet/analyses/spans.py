"""Sums over those at risk at each of many times, and over the times at which each is at risk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .frame import FloatArray

Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Spans:
    """For n rows the places first_i to last_i - 1 among k times; ``last`` rises.

    Where all begin at place 0, the sums are cumulative. Otherwise a difference of cumulative sums
    would lose all digits of a small sum beside large ones, as of risks exp(x'b); so each span is
    cut into nodes of a binary tree over the times, at most two a level, and nothing is subtracted:
    O((n + k) log k).

    Attributes
    ----------
    last : int array (n,)
    times : int
        k.
    levels : tuple of tuples of int arrays (rows, nodes)
        From the finest level on, the rows that have a node there, by rising node; empty where all
        begin at 0. Node m of a level with s nodes is s + m.
    """

    last: Places
    times: int
    levels: tuple[tuple[tuple[Places, Places], ...], ...]

    @classmethod
    def of(cls, first: Places, last: Places, times: int) -> Spans:
        """Return the spans of rows; first < last."""
        levels = []
        if first.any():
            size = 1 << max(times - 1, 0).bit_length()
            low, high = first + size, last + size
            while (low < high).any():
                inside = low < high
                left = np.flatnonzero(inside & (low & 1 == 1))
                right = np.flatnonzero(inside & (high & 1 == 1))
                level = (_by_node(left, low[left]), _by_node(right, high[right] - 1))
                levels.append(level)
                low, high = (low + 1) >> 1, high >> 1
        return cls(last, times, tuple(levels))

    def over_rows(self, values: FloatArray) -> FloatArray:
        """Return the sums (k, ...) of values (n, ...) over those at risk at each time."""
        if not self.levels:
            binned = np.zeros((self.times + 1, *values.shape[1:]))
            _add(binned, self.last, values)
            summed: FloatArray = np.cumsum(binned[:0:-1], axis=0)[::-1]
            return summed
        size = 1 << max(self.times - 1, 0).bit_length()
        nodes = np.zeros((2 * size, *values.shape[1:]))
        for level in self.levels:
            for rows, places in level:
                _add(nodes, places, values[rows])
        start = 1
        while start < size:
            nodes[2 * start : 4 * start] += np.repeat(nodes[start : 2 * start], 2, axis=0)
            start *= 2
        return nodes[size : size + self.times]

    def over_times(self, values: FloatArray) -> FloatArray:
        """Return the sums (n, ...) of values (k, ...) over the times at which each is at risk."""
        if not self.levels:
            none = np.zeros((1, *values.shape[1:]))
            found: FloatArray = np.concatenate([none, np.cumsum(values, axis=0)])[self.last]
            return found
        size = 1 << max(self.times - 1, 0).bit_length()
        nodes = np.zeros((2 * size, *values.shape[1:]))
        nodes[size : size + self.times] = values
        start = size
        while start > 1:
            nodes[start // 2 : start] = (
                nodes[start : 2 * start : 2] + nodes[start + 1 : 2 * start : 2]
            )
            start //= 2
        total = np.zeros((len(self.last), *values.shape[1:]))
        for level in self.levels:
            for rows, places in level:
                total[rows] += nodes[places]
        return total


def _by_node(rows: Places, nodes: Places) -> tuple[Places, Places]:
    order = np.argsort(nodes, kind="stable")
    return rows[order], nodes[order]


def _add(totals: FloatArray, places: Places, values: FloatArray) -> None:
    """Add values (m, ...) to the totals at rising places (m,)."""
    if len(places):
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        totals[places[starts]] += np.add.reduceat(values, starts, axis=0)
