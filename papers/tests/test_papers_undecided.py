"""The page of what would decide an entry: its numbers of seeds by the rule itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.undecided import (
    PAGE,
    READINGS,
    need_of,
    needs,
    page,
    played,
    reading_needs,
    seeds_for,
)
from studies.rule import FAMILY, Gap, Side, all_of
from studies.statistics import Estimate

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def values_of(count: int, mean: float, spread: float) -> Estimate:
    """Return the estimate of ``count`` values that have exactly this mean and spread."""
    values = np.arange(count) - (count - 1) / 2
    return Estimate.of(list(mean + spread * values / np.std(values, ddof=1)))


@given(
    mean=st.floats(-3, 3).filter(lambda mean: abs(mean) > 0.05),
    entries=st.integers(1, 120),
    count=st.integers(2, 12),
)
def test_the_rule_decides_with_so_many_seeds_and_no_fewer(
    mean: float, entries: int, count: int
) -> None:
    seeds = seeds_for(Gap(values_of(count, mean, 1.0)), FAMILY / entries)
    if not seeds:
        assert abs(mean) < 0.1
        return
    assert Gap(values_of(seeds, mean, 1.0)).side(entries) in (Side.INSIDE, Side.OUTSIDE)
    assert seeds == 2 or Gap(values_of(seeds - 1, mean, 1.0)).side(entries) is Side.OPEN


@pytest.mark.parametrize("means", [(0.5, 0.9), (0.5, -0.9), (-0.3, -0.2), (0.4, 0.2)])
def test_a_claim_of_two_gaps_is_decided_as_the_rule_does(means: tuple[float, float]) -> None:
    side, seeds = reading_needs([Gap(values_of(5, mean, 1.0)) for mean in means], 10)
    assert side is (Side.INSIDE if min(means) > 0 else Side.OUTSIDE)

    def with_seeds(count: int) -> Side:
        return all_of([Gap(values_of(count, mean, 1.0)) for mean in means], 10)

    assert with_seeds(seeds) is side
    assert with_seeds(seeds - 1) is Side.OPEN


def test_readings_that_disagree_and_a_mean_on_the_end_need_no_seeds() -> None:
    line = {"entry": "a", "reason": "alike within the spread"}
    one = {"half-width": 0.5, "repetitions": 5, "tried": 5, "region": [0.0, None]}
    two = [{**one, "reading": "x", "mean": 1.0}, {**one, "reading": "y", "mean": -1.0}]
    assert need_of("s", {**line, "judged": two}, 3, 1.0).why == READINGS
    on_the_end = need_of("s", {**line, "judged": [{**one, "reading": "", "mean": 0.0}]}, 3, 1.0)
    assert (on_the_end.seeds, on_the_end.side) == (0, "")
    decided = need_of("s", {**line, "judged": [{**one, "reading": "", "mean": 0.4}]}, 3, 3600.0)
    assert decided.side == "as printed"
    assert decided.hours == pytest.approx(decided.seeds / 2)
    assert math.isfinite(decided.hours)


def test_the_page_is_what_its_command_writes() -> None:
    assert (RESULTS / PAGE).read_text() == page(list(needs(RESULTS)), list(played(RESULTS)))
