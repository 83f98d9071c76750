"""Kaplan-Meier and log-rank: worked tables, counts by loops, and what sites' rules do to them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.follow_up import FollowUp
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.grid import GridTimes, merged_intervals
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from support.analysis_sites import TABLES, federate, frames_by, table_columns

TIMES = {"time_column": "days", "event_column": "died"}


def survival_at(table, time, curve=0):
    place = np.searchsorted(table["times"][curve], time, side="right")
    return 1.0 if place == 0 else table["survival"][curve][place - 1]


@pytest.mark.parametrize("rounded", [False, True])
def test_the_worked_table_has_the_pooled_curve_and_log_rank(rounded):
    worked = json.loads((TABLES / "cox-1.json").read_text())
    sites = frames_by(table_columns(TABLES / "cox-1.csv"))
    outcome = federate(KaplanMeierAnalysis(**TIMES, group_column="sex"), sites, rounded=rounded)
    table = outcome.table
    assert outcome.rounds == 2
    for day, survival in zip(
        *(worked["kaplan_meier"][k] for k in ("days", "survival")), strict=True
    ):
        assert survival_at(table, day) == pytest.approx(survival, abs=1e-12)
    assert table["median"][0] == worked["kaplan_meier"]["median"]
    assert table["logrank"]["chi2"] == pytest.approx(worked["logrank_sex"]["chi2"], rel=1e-12)
    assert table["logrank"]["p"] == pytest.approx(worked["logrank_sex"]["p"], rel=1e-11)
    assert (table["n"], table["events"], table["off_grid"]) == (800, 558, 0)
    assert (table["groups"], table["notes"]) == (["", "F", "M"], [])


def test_intervals_and_restricted_means_are_those_of_lifelines():
    # lifelines 0.30.3, d = pandas.read_csv("cox-1.csv"), f = d[d.sex == "F"]:
    # k = KaplanMeierFitter().fit(f.days, f.died); k.confidence_interval_.loc[500.0];
    # median_survival_times(k.confidence_interval_); restricted_mean_survival_time(k, 2335.0)
    table = federate(
        KaplanMeierAnalysis(**TIMES, group_column="sex"),
        frames_by(table_columns(TABLES / "cox-1.csv")),
    ).table
    place = np.searchsorted(table["times"][1], 500.0, side="right") - 1
    assert table["ci95"][1][place] == pytest.approx(
        [0.5804028098149344, 0.6769239957973251], rel=1e-12
    )
    assert table["median_ci95"][1] == [662.0, 901.0]
    assert table["restriction"] == 2335.0
    assert table["restricted_mean"][1] == pytest.approx(963.0891920290994, rel=1e-10)


def loops(rows):
    """Curve, log-rank excess and variance of (entry, time, event, group), by definition."""
    groups = sorted({row[3] for row in rows})
    curve, survival, greenwood = [], 1.0, 0.0
    excess, variance = np.zeros(len(groups)), np.zeros((len(groups), len(groups)))
    for t in sorted({row[1] for row in rows}):
        at_risk = [sum(e < t <= u and g == group for e, u, _, g in rows) for group in groups]
        died = [sum(u == t and d and g == group for _, u, d, g in rows) for group in groups]
        n, d = sum(at_risk), sum(died)
        survival *= 1 - d / n
        greenwood += d / (n * (n - d)) if n > d else 0.0
        curve.append((t, n, d, survival, survival * greenwood**0.5))
        if not d:
            continue
        share = np.array(at_risk) / n
        excess += np.array(died) - d * share
        spread = d * (n - d) / (n - 1) if n > 1 else 0.0
        variance += spread * (np.diag(share) - np.outer(share, share))
    return curve, excess, variance


def chi2_of(excess, variance):
    kept = np.diag(variance) > 1e-9
    if kept.sum() < 2:
        return 0.0
    inner = np.flatnonzero(kept)[:-1]
    return excess[inner] @ np.linalg.pinv(variance[np.ix_(inner, inner)], 1e-9) @ excess[inner]


ROW = st.tuples(
    st.integers(0, 6),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from("ab"),
    st.sampled_from("xyz"),
)


@given(st.lists(ROW, min_size=1, max_size=25))
def test_any_table_over_any_sites_has_the_curve_and_tests_of_loops(rows):
    rows = [(min(e, t - 1), t, event, group, site) for e, t, event, group, site in rows]
    names = ("came", "days", "died", "arm", "site")
    columns = {
        name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)
    }
    analysis = KaplanMeierAnalysis(**TIMES, entry_column="came", group_column="arm")
    frames = [Frame.of(part) for part in parts_by_site(columns)]
    table = federate(analysis, frames, rounded=True).table
    pooled = [row[:4] for row in rows]
    curve, excess, variance = loops(pooled)
    mine = zip(*(table[k][0] for k in ("times", "at_risk", "died", "survival", "se")), strict=True)
    for ours, right in zip(mine, curve, strict=True):
        assert ours == pytest.approx(right, abs=1e-12)
    assert table["logrank"]["chi2"] == pytest.approx(chi2_of(excess, variance), abs=1e-9)
    own = [
        loops([r[:4] for r in rows if r[4] == site] + []) for site in sorted(set(columns["site"]))
    ]
    assert table["n"] == len(rows)
    if all(len(one[1]) == 2 for one in own):  # each site has both groups: the loops' shapes agree
        total = [sum(one[k] for one in own) for k in (1, 2)]
        assert table["logrank_by_site"]["chi2"] == pytest.approx(
            chi2_of(*total), rel=1e-6, abs=1e-6
        )


def parts_by_site(columns):
    sites = sorted(set(columns["site"]))
    for site in sites:
        chosen = [place for place, one in enumerate(columns["site"]) if one == site]
        yield {name: [cells[place] for place in chosen] for name, cells in columns.items()}


def test_the_variance_of_a_restricted_mean_is_that_of_greenwoods_covariances():
    rng = np.random.default_rng(3)
    columns = {"days": rng.integers(1, 12, 60), "died": rng.integers(0, 2, 60)}
    table = federate(KaplanMeierAnalysis(**TIMES, restriction=9.0), [Frame.of(columns)]).table
    times, survival, at_risk, died = (
        np.array(table[k][0]) for k in ("times", "survival", "at_risk", "died")
    )
    terms = died / (at_risk * np.maximum(at_risk - died, 1))
    inside = times < 9.0
    widths = np.diff(np.append(times[inside], 9.0))
    # Cov(S(s), S(t)) = S(s) S(t) sum_{u <= min(s, t)} d / (n (n - d))
    total = np.cumsum(terms)
    count = int(inside.sum())
    variance = sum(
        widths[i] * widths[j] * survival[i] * survival[j] * total[min(i, j)]
        for i in range(count)
        for j in range(count)
    )
    assert table["restricted_mean_se"][0] == pytest.approx(variance**0.5, rel=1e-12)


def test_later_times_are_censored_at_a_public_horizon_in_two_rounds_as_well():
    columns = {"days": [2, 5, 9, 9, 30], "died": [1, 1, 1, 0, 1]}
    outcome = federate(KaplanMeierAnalysis(**TIMES, horizon=9.0), [Frame.of(columns)])
    assert outcome.rounds == 2
    assert outcome.table["died"][0] == [1, 1, 1]
    assert outcome.table["censored"][0] == [0, 0, 2]


def test_times_that_are_not_on_the_grid_are_moved_up_and_counted():
    columns = {"months": [0.5, 1.0, 1.4, 2.0], "died": [1, 1, 1, 1]}
    analysis = KaplanMeierAnalysis(time_column="months", event_column="died")
    table = federate(analysis, [Frame.of(columns)]).table
    assert table["times"][0] == [1.0, 2.0]
    assert table["off_grid"] == 2
    assert "2 rows have times that are not on the grid of 1" in table["notes"][0]
    fine = federate(KaplanMeierAnalysis("months", "died", time_unit=0.1), [Frame.of(columns)]).table
    assert fine["times"][0] == pytest.approx([0.5, 1.0, 1.4, 2.0])
    assert fine["off_grid"] == 0


def test_missing_values_are_left_out_and_counted_by_column():
    columns = {"days": [2, None, 9, 4], "died": [1, 1, None, 0], "sex": ["F", None, "F", "M"]}
    table = federate(KaplanMeierAnalysis(**TIMES, group_column="sex"), [Frame.of(columns)]).table
    assert table["left_out"] == {"": 2, "days": 1, "died": 1, "sex": 1}
    assert table["n"] == 2


def test_a_site_without_rows_changes_nothing():
    columns = {"days": [2, 3, 5], "died": [1, 0, 1], "sex": ["F", "M", "F"]}
    analysis = KaplanMeierAnalysis(**TIMES, group_column="sex", entry_column="")
    empty = Frame.of({"days": [], "died": [], "sex": []})
    missing = Frame.of({"days": [None], "died": [1], "sex": ["M"]})
    plain = federate(analysis, [Frame.of(columns)]).table
    table = federate(analysis, [Frame.of(columns), empty, missing]).table
    assert table["notes"] == [
        "1 row with missing values, or times or events that cannot be used, left out (days 1)"
    ]
    assert {**table, "left_out": plain["left_out"], "notes": []} == plain


def test_groups_of_numbers_are_matched_by_value_and_absent_ones_are_empty():
    one = Frame.of({"days": [2, 3], "died": [1, 0], "arm": [1, 1]})
    two = Frame.of({"days": [2, 3], "died": [1, 0], "arm": [2.0, 2.0]})
    table = federate(KaplanMeierAnalysis(**TIMES, group_column="arm"), [one, two]).table
    assert table["groups"] == ["", "1", "2"]
    assert table["group_n"] == [4, 2, 2]
    assert table["logrank_by_site"] == {"chi2": 0.0, "df": 0, "p": None}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"days": [-1, 2], "died": [0, 1]}, "'days' has negative times"),
        ({"days": [1, float("inf")], "died": [0, 1]}, "'days' has infinite times"),
        ({"days": ["a", "b"], "died": [0, 1]}, "'days' holds texts"),
        ({"days": [1, 2], "died": [1, 2]}, "'died' has codes other than 0"),
        ({"days": [1, 2, 3], "died": ["a", "b", "c"]}, "'died' has 3 categories"),
        ({"days": [1, 2]}, "column 'died' is not in the table"),
        ({"days": [None], "died": [1]}, "nobody is at risk"),
        ({"days": [2.0**40], "died": [1]}, "set a larger time-unit"),
        ({"days": [1e300], "died": [1]}, "set a larger time-unit"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_column(columns, words):
    with pytest.raises(AnalysisError, match=words) as caught:
        federate(KaplanMeierAnalysis(**TIMES), [Frame.of(columns)])
    assert "\n" not in str(caught.value)


def test_an_entry_that_is_not_before_the_end_is_left_out():
    columns = {"days": [3, 2, 4, 4], "died": [1, 1, 1, 0], "came": [0, 2, 5, 1]}
    analysis = KaplanMeierAnalysis(**TIMES, entry_column="came")
    table = federate(analysis, [Frame.of(columns)]).table
    assert table["left_out"] == {"": 2, "days": 0, "died": 0, "came": 2}
    kept = {name: [values[0], values[3]] for name, values in columns.items()}
    assert table["survival"] == federate(analysis, [Frame.of(kept)]).table["survival"]


def test_the_event_of_two_texts_is_the_last_one_or_the_one_named():
    frame = Frame.of({"days": [1, 2, 3], "died": ["dead", "living", "living"]})
    assert federate(KaplanMeierAnalysis(**TIMES), [frame]).table["events"] == 2
    named = federate(KaplanMeierAnalysis(**TIMES, event_level="dead"), [frame]).table
    assert (named["events"], named["event_level"]) == (1, "dead")


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60),
    st.integers(2, 6),
)
def test_merged_times_leave_no_small_count_and_keep_the_curve_at_the_ends(rows, least):
    time, event = (np.array(cells) for cells in zip(*rows, strict=True))
    plain = GridTimes.of(FollowUp(time.astype(float), event, np.full(len(time), -np.inf)), 1.0, 40)
    merged = plain.merged(np.zeros(len(time), np.int32), 40, least)
    counts = [np.bincount(merged.cell[kind], minlength=41) for kind in (event, ~event)]
    whole = len(np.unique(merged.cell)) == 1
    for count in counts:
        assert whole or not ((count > 0) & (count < least)).any()
    for end in np.unique(merged.cell)[:-1]:  # who has left by an end has left by it in both
        assert (merged.cell <= end).sum() == (plain.cell <= end).sum()


def test_intervals_are_halves_of_a_public_tree_and_not_of_the_records():
    counts = np.zeros((1, 16), int)
    counts[0, [1, 2, 8, 9, 15]] = [1, 9, 3, 3, 1]
    first, end = merged_intervals(counts, 3)
    # 1 is merged with 2, whose half is 2 to 3; 15 with 9, since 10 to 14 are empty, and not with 8.
    assert list(end[[1, 2, 8, 9, 15]]) == [2, 2, 8, 15, 15]
    assert list(first[[1, 2, 8, 9, 15]]) == [0, 0, 8, 9, 9]


def test_a_site_with_min_cell_sends_no_small_count():
    rng = np.random.default_rng(0)
    columns = {"days": rng.integers(1, 200, 300), "died": rng.integers(0, 2, 300)}
    analysis = KaplanMeierAnalysis(**TIMES, horizon=200.0)
    outcome = federate(analysis, [Frame.of(columns)], of=lambda sums: sums.merged(5))
    for kind in (0, 1):
        counts = outcome.state.counts[kind]
        assert counts.sum() > 0
        assert not ((counts > 0) & (counts < 5)).any()
    plain = federate(analysis, [Frame.of(columns)]).table
    merged = outcome.table
    kinds = (merged["times"][0], merged["survival"][0], merged["at_risk"][0])
    for time, survival, at_risk in zip(*kinds, strict=True):
        if at_risk > 100:
            assert survival_at(plain, time) <= survival + 1e-12
            assert survival == pytest.approx(survival_at(plain, time), abs=0.05)


def test_min_cell_needs_a_public_horizon_and_enough_rows():
    frame = Frame.of({"days": [1, 2, 3], "died": [1, 0, 1]})
    with pytest.raises(AnalysisError, match="horizon: a node with min-cell"):
        federate(KaplanMeierAnalysis(**TIMES), [frame], of=lambda sums: sums.merged(5))
    with pytest.raises(AnalysisError, match="fewer than 5 events"):
        federate(KaplanMeierAnalysis(**TIMES, horizon=9.0), [frame], of=lambda sums: sums.merged(5))
