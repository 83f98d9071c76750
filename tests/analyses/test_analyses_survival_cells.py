"""What a site refuses to sum of survival times, and what its counts do not tell of few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_state import FINAL, SIZES
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.glm import Glm
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.kaplan_meier_table import numbers_at_risk
from privet.analyses.pooled_cox import PooledCox
from privet.core import algorithm
from privet.data.dataset import DataError
from privet.kernel import Told
from support.analysis_sites import agreed, federate

LEAST = 5
ROWS = 60
TIMES = {"time_column": "days", "event_column": "died"}


def guarded(analysis: Analysis[Any], columns: Mapping[str, Any], least: int = LEAST) -> Any:
    frame = Frame.of(columns)
    return analysis.guarded(analysis.sums(frame, agreed(analysis, [frame])), least)


def is_refused(analysis: Analysis[Any], columns: Mapping[str, Any]) -> bool:
    try:
        guarded(analysis, columns)
    except AnalysisError as error:
        return error.told is Told.SMALL_CELL
    return False


def table(seed: int, rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    days = rng.permutation(np.arange(1.0, rows + 1.0))
    return {"days": days, "died": np.arange(rows) % 2.0, "age": rng.normal(60.0, 10.0, rows)}


# ------------------------------------------------------------------ Cox: sizes, deaths at 0


def sizes(columns: Mapping[str, Any], unit: float = 1.0, **keys: Any) -> Any:
    point = {"phase": np.array(float(SIZES)), "unit": np.array(unit)}
    cox = CoxAnalysis(**{**TIMES, "formula": "age", **keys})
    return guarded(cox, columns).statistics(point)["sizes"]


@pytest.mark.parametrize("role", ["term", "time", "weight"])
def test_the_first_round_tells_a_sum_of_squares_and_counts_nothing_by_its_size(role: str) -> None:
    """Two tables with the same sum, one with an outlier beyond a public unit, are told alike."""
    keys = {"term": {}, "time": {"time_column": "x"}, "weight": {"weight_column": "x"}}[role]
    place = {"term": 0, "time": -2, "weight": -1}[role]
    formula = {"formula": "x"} if role == "term" else {}
    one = np.random.default_rng(1).uniform(100.0, 20_000.0, ROWS)
    one[7] = 2.0**17
    own = one - one.mean() if role == "term" else one
    other = np.sqrt((own**2).mean()) * np.linspace(0.9, 1.1, ROWS)
    other *= np.sqrt((own**2).mean() / (other**2).mean())
    if role == "term":
        other[::2] *= -1.0
        other -= other.mean()
        other *= np.sqrt((own**2).mean() / (other**2).mean())
    told = [sizes({**table(1), "x": x}, **keys, **formula)[place] for x in (one, other)]
    np.testing.assert_allclose(told[0], told[1], rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_site_that_hides_sizes_has_the_same_table(weighted: bool) -> None:
    frames = [Frame.of({**table(seed), "w": 1e-3 * (1 + table(seed)["days"])}) for seed in range(3)]
    cox = CoxAnalysis(**TIMES, formula="age", weight_column="w" if weighted else "")
    plain = federate(cox, frames).table
    hidden = federate(cox, frames, of=lambda sums: cox.guarded(sums, LEAST)).table
    assert plain["rounds"] == hidden["rounds"]
    assert numbers(plain) == pytest.approx(numbers(hidden), rel=1e-12, abs=1e-13)
    assert len(numbers(plain)) > 20


def numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [one for _, of in sorted(value.items()) for one in numbers(of)]
    if isinstance(value, list | tuple):
        return [one for of in value for one in numbers(of)]
    return [float(value)] if isinstance(value, int | float) else []


def at_end(columns: Mapping[str, Any], time_size: float) -> Any:
    point = {
        "phase": np.array(float(FINAL)),
        "unit": np.array(1.0),
        "heaviness": np.array(1.0),
        "time_size": np.array(time_size),
        "basis": np.eye(1),
        "gamma": np.zeros(1),
    }
    return guarded(CoxAnalysis(**TIMES, formula="age"), columns).statistics(point)["trend"]


@pytest.mark.parametrize("time_size", [1.0, 8.0])
def test_few_deaths_at_time_0_are_not_counted(time_size: float) -> None:
    columns = table(2)
    dead = np.flatnonzero(columns["died"])
    seen = []
    for several in (1, 3):
        days = columns["days"].copy()
        days[dead[:several]] = 0.0
        trend = at_end({**columns, "days": days}, time_size)
        assert trend[:, 3].tolist() == [LEAST, LEAST]
        seen.append(trend[1])
    assert seen[0].tolist() == seen[1].tolist()


# ------------------------------------------------------------------ strata


def of_kind(kind: str, **keys: Any) -> Analysis[Any]:
    if kind == "cox":
        return CoxAnalysis(**TIMES, formula="age + arm", strata_column="ward", **keys)
    keys = {"group_column": "arm", "strata_column": "ward", "horizon": float(ROWS), **keys}
    return KaplanMeierAnalysis(**TIMES, **keys)


@pytest.mark.parametrize("kind", ["cox", "kaplan-meier"])
@pytest.mark.parametrize("few", range(8))
def test_few_rows_of_a_category_in_a_stratum_are_a_cell(kind: str, few: int) -> None:
    """The men's ward has men alone, so that all sums would be of the few in the women's."""
    place = np.arange(ROWS)
    ward = np.where(place < 20, "men", "women")
    columns = {**table(3), "ward": ward, "arm": np.where(place < 20 + few, "M", "F")}
    assert is_refused(of_kind(kind), columns) == (0 < few < LEAST)


@pytest.mark.parametrize("kind", ["cox", "kaplan-meier"])
@pytest.mark.parametrize("few", range(8))
def test_few_events_in_a_stratum_are_a_cell(kind: str, few: int) -> None:
    place = np.arange(ROWS)
    died = np.where(place < 20, place < few, place % 2 == 0).astype(float)
    columns = {**table(4), "died": died, "ward": np.where(place < 20, "a", "b")}
    columns["arm"] = np.where(place // 2 % 2 == 0, "M", "F")
    assert is_refused(of_kind(kind), columns) == (0 < few < LEAST)


# ------------------------------------------------------------------ risk sets


@pytest.mark.parametrize("pairs", range(8))
def test_few_risk_sets_of_more_than_one_row_are_a_cell(pairs: int) -> None:
    """One stay after the other adds 0 to each sum: these are of the stays that overlap."""
    came = 10.0 * np.arange(ROWS)
    days = came + 5.0
    days[1 : 2 * pairs : 2] = days[0 : 2 * pairs : 2] + 2.0
    came[1 : 2 * pairs : 2] = came[0 : 2 * pairs : 2] + 1.0
    columns = {**table(9), "days": days, "came": came, "died": np.arange(ROWS) % 6 < 5}
    columns["died"] = columns["died"].astype(float)
    seen = [place for place in range(0, 2 * pairs, 2) if columns["died"][place]]
    cox = CoxAnalysis(**TIMES, entry_column="came", formula="age")
    assert is_refused(cox, columns) == (0 < len(seen) < LEAST)


@pytest.mark.parametrize("few", range(8))
def test_few_at_risk_in_a_category_are_a_cell(few: int) -> None:
    """All men but a few have left before the first death."""
    days = np.arange(1.0, ROWS + 1.0)
    died = (days > 20.0) & (days % 2 == 0.0)
    sex = np.where((days <= 20.0 - 0.5) | (days > ROWS - few), "M", "F")
    columns = {**table(10), "days": days, "died": died.astype(float), "sex": sex}
    assert is_refused(CoxAnalysis(**TIMES, formula="sex"), columns) == (0 < few < LEAST)


# ------------------------------------------------------------------ rows left out by a choice


def of_dates(name: str, columns: Mapping[str, Any], until: str, **keys: Any) -> Any:
    dated = {"start-column": "came", "end-column": "gone", "event-column": "died"}
    settings = {**dated, "until": until, **keys}
    agent: Any = algorithm(name).load_agent().from_settings(settings)
    frame = agent.prepared(columns).frame
    return agent.analysis, agent.analysis.sums(frame, agreed(agent.analysis, [frame]))


@pytest.mark.parametrize(
    ("name", "keys"), [("cox", {"formula": "age"}), ("kaplan-meier", {"horizon": 5000.0})]
)
def test_few_rows_that_begin_after_the_end_of_the_study_are_a_cell(name: str, keys: Any) -> None:
    """A threshold of the coordinator's on a column of the site's."""
    came = np.sort(np.random.default_rng(5).choice(np.arange(10_000.0, 11_000.0), ROWS, False))
    columns = {**table(5), "came": came, "gone": came + 400.0}
    for several in range(9):
        until = np.datetime64(int(came[-several - 1] if several else 20_000), "D")
        analysis, sums = of_dates(name, columns, str(until), **keys)
        assert sums.left_out[""] == several
        if 0 < several < LEAST:
            with pytest.raises(AnalysisError, match="fewer rows begin after until") as caught:
                analysis.guarded(sums, LEAST)
            assert caught.value.told is Told.SMALL_CELL
        else:
            assert analysis.guarded(sums, LEAST)


def test_values_that_few_late_rows_lack_and_few_missing_dates_are_told_apart() -> None:
    came = np.arange(10_000.0, 10_000.0 + ROWS)
    columns = {**table(6), "came": came, "gone": came + 400.0}
    until = str(np.datetime64(int(came[-7]), "D"))
    columns["gone"][:2] = np.nan  # with an event they have no time, and are missing
    columns["died"][:2] = 1.0
    analysis, sums = of_dates("cox", columns, until, formula="age")
    assert sums.left_out["duration"] == 8
    assert analysis.guarded(sums, LEAST)
    columns["age"][-4:] = np.nan  # two of the six lack nothing but their time
    analysis, sums = of_dates("cox", columns, until, formula="age")
    with pytest.raises(AnalysisError, match="fewer rows begin after until"):
        analysis.guarded(sums, LEAST)


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize("several", range(8))
def test_few_rows_without_a_weight_above_0_are_a_cell(several: int, value: float) -> None:
    weights = np.linspace(1.0, 2.0, ROWS)
    weights[:several] = value
    cox = CoxAnalysis(**TIMES, formula="age", weight_column="w")
    assert is_refused(cox, {**table(7), "w": weights}) == (0 < several < LEAST)


UNUSABLE: dict[str, tuple[str, Any]] = {
    "negative": ("days", -1.0),
    "infinite": ("days", np.inf),
    "code": ("died", 2.0),
    "before": ("came", -1.0),
    "late": ("came", 1000.0),
}
"""Values of one row that no follow-up has: of the time, of the event and of the entry."""


def with_unusable(what: str, several: int) -> dict[str, Any]:
    columns = {**table(11), "came": np.zeros(ROWS)}
    name, value = UNUSABLE[what]
    columns[name] = columns[name].copy()
    columns[name][:several] = value
    return columns


def follow_ups() -> list[Analysis[Any]]:
    keys = {**TIMES, "entry_column": "came"}
    pooled = PooledCox(**keys, formula="age")
    curves = [KaplanMeierAnalysis(**keys, horizon=one) for one in (0.0, 100.0)]
    return [CoxAnalysis(**keys, formula="age"), pooled, *curves]


@pytest.mark.parametrize("what", list(UNUSABLE))
@pytest.mark.parametrize("several", range(8))
def test_rows_that_no_follow_up_has_are_left_out_and_few_are_a_cell(
    what: str, several: int
) -> None:
    columns = with_unusable(what, several)
    name, _ = UNUSABLE[what]
    kept = {key: values[several:] for key, values in columns.items()}
    for analysis in follow_ups():
        frames = [Frame.of(one) for one in (columns, kept)]
        levels = agreed(analysis, frames[:1])
        sums, same = (analysis.sums(frame, levels) for frame in frames)
        assert sums.left_out[name] == sums.left_out[""] == several
        assert sums.num_examples == same.num_examples == ROWS - several
        if several:
            point = {"unit": np.array(1.0), "phase": np.array(0.0)}
            if isinstance(analysis, KaplanMeierAnalysis):
                point["cells"] = np.array(100.0)
            told = [one.statistics(point) for one in (sums, same)]
            for key in told[0].keys() - {"left_out"}:
                np.testing.assert_array_equal(told[0][key], told[1][key])
    few = 0 < several < LEAST
    assert is_refused(follow_ups()[0], columns) == few
    assert is_refused(follow_ups()[-1], columns) == few


@pytest.mark.parametrize("least", [1, LEAST])
def test_no_error_says_of_one_row_where_its_follow_up_is_in_the_coordinators_units(
    least: int,
) -> None:
    """Ends of the study, horizons and units chosen for one row: answered as without it."""
    columns = {**table(12), "came": np.zeros(ROWS)}
    columns["days"][5] = 700.0
    columns["came"][5] = 690.0
    without = {key: np.delete(values, 5) for key, values in columns.items()}
    for unit in (1e-14, 1e-3, 1.0, 64.0):
        for horizon in (1000.0 * unit, 695.0, 100.0):
            if horizon / unit > 1e6:
                continue
            analysis = KaplanMeierAnalysis(
                **TIMES, entry_column="came", time_unit=unit, horizon=horizon
            )
            asked = {"unit": np.array(1.0), "cells": np.array(float(analysis.last))}
            answers = []
            for one in (columns, without):
                frame = Frame.of(one)
                sums = analysis.sums(frame, {})
                answers.append(sums.statistics(asked))
            assert answers[0].keys() == answers[1].keys()
    pooled = KaplanMeierAnalysis(**TIMES, time_unit=1.0)
    sums = pooled.sums(Frame.of(columns), {})
    leave = sums.statistics({"unit": np.array(1.0), "cells": np.array(64.0)})
    assert leave["events"].sum() + leave["censored"].sum() == ROWS


@pytest.mark.parametrize(
    ("name", "keys"), [("cox", {"formula": "age"}), ("kaplan-meier", {"horizon": 5000.0})]
)
@pytest.mark.parametrize("until", ["", "1999-01-01"])
@pytest.mark.parametrize("several", range(8))
def test_few_ends_before_their_start_are_a_cell(
    name: str, keys: Any, until: str, several: int
) -> None:
    columns = {**table(13), "came": np.full(ROWS, 10_000.0)}
    columns["gone"] = columns["came"] + columns["days"]
    columns["gone"][:several] -= 400.0
    analysis, sums = of_dates(name, columns, until, **keys)
    assert sums.left_out["duration"] == several
    assert sums.num_examples == ROWS - several
    if 0 < several < LEAST:
        with pytest.raises(AnalysisError, match="fewer rows begin after") as caught:
            analysis.guarded(sums, LEAST)
        assert caught.value.told is Told.SMALL_CELL
    else:
        assert analysis.guarded(sums, LEAST)


@pytest.mark.parametrize("dated", [False, True])
def test_a_code_of_one_row_that_is_no_event_leaves_it_out(dated: bool) -> None:
    columns = {**table(14), "came": np.full(ROWS, 10_000.0)}
    columns["gone"] = columns["came"] + columns["days"]
    columns["died"][3] = 7.0

    def summed() -> Any:
        if dated:
            return of_dates("cox", columns, "", formula="age")[1]
        return CoxAnalysis(**TIMES, formula="age").sums(Frame.of(columns), {})

    sums = summed()
    assert sums.left_out["event_observed" if dated else "died"] == 1
    assert sums.num_examples == ROWS - 1
    columns["died"] = columns["died"] % 7 + 1.0  # 1 and 2: none is 0
    with pytest.raises((AnalysisError, DataError), match="codes other than 0"):
        summed()


@pytest.mark.parametrize("others", [1, 4, 5, 40])
@pytest.mark.parametrize("zeros", [0, 1])
def test_no_single_row_decides_whether_codes_are_others(others: int, zeros: int) -> None:
    """Of 1 and some 2: four or fewer are left out, five or more an error, with a 0 or not."""
    columns = table(16)
    columns["died"] = np.where(np.arange(ROWS) < others, 2.0, 1.0)
    columns["died"][ROWS - zeros :] = 0.0
    frame = Frame.of(columns)

    def summed(kind: str) -> Any:
        if kind == "glm":
            return Glm(formula="died ~ age").sums(frame, {})
        return CoxAnalysis(**TIMES, formula="age").sums(frame, {})

    for kind, said in (("glm", "numbers other than 0 and 1"), ("cox", "codes other than 0")):
        if others >= 5:
            with pytest.raises(AnalysisError, match=said):
                summed(kind)
        else:
            assert summed(kind).left_out["died"] == others


@pytest.mark.parametrize("name", ["cox", "kaplan-meier"])
def test_a_sites_own_texts_of_events_are_counted_in_no_error(name: str) -> None:
    """With two dates as with a time: no schema states them, however many there are."""
    dated = {"start-column": "came", "end-column": "gone", "event-column": "outcome"}
    plain = {"time-column": "days", "event-column": "outcome"}
    said = set()
    for texts in (["a"], ["a", "b"], ["a", "b", "c"]):
        columns = {**table(15), "came": np.full(ROWS, 10_000.0), "gone": np.full(ROWS, 10_009.0)}
        columns["outcome"] = [texts[place % len(texts)] for place in range(ROWS)]
        node = {"partition-id": 0, "num-partitions": 1, "data-path": "own.csv"}
        context = Context(1, 1, node, RecordDict(), {})
        for settings_ in (dated, plain):
            agent: Any = (
                algorithm(name)
                .load_agent()
                .from_settings({**settings_, "formula": "age"} if name == "cox" else settings_)
            )
            with pytest.raises(DataError) as caught:
                agent.of_table(columns, context)
            said.add(str(caught.value))
    assert len(said) == 1
    assert "column outcome is taken as categories, and no schema states them" in said.pop()


# ------------------------------------------------------------------ at risk


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 40), st.booleans(), st.integers(0, 1)),
        min_size=LEAST,
        max_size=80,
    ),
    st.sampled_from([16.0, 63.0, 64.0, 120.0]),
)
def test_those_at_risk_are_none_or_enough_at_every_time(rows: Any, horizon: float) -> None:
    """Of each group and of all, by what a site sends and by its moved rows, one by one."""
    came, stay, died, arm = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"came": came, "days": came + stay, "died": died.astype(float), "arm": arm}
    analysis = KaplanMeierAnalysis(
        **TIMES, entry_column="came", group_column="arm", horizon=horizon
    )
    if is_refused(analysis, columns):
        return
    sums = guarded(analysis, columns)
    point = {"unit": np.array(1.0), "cells": np.array(horizon)}
    sent = sums.statistics(point)
    at_risk = numbers_at_risk(sent["events"], sent["censored"], sent["entries"])
    places = np.arange(int(horizon) + 1)[:, None]
    times = sums.times
    for group, told in enumerate(at_risk):
        own = times.taken(sums.groups == group)
        inside = ((own.entry < places) & (places <= own.cell)).sum(axis=1)
        across = ((own.entry < places) & (places < own.cell)).sum(axis=1)
        np.testing.assert_array_equal(told, inside)
        for counts in (inside, across):
            assert not ((counts > 0) & (counts < LEAST)).any()
    every = at_risk.sum(axis=0)
    assert not ((every > 0) & (every < LEAST)).any()


def test_one_who_stays_between_early_and_late_comers_is_not_seen() -> None:
    came = np.array([1, 2, 3, 4, 5, 6, 40, 41, 42, 43, 44, 45])
    days = np.array([12, 13, 14, 15, 16, 100, 100, 101, 102, 103, 104, 105])
    columns = {"came": came, "days": days, "died": np.ones(12)}
    sums = guarded(KaplanMeierAnalysis(**TIMES, entry_column="came", horizon=128.0), columns)
    sent = sums.statistics({"unit": np.array(1.0), "cells": np.array(128.0)})
    at_risk = numbers_at_risk(sent["events"], sent["censored"], sent["entries"])[0]
    assert set(at_risk.astype(int)) <= {0, 7, 12}


# ------------------------------------------------------------------ patterns


@pytest.mark.parametrize("few", range(8))
@pytest.mark.parametrize("of_many", [False, True])
def test_few_rows_of_one_pattern_are_a_cell_of_a_model_of_few_values(
    few: int, of_many: bool
) -> None:
    """Every pair of columns has more than enough rows in each of its cells."""
    counts = {(0, 0, 0): 40, (0, 0, 1): 20, (0, 1, 0): 20, (1, 0, 0): 20}
    counts |= {(0, 1, 1): 8, (1, 0, 1): 8, (1, 1, 0): 8, (1, 1, 1): few}
    a, b, c = np.array([key for key, count in counts.items() for _ in range(count)], float).T
    columns = {**table(8, len(a)), "a": a, "b": b, "c": c}
    formula = "a + b + c + age" if of_many else "a + b + c"
    assert is_refused(CoxAnalysis(**TIMES, formula=formula), columns) == (
        0 < few < LEAST and not of_many
    )
    by_stratum = CoxAnalysis(**TIMES, formula="a + b", strata_column="c")
    assert is_refused(by_stratum, columns) == (0 < few < LEAST)
