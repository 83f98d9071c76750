"""Survival curves of one noised sum: what a record adds, the curve, and what noise adds to it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.follow_up import FollowUpColumns
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.kaplan_meier_result import KaplanMeierResult
from privet.analyses.noised_curves import MOST_TIMES, NoisedCurves, falling
from privet.kernel.programs.statistics import bounded_sum
from support.analysis_sites import federate

TIMES = {"time_column": "days", "event_column": "died"}
ARMS = {"arm": ("a", "b")}


def patients(seed: int, n: int = 500, *, entry: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    days = np.ceil(rng.exponential(300.0, n)) + 1.0
    gone = np.ceil(rng.uniform(100.0, 900.0, n))
    columns: dict[str, Any] = {
        "days": np.minimum(days, gone),
        "died": (days <= gone).astype(float),
        "arm": rng.choice(["a", "b"], n),
    }
    if entry:
        columns["came"] = np.minimum(rng.integers(0, 120, n), columns["days"] - 1.0)
    return columns


def total(noised: Any, columns: dict[str, Any]) -> np.ndarray:
    """The sum without noise, as the kernel adds it."""
    return bounded_sum(1.0, noised.contributions(Frame.of(columns)), noised.width)


@pytest.mark.parametrize("entry", [False, True])
def test_without_noise_the_curves_are_those_of_exact_counts(entry: bool) -> None:
    columns = patients(1, entry=entry)
    keys = {**TIMES, "time_unit": 30.0, "horizon": 720.0, "group_column": "arm"}
    keys |= {"entry_column": "came"} if entry else {}
    analysis = KaplanMeierAnalysis(**keys, restriction=600.0)
    noised = analysis.noised(ARMS, {})
    found = noised.table(total(noised, columns), 0.0)
    right = federate(analysis, [Frame.of(columns)]).table
    assert found["groups"] == right["groups"]
    assert (found["n"], found["events"]) == pytest.approx((right["n"], right["events"]), rel=1e-5)
    for at in range(3):
        places = np.searchsorted(found["times"][at], right["times"][at])
        for key in ("survival", "at_risk", "died", "se"):
            one, other = np.array(found[key][at])[places], right[key][at]
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        assert found["median"][at] == right["median"][at]
        for key in ("restricted_mean", "restricted_mean_se"):
            assert found[key][at] == pytest.approx(right[key][at], rel=1e-6)
        assert not np.array(found["se_noise"][at]).any()


ROW = st.tuples(
    st.one_of(st.none(), st.floats(-5.0, 1e9), st.just(float("inf"))),
    st.sampled_from([0.0, 1.0, 2.0, None]),
    st.one_of(st.none(), st.floats(-5.0, 1e9)),
    st.sampled_from(["a", "b", None]),
)


@given(st.lists(ROW, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_a_record_adds_a_vector_of_norm_1_whatever_it_holds(
    rows: list[Any], entry: bool, grouped: bool
) -> None:
    days, died, came, arm = (list(cells) for cells in zip(*rows, strict=True))
    columns: dict[str, Any] = {"days": days, "died": died, "came": came, "arm": [*arm]}
    columns = {name: [*cells, fill] for (name, cells), fill in zip(
        columns.items(), (1.0, 1.0, 0.0, "a"), strict=True)}  # fmt: skip
    keys: dict[str, Any] = {"entry_column": "came"} if entry else {}
    keys |= {"group_column": "arm"} if grouped else {}
    noised = KaplanMeierAnalysis(**TIMES, time_unit=7.0, horizon=70.0, **keys).noised(ARMS, {})
    blocks = np.concatenate(list(noised.contributions(Frame.of(columns))))
    assert blocks.shape == (len(rows) + 1, noised.width)
    assert (blocks >= 0.0).all()
    assert (np.linalg.norm(blocks, axis=1) <= 1.0 + 1e-12).all()
    assert (blocks.sum(axis=1) > 0.0).all()
    for place in range(len(rows) + 1):  # each row is of that record alone
        own = {name: [cells[place], fill] for (name, cells), fill in zip(
            columns.items(), (1.0, 1.0, 0.0, "a"), strict=True)}  # fmt: skip
        alone = np.concatenate(list(noised.contributions(Frame.of(own))))
        assert (alone[0] == blocks[place]).all()


def test_the_noise_of_curves_and_means_is_what_the_table_says() -> None:
    """By 600 draws of the noise on one table, beside the errors that it states."""
    columns = patients(2, 800)
    keys = {**TIMES, "time_unit": 50.0, "horizon": 700.0, "restriction": 400.0}
    noised = KaplanMeierAnalysis(**keys).noised({}, {})
    exact = total(noised, columns)
    true = noised.table(exact, 0.0)
    rng = np.random.default_rng(3)
    found = [noised.table(exact + rng.normal(0.0, 5.0, noised.width), 5.0) for _ in range(600)]
    for time in (100.0, 300.0, 500.0):
        place = true["times"][0].index(time)
        moved = [one["survival"][0][place] for one in found]
        said = np.mean([one["se_noise"][0][place] for one in found])
        assert np.std(moved) == pytest.approx(said, rel=0.12)
        assert abs(np.mean(moved) - true["survival"][0][place]) < 0.25 * said
    means = [one["restricted_mean"][0] for one in found]
    said = np.sqrt(np.mean([one["restricted_mean_se"][0] ** 2 for one in found])
                   - true["restricted_mean_se"][0] ** 2)  # fmt: skip
    assert np.std(means) == pytest.approx(said, rel=0.12)


def test_intervals_hold_the_survival_with_noise_and_sampling() -> None:
    """300 tables of exponential times: S(300) is in about 95 of 100 intervals."""
    keys = {**TIMES, "time_unit": 50.0, "horizon": 600.0}
    noised = KaplanMeierAnalysis(**keys).noised({}, {})
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        days = np.ceil(rng.exponential(400.0, 400) / 50.0) * 50.0
        columns = {"days": days, "died": np.ones(400)}
        sums = total(noised, columns) + rng.normal(0.0, 4.0, noised.width)
        table = noised.table(sums, 4.0)
        place = table["times"][0].index(300.0)
        low, high = table["ci95"][0][place]
        inside += low <= np.exp(-300.0 / 400.0) <= high
    assert 276 <= inside <= 297


def test_a_curve_ends_where_noise_is_as_large_as_who_is_at_risk() -> None:
    noised = KaplanMeierAnalysis(**TIMES, time_unit=30.0, horizon=900.0).noised({}, {})
    table = noised.table(total(noised, patients(5, 60)), 2.0)
    assert 0 < len(table["times"][0]) < 30
    end = table["times"][0][-1]
    assert (
        f"all: the curve ends at {end:g}: the number at risk later is below 2" in table["notes"][1]
    )
    assert "noise of standard deviation 2," in table["notes"][0]
    empty = noised.table(np.zeros(noised.width), 6.0)
    assert (empty["times"], empty["median"]) == ([[]], [None])
    assert "the curve ends at 0" in empty["notes"][1]
    assert "rows" in KaplanMeierResult(empty).text()
    text = KaplanMeierResult(table).text()
    assert "log-rank tests of noised counts" in text
    assert "log-rank 0" not in text


@given(st.lists(st.floats(-1.0, 2.0), min_size=1, max_size=8))
def test_the_falling_curve_is_the_nearest_one(values: list[float]) -> None:
    v = np.array(values)
    best = falling(v)
    assert (np.diff(best) <= 1e-12).all()
    # v - best is orthogonal to best, and no falling curve is nearer (projection on a cone).
    assert (v - best) @ best == pytest.approx(0.0, abs=1e-9)
    for place in range(len(v)):
        step = (np.arange(len(v)) <= place).astype(float)  # the falling curves are sums of these
        assert (v - best) @ step <= 1e-9
    assert (v - best) @ np.ones(len(v)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("keys", "levels", "words"),
    [
        ({}, {}, "horizon, time-unit: noised curves are on a public grid"),
        ({"horizon": 1e6}, {}, f"1 to {MOST_TIMES} times"),
        ({"horizon": 10.0, "group_column": "arm"}, {}, "categories of 'arm' in a public schema"),
        ({"horizon": 10.0, "strata_column": "ward"}, {}, "no log-rank test to stratify"),
        ({"horizon": 10.0}, {"died": ("a", "b", "c")}, "'died' has 3 categories and needs two"),
    ],
)
def test_what_has_no_public_grid_is_refused(keys: Any, levels: Any, words: str) -> None:
    with pytest.raises(AnalysisError, match=words) as caught:
        KaplanMeierAnalysis(**TIMES, **keys).noised(levels, {})
    assert "\n" not in str(caught.value)


def test_wide_sums_are_made_in_small_blocks_and_bounded() -> None:
    frame = Frame.of({"days": [float(one % 300) for one in range(20_000)], "died": [1.0] * 20_000})
    times = FollowUpColumns("days", "died")
    curves = NoisedCurves(times, {}, "", 1.0, 2_000, 0.0)
    tracemalloc.start()
    total = sum(block.sum(axis=0) for block in curves.contributions(frame))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert np.sum(total) == 20_000
    levels = {"arm": tuple(map(str, range(50)))}
    with pytest.raises(AnalysisError, match="noised curves have 8192 counts at most"):
        NoisedCurves(times, levels, "arm", 1.0, 2_000, 0.0)
