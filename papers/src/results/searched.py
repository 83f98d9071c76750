"""A compass search on a grid of powers, by which studies choose the settings of a method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

TRIALS, WIDEST = 7, 8


class Found(NamedTuple):
    """The best values, how many were tried, and whether the best has worse ones on all sides."""

    values: dict[str, float]
    trials: int
    inside: bool = True


def searched(
    grid: Mapping[str, float],
    most: Mapping[str, float],
    score: Callable[[dict[str, float]], float],
    trials: int = TRIALS,
    bound: float = math.inf,
) -> Found:
    """Return the best of a compass search on a grid of powers; a lower score is better.

    From the middle it goes to the better neighbour, a factor 3 on a key; where none is, by its
    root, and so on. It ends after ``trials``, but not before the best has worse ones on all sides,
    nor later than after ``bound``.
    """
    keys, tried = list(grid), dict[tuple[int, ...], float]()

    def value(place: tuple[int, ...]) -> dict[str, float]:
        return {
            k: float(f"{grid[k] * 3 ** (p / WIDEST):.4g}") for k, p in zip(keys, place, strict=True)
        }

    def beside(place: tuple[int, ...], width: int) -> Iterator[tuple[int, ...]]:
        for axis in range(len(keys)):
            for side in (-width, width):
                near = (*place[:axis], place[axis] + side, *place[axis + 1 :])
                if all(one <= most.get(key, math.inf) for key, one in value(near).items()):
                    yield near

    best, width, bracketed = (0,) * len(keys), WIDEST, False
    tried[best] = score(value(best))
    while len(tried) < bound:
        around = [near for near in beside(best, width) if near not in tried]
        if not around:
            bracketed = True
            if len(tried) >= trials or width == 1:
                break
            width //= 2
            continue
        if bracketed and len(tried) >= trials:
            break
        near = around[0]
        tried[near] = score(value(near))
        if tried[near] < tried[best]:
            best, bracketed = near, bracketed and width < WIDEST
    return Found(value(best), len(tried), bracketed)
