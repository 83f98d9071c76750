"""What the order of many numbers says, with less memory than ``np.unique`` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mapped


def counted(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the different values of an array (n,), in order, and how many there are of each.

    NaN is one of them, the last. That is ``np.unique(values, return_counts=True)``.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    if len(ordered) and ordered[-1] != ordered[-1]:
        first[np.searchsorted(ordered, ordered[-1]) + 1 :] = False
    each = ordered[first]
    del ordered
    counts = np.flatnonzero(first)  # where each begins, and in its place how far the next one is
    step = max(1, mapped.BLOCK // 16)
    for begin in range(0, len(counts), step):
        ends = counts[begin + 1 : begin + 1 + step]
        here = counts[begin : begin + len(ends)]
        np.subtract(ends, here, out=here)
    counts[-1:] = len(first) - counts[-1:]
    return each, counts


def _odd(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are NaN."""
    odd: NDArray[np.bool_] = values != values  # noqa: PLR0124
    return odd


def places(values: NDArray[Any]) -> NDArray[np.int32]:
    """Return which of the different values, in order, each of an array (n,) is, from 0 on.

    NaN is one of them, the last. That is the inverse of ``np.unique``, of fewer than 2^31 values.
    """
    order = np.argsort(values)
    found = np.empty(len(values), np.int32)
    last, place = values[order[:1]], 0
    step = max(1, mapped.BLOCK // 16)
    for begin in range(0, len(values), step):
        rows = order[begin : begin + step]
        here = values[rows]
        before = np.concatenate([last, here[:-1]])
        new = (here != before) & (~(_odd(here) & _odd(before)))
        steps = np.cumsum(new, dtype=np.int32)
        found[rows] = steps + place
        last, place = here[-1:], place + int(steps[-1])
    return found


def paired(first: NDArray[np.int32], second: NDArray[np.int32], several: int) -> NDArray[np.int32]:
    """Return which of the different pairs, in order, each pair (n,) of two codes is, from 0 on.

    Codes are from 0 on, the second below ``several``. That is the inverse of ``np.unique`` of
    ``first * several + second``.
    """
    largest = (int(first.max(initial=0)) + 1) * several
    if largest > len(first):
        return places(first.astype(np.int64) * several + second)
    there = np.zeros(largest, bool)
    step = max(1, mapped.BLOCK // 16)
    parts = [slice(begin, begin + step) for begin in range(0, len(first), step)]
    for part in parts:
        there[first[part].astype(np.int64) * several + second[part]] = True
    numbers = np.cumsum(there, dtype=np.int32) - np.int32(1)
    found = np.empty(len(first), np.int32)
    for part in parts:
        found[part] = numbers[first[part].astype(np.int64) * several + second[part]]
    return found
