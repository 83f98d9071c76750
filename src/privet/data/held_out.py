"""Which examples are held out, and in what order examples are dealt.

Deployed agents each compute the split for themselves, so it must come out the same on every
machine. Shuffles therefore order raw Philox words, whose stream numpy keeps stable between
versions, which it does not promise for ``Generator.permutation``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .dataset import Indices, LabelArray, Part

HELD_OUT = 0.2


def permutation(count: int, source: np.random.Philox) -> Indices:
    """Return a uniform permutation of 0 ... count - 1 from raw 64-bit words of the source."""
    return np.argsort(source.random_raw(count), kind="stable")


def hold_out(
    count: int,
    seed: int | None,
    ids: LabelArray | None = None,
    persons: LabelArray | None = None,
) -> tuple[Indices, Indices]:
    """Return training and held-out positions, ascending: a fifth is held out, fixed by the seed.

    With ``ids``, it is a fifth of the examples of each id, rounded: who has one or two keeps them.
    With ``persons``, it is a fifth of the persons, each with all examples. Without a seed nothing
    is held out.
    """
    if seed is None:
        return np.arange(count), np.arange(0)
    if persons is not None:
        rows = by_person(persons)
        firsts = None if ids is None else ids[[one[0] for one in rows]]
        train, test = rows_of(rows, *hold_out(len(rows), seed, firsts))
        return train, test
    held_out = _drawn(count, seed, ids)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _drawn(count: int, seed: int, ids: LabelArray | None) -> NDArray[np.bool_]:
    """Return which examples are held out."""
    order = permutation(count, np.random.Philox(seed))
    parts = [order]
    if ids is not None:
        drawn = np.argsort(order)
        parts = [part[np.argsort(drawn[part])] for part in by_id(ids)]
    held_out = np.zeros(count, dtype=bool)
    for part in parts:
        held_out[part[: round(len(part) * HELD_OUT)]] = True
    return held_out


def split(whole: Part, seed: int | None) -> tuple[Part, Part]:
    """Return the examples that `hold_out` leaves for training, and those that it holds out."""
    train, test = hold_out(len(whole.labels), seed, whole.ids, whole.persons)
    return whole.rows(train), whole.rows(test)


def by_person(persons: LabelArray) -> list[Indices]:
    """Return the positions of each person's examples, ascending, in the order of their first."""
    return sorted(by_id(persons), key=lambda rows: int(rows[0]))


def most_rows(persons: LabelArray) -> int:
    """Return how many examples the person has who has most."""
    return int(np.unique(persons, return_counts=True)[1].max(initial=1))


def rows_of(rows: Sequence[Indices], *chosen: Indices) -> tuple[Indices, ...]:
    """Return, of each choice of persons, the positions of their examples, ascending."""
    none = np.arange(0)
    return tuple(np.sort(np.concatenate([none, *(rows[at] for at in one)])) for one in chosen)


def by_id(ids: LabelArray) -> list[Indices]:
    """Return the positions of each distinct id, ascending, in the order of the sorted ids."""
    values, first = np.unique(np.sort(ids), return_index=True)
    order = np.argsort(ids, kind="stable")
    return np.split(order, first[1:]) if len(values) else []
