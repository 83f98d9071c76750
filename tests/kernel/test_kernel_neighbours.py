"""Whom agents of a large sum draw: the bound on what goes wrong, against scipy and all graphs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from scipy.special import comb
from scipy.stats import hypergeom

from privet.kernel import neighbours
from privet.kernel.neighbours import (
    FAILURE_BITS,
    NEIGHBOURS,
    draw,
    least_threshold,
    log2_failure,
)


@pytest.mark.parametrize(("count", "colluders"), [(101, 1), (128, 12), (300, 60), (1000, 100)])
@pytest.mark.parametrize("threshold", [35, 40, 50, 64])
def test_the_bound_is_the_one_of_the_page(count: int, colluders: int, threshold: int) -> None:
    honest, total = count - colluders, 0.0
    for size in range(1, honest // 2 + 1):
        inside = hypergeom(count - 1, size - 1 + colluders, NEIGHBOURS).logsf(threshold - 1)
        sets = np.log(float(comb(honest, size, exact=True)))
        total += float(np.exp(min(sets + size * inside, 700.0)))
    both = hypergeom(count - 1, colluders, NEIGHBOURS).sf(2 * threshold - NEIGHBOURS - 1)
    total += honest * float(both)
    found = log2_failure(count, colluders, threshold)
    if total < 1e-300:
        assert found < -900
    elif total < 1e300:
        assert found == pytest.approx(np.log2(total), abs=1e-3)


def graphs(count: int, honest: int, holders: int) -> Iterator[tuple[frozenset[int], ...]]:
    """Return all that the honest agents 0, 1, ... can draw."""
    each = [
        [frozenset(some) for some in combinations(sorted({*range(count)} - {one}), holders)]
        for one in range(honest)
    ]
    return product(*each)


@pytest.mark.parametrize(("count", "colluders", "holders"), [(5, 1, 2), (5, 2, 3), (6, 2, 3)])
def test_it_bounds_what_happens_in_all_graphs(
    count: int, colluders: int, holders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed sets, and agents with too many colluding holders, counted one by one."""
    monkeypatch.setattr(neighbours, "NEIGHBOURS", holders)
    honest = count - colluders
    helpers = frozenset(range(honest, count))
    sets = [
        frozenset(some)
        for size in range(1, honest // 2 + 1)
        for some in combinations(range(honest), size)
    ]
    for threshold in range((holders + 1) // 2 + 1, holders + 1):
        drawn = bad = 0
        for graph in graphs(count, honest, holders):
            drawn += 1
            closed = any(
                all(len(graph[one] & (some | helpers)) >= threshold for one in some)
                for some in sets
            )
            both = any(len(held & helpers) >= 2 * threshold - holders for held in graph)
            bad += closed or both
        assert bad / drawn <= 2 ** log2_failure(count, colluders, threshold) + 1e-12
        assert bad > 0 or threshold > holders - 1  # or nothing is tested


@pytest.mark.parametrize("count", [101, 128, 500, 1000, 10_000])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.1, 0.2])
def test_the_least_threshold_is_the_least(count: int, part: float) -> None:
    colluders = max(1, int(part * count))
    least = least_threshold(count, colluders)
    assert NEIGHBOURS // 2 < least <= NEIGHBOURS
    assert log2_failure(count, colluders, least) <= -FAILURE_BITS
    assert log2_failure(count, colluders, least - 1) > -FAILURE_BITS
    more = [log2_failure(count, colluders, t) for t in range(least, NEIGHBOURS + 1)]
    assert more == sorted(more, reverse=True)
    assert least_threshold(count, colluders + 1) >= least


@pytest.mark.parametrize("colluders", [80, 98, 99, 100, 101, 500])
def test_no_threshold_is_enough_where_most_help_the_coordinator(colluders: int) -> None:
    assert least_threshold(101, colluders) == NEIGHBOURS + 1


def test_a_draw_is_of_others_each_once_and_alike() -> None:
    """Of 2,000 draws of 64 of 100: each other agent in 1,280; eight standard deviations."""
    counts = np.zeros(101)
    for _ in range(2000):
        drawn = draw(101, 17)
        assert len(set(drawn)) == NEIGHBOURS
        assert list(drawn) == sorted(drawn)
        counts[list(drawn)] += 1
    assert counts[17] == 0
    others = np.delete(counts, 17)
    assert np.abs(others - 1280).max() < 8 * np.sqrt(2000 * 0.64 * 0.36)
