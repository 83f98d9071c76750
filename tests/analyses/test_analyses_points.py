"""A coordinator's point is refused, or costs a site no more than the one of an honest round."""

import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.analyses.description import DescribeAnalysis
from privet.analyses.evaluation import EvaluatedGlm
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.glm import Glm
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.pooled_cox import PooledCox
from support.analysis_sites import federate, frames_by, table_of

TIMES = {"time_column": "days", "event_column": "died"}
FORMULA = "died ~ age + sex"
ANALYSES: dict[str, tuple[str, Analysis[Any]]] = {
    "describe": ("cox-1", DescribeAnalysis()),
    "glm": ("glm-binomial-1", Glm("binomial", FORMULA)),
    "firth": ("glm-binomial-1", Glm("binomial", FORMULA, firth=True)),
    "cox": ("cox-1", CoxAnalysis(formula="age + sex", **TIMES)),
    "firth cox": ("cox-1", CoxAnalysis(formula="age + sex", firth=True, **TIMES)),
    "pooled cox": ("cox-1", PooledCox(formula="age + sex", **TIMES)),
    "kaplan-meier": ("cox-1", KaplanMeierAnalysis(**TIMES, group_column="sex")),
    "horizon": ("cox-1", KaplanMeierAnalysis(**TIMES, horizon=500.0)),
    "evaluation": ("glm-binomial-1", EvaluatedGlm(Glm("binomial", FORMULA))),
}
GRIDS = ("places", "rates", "risk_units")
SECONDS, BYTES = 1.0, 64e6
HOSTILE = (np.nan, np.inf, -np.inf, 0.0, -1.0, 0.5, 1e-300, 1e9, 2e9, 1e18, 1e300)


class Watched:
    """A site's sums that keeps each point that it is asked at."""

    def __init__(self, sums: Any) -> None:
        self.sums, self.points = sums, []
        self.num_examples, self.left_out = sums.num_examples, sums.left_out

    def statistics(self, point: Any) -> Any:
        self.points.append(point)
        return self.sums.statistics(point)


def site_of(name: str) -> Watched:
    """Return the first site of an honest analysis, with the points of all its rounds."""
    table, analysis = ANALYSES[name]
    sites: list[Watched] = []

    def watch(sums: Any) -> Watched:
        sites.append(Watched(sums))
        return sites[-1]

    federate(analysis, frames_by(table_of(f"{table}.csv")), of=watch, ordered=False)
    return sites[0]


def other_shapes(array: Any) -> Iterator[Any]:
    yield np.zeros((*array.shape, 1))
    yield np.zeros((*array.shape, 0))
    yield np.ones(8_000)
    yield np.ones((max(array.shape, default=3), 8_000))
    yield np.ones((2, 2, 2))


@pytest.mark.parametrize("name", ANALYSES)
def test_arrays_of_other_shapes_are_refused_before_any_work(name: str) -> None:
    site = site_of(name)
    for point in site.points:
        for key, array in point.items():
            for other in other_shapes(np.asarray(array)):
                if other.shape == array.shape:
                    continue
                with pytest.raises(AnalysisError, match=r"the point's .* of shape|asks for"):
                    site.sums.statistics({**point, key: other})
        with pytest.raises(AnalysisError, match="the point's more is of shape"):
            site.sums.statistics({**point, "more": np.ones(3)})
        if "places" in point:
            rows = {key: np.shape(point[key])[1:] for key in GRIDS if key in point}
            many = {key: np.broadcast_to(0.0, (4_000_000, *rest)) for key, rest in rows.items()}
            with pytest.raises(
                AnalysisError, match=r"asks for \d{9,} bytes|transforms is of shape"
            ):
                site.sums.statistics({**point, **many})


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a node that is lied to may divide by 0
def test_hostile_numbers_cost_no_more_than_an_honest_point(name: str) -> None:
    site = site_of(name)
    asked = 0
    for point in site.points:
        honest = {key: np.shape(value) for key, value in site.sums.statistics(point).items()}
        for key, array in point.items():
            for number in HOSTILE:
                tracemalloc.start()
                before = time.process_time()
                try:
                    answer = site.sums.statistics({**point, key: np.full_like(array, number)})
                except (
                    AnalysisError,
                    KeyError,
                    ZeroDivisionError,
                ):  # the node says: its task failed
                    pass
                else:
                    assert {k: np.shape(v) for k, v in answer.items()} == honest or key == "phase"
                    assert sum(np.size(value) for value in answer.values()) * 8 < BYTES
                finally:
                    seconds = time.process_time() - before
                    peak = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                asked += 1
                assert seconds < SECONDS, (key, number)
                assert peak < BYTES, (key, number)
    assert asked >= 3 * len(HOSTILE)


@pytest.mark.parametrize(
    "settings",
    [
        {"horizon": 365.0, "time_unit": 2e-6},
        {"horizon": 1e8},
        {"horizon": np.inf},
        {"horizon": np.nan},
        {"horizon": 1e308, "time_unit": 1e-308},
    ],
)
def test_a_grid_that_no_memory_holds_is_refused_at_the_site(settings: Any) -> None:
    frame = frames_by(table_of("cox-1.csv"))[0]
    analysis = KaplanMeierAnalysis(**TIMES, **settings)
    with pytest.raises(AnalysisError, match=r"time-unit|horizon"):
        analysis.sums(frame, {})


def test_a_test_in_strata_of_single_rows_costs_their_rows_alone() -> None:
    """However long the grid is."""
    analysis = KaplanMeierAnalysis(**TIMES, strata_column="id", horizon=1e5)
    rng, rows = np.random.default_rng(1), 2000
    times = {"days": rng.integers(1, 10**5, rows), "died": rng.integers(0, 2, rows)}
    sums = analysis.sums(Frame.of({**times, "id": np.arange(rows)}), {})
    began = time.process_time()
    sums.statistics({"unit": np.array(1.0), "cells": np.array(1e5)})
    assert time.process_time() - began < SECONDS


def test_groups_and_times_are_bounded_together_at_the_site() -> None:
    frame = frames_by(table_of("cox-1.csv"))[0]
    more = tuple(f"level {place}" for place in range(47))
    levels = {"smoker": ("current", "former", "never", *more)}
    few = KaplanMeierAnalysis(**TIMES, group_column="smoker", horizon=2e4)
    many = KaplanMeierAnalysis(**TIMES, group_column="smoker", horizon=1e6)
    with pytest.raises(AnalysisError, match="a grid of 1000000 times for 50 groups is over"):
        many.sums(frame, levels)
    assert few.last * 50 <= 2**20


@pytest.mark.parametrize("by", ["", "sex"])
def test_a_description_is_bounded_at_the_site(by: str) -> None:
    """The agreed columns and categories are the coordinator's words."""
    frame = frames_by(table_of("cox-1.csv"))[0]
    groups = tuple(f"group {place}" for place in range(5_000)) if by else ("F", "M")
    more = {} if by else {f"c{place}": () for place in range(5_000)}
    levels = {"age": (), "bmi": (), "sex": groups, **more}
    with pytest.raises(AnalysisError, match="numbers of a site in a round, at most"):
        DescribeAnalysis(by=by).sums(frame, levels)


@pytest.mark.parametrize(
    "model", [Glm(formula="died ~ age"), EvaluatedGlm(Glm(formula="died ~ age"))]
)
def test_a_phase_that_a_regression_has_not_is_one_line(model: Any) -> None:
    frame = frames_by(table_of("cox-1.csv"))[0]
    sums = model.sums(frame, {})
    point = {**model.point(model.begin({})), "unit": np.array(1.0)}
    for phase in (5.0, 9.0, -1.0, 1e6):
        with pytest.raises(
            AnalysisError, match=r"^the point's phase -?\d+ is none of a regression$"
        ):
            sums.statistics({**point, "phase": np.array(phase)})


UNUSUAL = [0.0, -1.0, 0.5, 3.0, 2.0**41, 5e-324, 1e300]


@pytest.mark.parametrize("unit", UNUSUAL)
def test_units_that_no_coordinator_of_this_library_asks_in_are_refused(unit: float) -> None:
    frame = frames_by(table_of("cox-1.csv"))[0]
    for analysis in (KaplanMeierAnalysis(**TIMES, horizon=300.0), DescribeAnalysis(only="age")):
        sums = analysis.sums(frame, {"age": ()})
        point = {**analysis.point(analysis.begin({"age": ()})), "unit": np.array(unit)}
        with pytest.raises(AnalysisError, match=r"the point's unit is no power of two from 2\^0"):
            sums.statistics(point)
