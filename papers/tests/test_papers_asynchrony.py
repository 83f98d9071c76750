"""The search of the study of asynchronous runs, and what its page begins with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from results.asynchrony import Study, finding
from studies.replays import replay_file
from studies.search import TRIALS, compass
from support.paths import golden


@pytest.mark.parametrize("best", [{"a": 1.0}, {"a": 40.0}, {"a": 0.02, "b": 9.0}])
def test_the_best_has_worse_neighbours_on_all_sides(best: dict[str, float]) -> None:
    tried: list[dict[str, float]] = []

    def score(values: dict[str, float]) -> float:
        tried.append(values)
        return sum(abs(math.log(values[key] / best[key])) for key in best)

    found, count, inside = compass(dict.fromkeys(best, 1.0), {}, score)
    assert inside
    assert count == len(tried) >= TRIALS
    for key, value in best.items():
        assert abs(math.log(found[key] / value)) < math.log(3.0)
        alike = [one[key] for one in tried if all(one[k] == found[k] for k in best if k != key)]
        assert min(alike) < found[key] < max(alike)


def test_no_value_above_what_is_allowed_is_tried() -> None:
    found = compass({"a": 0.3}, {"a": 1.0}, lambda values: -values["a"]).values
    assert 0.3 < found["a"] <= 1.0


def test_a_bounded_search_says_where_the_best_is_at_its_edge() -> None:
    found = compass({"a": 1.0}, {}, lambda values: -values["a"], bound=5)
    assert (found.trials, found.inside, found.values) == (5, False, {"a": 27.0})


def test_a_raced_search_plays_no_run_longer_than_its_best() -> None:
    limits: list[float] = []

    def runs(**run: Any) -> dict[str, Any]:
        limits.append(run["limit"])
        values = run["values"].values()
        time = 100.0 * (1.0 + sum(abs(math.log(value)) for value in values))
        return {"times": [None, time if time <= run["limit"] else None], "end": 0.5}

    study = Study(runs, "network", "FedBuff", "equal")
    assert study.trials == len(limits) >= 5
    assert limits[0] == 600.0
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] < limits[0]


def test_what_is_found_names_the_first_and_those_that_stop() -> None:
    ends = {"AREA": (90.0, 1e-9), "FedBuff": (None, 0.05), "Fed-PLT, waits, a = 1": (300.0, 1e-9)}

    def runs(**run: Any) -> dict[str, Any]:
        if run["data"] != "logistic" or run["speeds"] != "equal":
            raise LookupError(run)
        time, end = ends.get(run["method"], (100.0, 1e-9))
        return {"times": [time] * 4, "end": end, "curve": [[0.0, 1.0], [100.0, end]]}

    assert list(finding(runs)) == [
        "- **Logistic regression, equal**: to 1e-4 AREA is first (90 s; Fed-PLT, asynchronous "
        "100 s; Fed-PLT, waits 300 s); to 1e-8 AREA is first (90 s; Fed-PLT, asynchronous 100 s; "
        "Fed-PLT, waits 300 s). Not there by the end: FedBuff at 5.0e-02."
    ]


def test_worked_asynchronous_instances_are_reproduced() -> None:
    for path in golden("async-fed-plt-*.json"):
        found = replay_file(path)
        assert found.rounds >= 6
        assert found.max_abs_error <= 1e-9
