"""What a site refuses to sum of survival times, and what its counts do not tell of few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_state import FINAL, SIZES
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.core import algorithm
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


@pytest.mark.parametrize("several", range(8))
def test_few_rows_of_weight_0_are_a_cell(several: int) -> None:
    weights = np.linspace(1.0, 2.0, ROWS)
    weights[:several] = 0.0
    cox = CoxAnalysis(**TIMES, formula="age", weight_column="w")
    assert is_refused(cox, {**table(7), "w": weights}) == (0 < several < LEAST)


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
