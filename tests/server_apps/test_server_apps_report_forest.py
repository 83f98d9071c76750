"""The forest plot: marks stand where the axis says, and round ticks cover the intervals."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.server_apps.report.forest import forest

NUMBER = r"-?\d+\.\d+"


def marks(cell: str) -> list[float]:
    """Return where the line of no effect, both ends and the estimate stand, in percent."""
    (none,) = re.findall(rf'class="none" x1="({NUMBER})"', cell)
    ((low, high),) = re.findall(rf'<line x1="({NUMBER})" x2="({NUMBER})"', cell)
    (at,) = re.findall(rf'class="at" x1="({NUMBER})"', cell)
    return [float(one) for one in (none, low, at, high)]


def ticks(axis: str) -> list[tuple[float, float]]:
    """Return each tick's place and number."""
    found = re.findall(rf'left:({NUMBER})%">([^<]*)<', axis)
    return [(float(at), float(label.replace("\u2212", "-"))) for at, label in found]


def test_ratios_stand_on_a_logarithmic_axis() -> None:
    (cell,), axis = forest([(2.0, 1.0, 4.0)], 1.0, ratios=True)
    none, low, at, high = marks(cell)
    assert none == low
    assert at - low == pytest.approx(high - at, abs=0.011)
    assert {label: place for place, label in ticks(axis)}[2.0] == pytest.approx(at, abs=0.01)
    assert "<title>2 (1 to 4)</title>" in cell


def test_coefficients_stand_on_a_linear_one() -> None:
    (one, other), axis = forest([(-3.0, -4.0, -2.0), (5.0, 1.0, 9.0)], 0.0, ratios=False)
    assert marks(one)[0] == marks(other)[0]
    labels = [label for _, label in ticks(axis)]
    assert labels == [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


effects = st.lists(st.floats(-30.0, 30.0), min_size=3, max_size=3).map(sorted)


@given(st.lists(effects, min_size=1, max_size=4), st.booleans())
def test_every_interval_lies_within_round_ticks(effects: list[list[float]], ratios: bool) -> None:
    shape = math.exp if ratios else float
    intervals = [(shape(at), shape(low), shape(high)) for low, at, high in effects]
    cells, axis = forest(intervals, float(ratios), ratios=ratios)
    for cell in cells:
        none, low, at, high = marks(cell)
        assert 2.0 <= min(none, low) <= at <= max(none, high) <= 98.0
        assert low <= at <= high
    shown = ticks(axis)
    assert len(shown) >= 2
    places, labels = zip(*shown, strict=True)
    assert list(places) == sorted(places)
    assert all(after - before >= 9.0 for before, after in pairwise(places))
    for label in labels:
        assert label == float(f"{label:.0e}") or not ratios


def test_without_intervals_there_is_no_axis() -> None:
    assert forest([], 1.0, ratios=True) == ([], "")


def test_an_effect_of_nothing_is_drawn() -> None:
    (cell,), _ = forest([(1.0, 1.0, 1.0)], 1.0, ratios=True)
    assert len(set(marks(cell))) == 1
