"""Harrell's concordance: how often who dies first had the higher risk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .frame import FloatArray
from .risk_sets import RiskSets

Ranks = NDArray[np.intp]


@dataclass(frozen=True)
class Pairs:
    """Numbers of pairs of a death and one who is at risk then and does not die then."""

    concordant: float
    tied: float
    all: float


def pairs_of(sets: RiskSets, scores: FloatArray) -> Pairs:
    """Return the pairs of a stratum in which who dies has the higher of the scores (n,).

    Pairs are of i who dies and j who is at risk at that time and lives on, or is censored then
    (Harrell, Lee and Mark, 1996; Therneau and Grambsch for times of entry). O(n log^2 n).
    """
    ranks = np.unique(np.round(scores, 12), return_inverse=True)[1]
    death = sets.last[sets.dead] - 1
    of_dead = ranks[sets.dead]
    counts = _pairs(sets.last, ranks, death, of_dead)
    counts -= _pairs(sets.first, ranks, death, of_dead)  # not yet there
    counts -= _same_time(death, of_dead)
    below, tied, every = counts
    return Pairs(float(below), float(tied), float(every))


def _pairs(places: Ranks, ranks: Ranks, death: Ranks, of_dead: Ranks) -> NDArray[np.int64]:
    """Count pairs with place_j > death_i: those with rank_j < rank_i, equal ones, and all."""
    above = np.sort(places)
    every = (len(above) - np.searchsorted(above, death, side="right")).sum()
    if not every:
        return np.zeros(3, np.int64)
    # By falling place; a place that is the death's own comes after it.
    order = np.lexsort((np.repeat([1, 0], [len(places), len(death)]), -np.append(places, death)))
    is_point = np.repeat([True, False], [len(places), len(death)])[order]
    sequence = np.append(ranks, of_dead)[order]
    below = _earlier_and_lower(2 * sequence + is_point, is_point)
    up_to = _earlier_and_lower(2 * sequence + 1 - is_point, is_point)
    return np.array([below, up_to - below, every], np.int64)


def _earlier_and_lower(keys: Ranks, is_point: NDArray[np.bool_]) -> int:
    """Count pairs of a point and a later query with a key above it; keys of the two differ.

    Merge sort from the bottom: in each block of 2^(l + 1) places, points of the first half are
    counted below queries of the second.
    """
    order = np.argsort(keys, kind="stable")
    total = 0
    for level in range(max(len(keys) - 1, 0).bit_length()):
        blocks = order >> (level + 1)
        sorted_order = order[np.argsort(blocks, kind="stable")]
        blocks = sorted_order >> (level + 1)
        second = (sorted_order >> level & 1).astype(bool)
        points = np.cumsum(is_point[sorted_order] & ~second)
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        before = np.append(0, points)[starts]
        counts = points - np.repeat(before, np.diff(np.append(starts, len(keys))))
        total += int(counts[second & ~is_point[sorted_order]].sum())
    return total


def _same_time(death: Ranks, ranks: Ranks) -> NDArray[np.int64]:
    """Count ordered pairs who die at one time, a row with itself too: lower, equal, and all."""
    _, sizes = np.unique(death, return_counts=True)
    _, equal = np.unique(np.stack([death, ranks]), axis=1, return_counts=True)
    every, tied = int((sizes**2).sum()), int((equal**2).sum())
    return np.array([(every - tied) // 2, tied, every], np.int64)
