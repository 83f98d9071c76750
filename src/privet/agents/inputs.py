"""Array types of an agent half, and the blocks in which it works on large vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

Vector = NDArray[Any]
Arrays = Mapping[str, Vector]

PART = 1 << 17
"""Entries of a large vector that are processed together, so that they stay in the cache."""


def parts(size: int) -> Iterator[slice]:
    """Yield the parts of a vector of this many numbers, in order."""
    for begin in range(0, size, PART):
        yield slice(begin, begin + PART)


def starting_rows(states: Mapping[str, Vector], which: Any) -> dict[str, Vector]:
    """Return the states that some agents, or one, start from: their rows, and the shared arrays."""
    return {name: array[which] if array.ndim > 1 else array for name, array in states.items()}
