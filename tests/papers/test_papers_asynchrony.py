"""The search of the study of asynchronous runs."""

from __future__ import annotations

import math

import pytest

from results.asynchrony import TRIALS, searched


@pytest.mark.parametrize("best", [{"a": 1.0}, {"a": 40.0}, {"a": 0.02, "b": 9.0}])
def test_the_best_has_worse_neighbours_on_all_sides(best: dict[str, float]) -> None:
    tried: list[dict[str, float]] = []

    def score(values: dict[str, float]) -> float:
        tried.append(values)
        return sum(abs(math.log(values[key] / best[key])) for key in best)

    found, count = searched(dict.fromkeys(best, 1.0), {}, score)
    assert count == len(tried) >= TRIALS
    for key, value in best.items():
        assert abs(math.log(found[key] / value)) < math.log(3.0)
        alike = [one[key] for one in tried if all(one[k] == found[k] for k in best if k != key)]
        assert min(alike) < found[key] < max(alike)


def test_no_value_above_what_is_allowed_is_tried() -> None:
    found, _ = searched({"a": 0.3}, {"a": 1.0}, lambda values: -values["a"])
    assert 0.3 < found["a"] <= 1.0
