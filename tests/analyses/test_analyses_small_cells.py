"""No hidden cell can be solved for: brute force over all small tables and all that a site sends.

Missing values are told, of groups too: they are no cells.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.analyses.cox import CoxAnalysis
from privet.analyses.description import DescribeAnalysis
from privet.analyses.description_state import EDGES, PARTS, QUANTILES
from privet.analyses.frame import AnalysisError, FloatArray, Frame, Levels
from privet.analyses.glm import Glm
from privet.analyses.glm_state import SIZES, START
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.small_cells import MOST_CODES, hidden, merged, middles, steps
from privet.kernel import Told

LEAST = 3
QUERIES = [(-1.0, 3.0), (0.0, 2.0), (0.5, 1.5), (1.0, 1.0000001), (2.0, 4.0), (-8.0, 64.0)]
"""Intervals that a coordinator may ask for: those of no honest one among them."""


def sent(frame: Frame, levels: Levels, by: str = "", least: int = LEAST) -> bytes:
    """All that a site sends of a description, whatever the points: all of its rounds, edges that
    are chosen, and a round out of order."""
    analysis = DescribeAnalysis(by=by)
    site: Any = analysis.guarded(analysis.sums(frame, levels), least)
    state, parts = analysis.begin(levels), []
    while not state.done:
        answer = site.statistics(analysis.point(state))
        parts += [answer[name] for name in sorted(answer)]
        state = analysis.step(state, answer)
    columns = len(state.unit)
    for low, high in QUERIES if columns else ():
        same = np.ones(columns)
        point = {
            "phase": np.ones(1),
            "unit": np.array(1.0),
            "units": same,
            "centre": 0 * same,
            "sizes": same,
            "low": low * same,
            "high": high * same,
            "left": np.repeat(low * same, len(QUANTILES)),
            "right": np.repeat(high * same, len(QUANTILES)),
        }
        answer = site.statistics(point)
        parts += [answer[name] for name in sorted(answer)]
    return b"|".join(np.round(part, 9).tobytes() for part in parts)


def tables(kinds: int, rows: int) -> Iterable[tuple[int, ...]]:
    """All tables of so many rows, as how many are of each kind: nothing else sends that number."""
    for bars in itertools.combinations(range(rows + kinds - 1), kinds - 1):
        ends = (-1, *bars, rows + kinds - 1)
        yield tuple(high - low - 1 for low, high in itertools.pairwise(ends))


def solved(seen: Mapping[Any, Sequence[Any]], cells: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Which cells of 1 to LEAST - 1 rows have one value in all tables that send the same."""
    return [
        (name, alike)
        for alike in seen.values()
        for name, count in cells.items()
        if len(found := {count(one) for one in alike}) == 1 and 0 < found.pop() < LEAST
    ]


def rows_of(kinds: Iterable[tuple[Any, ...]], counts: Sequence[int]) -> list[list[Any]]:
    """The columns of a table that has so many rows of each kind."""
    rows = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    return [list(column) for column in zip(*rows, strict=True)] if rows else []


def frequent(texts: Sequence[str | None]) -> set[str]:
    return {one for one in texts if one and texts.count(one) >= LEAST}


@pytest.mark.parametrize("rows", [5, 6, 7, 9, 12])
def test_no_rare_category_is_solved_for_whichever_categories_are_agreed(rows: int) -> None:
    """One column of three categories, described for every list of them that a site takes."""
    lists = [("a", "b", "c"), ("c", "b", "a"), ("a", "b"), ("b", "a"), ("a", "c"), ("b",)]
    seen = defaultdict(list)
    for counts in tables(4, rows):
        [texts] = rows_of([("a",), ("b",), ("c",), (None,)], counts)
        if not any(texts):
            continue
        frame = Frame.of({"f": texts})
        told = [
            sent(frame, {"f": one}) if frequent(texts) <= set(one) else b"refused" for one in lists
        ]
        seen[tuple(told)].append(counts)
    assert solved(seen, {name: itemgetter(at) for at, name in enumerate("abc")}) == []


def test_a_list_without_a_frequent_category_is_refused() -> None:
    frame = Frame.of({"f": ["a"] * 9 + ["b"] * 9 + ["c"]})
    with pytest.raises(AnalysisError, match="column f") as caught:
        sent(frame, {"f": ("a",)})
    assert caught.value.told == Told.SMALL_CELL


JOINT = [("a", "u"), ("a", "v"), ("b", "u"), ("b", "v"), (None, "u"), (None, "v")]


@pytest.mark.parametrize("rows", [6, 8, pytest.param(10, marks=pytest.mark.slow)])
def test_no_cell_of_two_columns_is_solved_for_from_margins_and_groups(rows: int) -> None:
    """Described alone, by each other's groups, and with rows that are in no group."""
    seen = defaultdict(list)
    levels = {"f": ("a", "b"), "g": ("u", "v")}
    for counts in tables(len(JOINT), rows):
        columns = rows_of(JOINT, counts)
        if any(columns[0]):
            frame = Frame.of({"f": columns[0], "g": columns[1]})
            told = [sent(frame, levels)] + [sent(frame, levels, by) for by in ("f", "g")]
            seen[(*told, sent(frame, {"g": ("u", "v")}))].append(counts)
    cells: dict[str, Any] = {f"{kind}": itemgetter(at) for at, kind in enumerate(JOINT[:4])}
    for at, name in enumerate("ab"):
        cells[name] = lambda table, at=at: table[2 * at] + table[2 * at + 1]
    for at, name in enumerate("uv"):
        cells[name] = lambda table, at=at: table[at] + table[at + 2] + table[at + 4]
    assert solved(seen, cells) == []


@pytest.mark.parametrize("codes", [(0, 1), (1, 2), (0, 1, 2), (0.0, 2.5, 9.0), (0, 1, 2, 3)])
@pytest.mark.parametrize("rows", [4, 7, 12])
def test_no_rare_code_is_solved_for_from_moments_and_histograms(
    codes: tuple[float, ...], rows: int
) -> None:
    seen = defaultdict(list)
    for counts in tables(len(codes) + 1, rows):
        [numbers] = rows_of([*((code,) for code in codes), (None,)], counts)
        seen[sent(Frame.of({"x": numbers}), {"x": ()})].append(counts)
    assert solved(seen, {f"{code}": itemgetter(at) for at, code in enumerate(codes)}) == []


NUMBERED = [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), (None, 0.0), (None, 1.0)]


@pytest.mark.parametrize("rows", [6, 8, pytest.param(10, marks=pytest.mark.slow)])
def test_no_number_of_a_group_is_solved_for_from_the_groups_and_all_rows(rows: int) -> None:
    seen = defaultdict(list)
    levels = {"f": ("a", "b"), "x": ()}
    for counts in tables(len(NUMBERED), rows):
        columns = rows_of(NUMBERED, counts)
        if any(columns[0]):
            frame = Frame.of({"f": columns[0], "x": columns[1]})
            seen[sent(frame, levels), sent(frame, levels, "f")].append(counts)
    assert solved(seen, {f"{kind}": itemgetter(at) for at, kind in enumerate(NUMBERED[:4])}) == []


def test_sums_at_points_where_differences_are_rounded_say_no_more_than_moments() -> None:
    """Two columns of equal moments, the one mirrored, send the same, also where x / unit - centre
    would be a multiple of 2^-53, so that their sum counts the numbers above one."""
    wide = np.repeat([0.0, 3.0, 3.0, 6.0], 12)
    columns = [wide.copy(), np.repeat([0.0, 3.0, 3.0, 6.0], 12)]
    columns[0][[12, 24, 13]] += [2.0, -1.0, -1.0]  # 5, 2, 2 in place of 3, 3, 3
    columns[1][[12, 24, 13]] += [-2.0, 1.0, 1.0]  # 1, 4, 4: the same sum, and that of squares
    told = []
    for values in columns:
        analysis = DescribeAnalysis()
        site: Any = analysis.sums(Frame.of({"x": values}), {"x": ()})
        one = np.ones(1)
        ends = {"low": one, "high": one, "left": np.ones(5), "right": np.ones(5)}
        for unit, centre, size in ((2.0**54, 1.0, 2.0**-53), (2.0**61, 0.0, 2.0**-80)):
            point = {"units": unit * one, "centre": centre * one, "sizes": size * one, **ends}
            answer = site.statistics({**point, "phase": 3 * one, "unit": np.array(1.0)})
            told.append(answer["sums"].tobytes() + answer["squares"].tobytes())
    assert told[:2] == told[2:]


# ------------------------------------------------------------------ histograms of many numbers


def cumulated(frame: Frame, levels: Levels, by: str, at: int, edge: float) -> float:
    """How many numbers of a column lie below an edge, by what a site sends."""
    analysis = DescribeAnalysis(by=by)
    site: Any = analysis.guarded(analysis.sums(frame, levels), LEAST)
    columns = len(analysis.begin(levels).unit)
    same = np.ones(columns)
    answer = site.statistics(
        {
            "phase": np.ones(1),
            "unit": np.array(1.0),
            "units": same,
            "centre": same,
            "sizes": same,
            "low": EDGES[0] * same,
            "high": edge * same,
            "left": np.repeat(EDGES[0] * same, len(QUANTILES)),
            "right": np.repeat(edge * same, len(QUANTILES)),
        }
    )
    assert (answer["bins"].sum(axis=1) == answer["parts"].sum(axis=2)[:, 0]).all()
    return float(answer["bins"][at].sum())


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(15, 60))
def test_no_two_edges_have_a_few_numbers_between_them(seed: int, count: int) -> None:
    """Of all rows, of a group, and of the others: the difference is 0, or LEAST and more.

    The edges are everywhere, also between single numbers.
    """
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(0.0, 20.0, count), rng.integers(0, 3))
    values[rng.random(count) < 0.1] = np.nan
    texts = rng.choice(["a", "b", ""], count, p=[0.45, 0.45, 0.1]).tolist()
    frame = Frame.of({"f": [one or None for one in texts], "x": values})
    levels = {"f": ("a", "b"), "x": ()}
    edges = np.unique(np.concatenate([values[np.isfinite(values)], [-1e6, 1e6]]))
    edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    plain = np.array([cumulated(frame, levels, "", 0, one) for one in edges])
    whole, first, second = (
        np.array([cumulated(frame, levels, "f", at, one) for one in edges]) for at in range(3)
    )
    assert np.array_equal(plain, whole)
    exact = np.flatnonzero(np.diff(first + second) > 0)[:-1] + 1  # but where the rest is put
    exact = np.array([0, *exact, len(edges) - 1])
    for counts in (whole, first, second, (whole - first - second)[exact]):
        apart = abs(np.subtract.outer(counts, counts))
        assert ((apart == 0) | (apart >= LEAST)).all()


@given(st.lists(st.floats(-1e19, 1e19), min_size=LEAST, max_size=50))
def test_steps_move_fewer_numbers_than_the_least_past_any_edge(numbers: list[float]) -> None:
    values = np.sort(np.array(numbers) + 0.0)
    found = steps(values, LEAST)
    assert (found.counts >= LEAST).all()
    assert found.counts.sum() == len(values)
    assert (np.diff(found.places) > 0).all()
    moved = np.sort(found.places[found.which])
    for edge in EDGES:
        assert abs((moved < edge).sum() - (values < edge).sum()) < LEAST


@given(st.integers(0, 2**32))
def test_merged_cells_have_enough_of_every_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (rng.integers(1, 4), 30))
    counts[:, rng.integers(30)] += LEAST  # so that the whole is enough
    which, last = merged(counts, LEAST)
    sums = np.array([[row[which == one].sum() for one in range(len(last))] for row in counts])
    assert ((sums == 0) | (sums >= LEAST)).all()
    assert (np.diff(which) >= 0).all()
    assert all(which[one] == place for place, one in enumerate(last))


def test_the_largest_of_equal_cells_is_hidden_by_its_name() -> None:
    counts = {"a": 9.0, "b": 9.0, "c": 1.0}
    for names in itertools.permutations(counts):
        out = hidden(np.array([counts[one] for one in names]), names, LEAST)
        assert {name for name, one in zip(names, out, strict=True) if one} == {"a", "c"}


def test_a_site_without_the_column_of_the_groups_is_described_without_them() -> None:
    frame = Frame.of({"x": [float(one) for one in range(20)]})
    levels = {"f": ("a", "b"), "x": ()}
    for least in (1, LEAST):
        analysis = DescribeAnalysis(by="f")
        site: Any = analysis.guarded(analysis.sums(frame, levels), least)
        answer = site.statistics(analysis.point(analysis.begin(levels)))
        back = answer["counts"] * 2.0**20
        assert back.tolist() == [[0, 0, 20], [20, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("factor", [1.0, 0.1, 250.0, 1 / 3, 1 / 365.25])
def test_no_rare_code_of_a_tail_is_solved_for_behind_frequent_ones(factor: float) -> None:
    """Of more codes than are hidden, all but the last of which a histogram shows one by one."""
    seen = defaultdict(list)
    frequent_codes = [float(code) for code in range(11) for _ in range(LEAST + 1)]
    for counts in tables(5, 5):
        tail = rows_of([(code,) for code in (9.0, 10.0, 11.0, 12.0, 13.0)], counts)[0]
        numbers = [factor * code for code in frequent_codes + tail]
        seen[sent(Frame.of({"x": numbers}), {"x": ()})].append(counts)
    rare = {str(code): itemgetter(code - 9) for code in (11, 12, 13)}
    assert solved(seen, rare) == []
    assert len(seen) > 1


def tables_alike(numbers: FloatArray) -> float:
    """How many tables have the same steps, sum and sum of squares of whole numbers as this one."""
    found, values = steps(numbers, LEAST), numbers - np.round(numbers.mean())
    ends = [int(values[found.which == step].max()) for step in range(len(found.places))]
    starts = [int(values.min()), *(end + 1 for end in ends[:-1])]
    every = np.zeros((256, 8192))
    every[0, 0] = 1.0
    for step, (start, end) in enumerate(zip(starts, ends, strict=True)):
        own = values[found.which == step].astype(int)
        if own.min() == own.max():
            continue
        moved = np.zeros_like(every)
        for table in itertools.combinations_with_replacement(range(start, end + 1), len(own)):
            change = sum(table) - own.sum(), sum(x * x for x in table) - (own**2).sum()
            moved += np.roll(every, change, axis=(0, 1))
        every = moved
    return float(every[0, 0])


@pytest.mark.parametrize("seed", range(2))
def test_moments_are_those_of_the_numbers_where_many_tables_have_them(seed: int) -> None:
    """Counted one by one; and of steps alone where few have them."""
    rng = np.random.default_rng(seed)
    many = rng.permutation(np.repeat(np.arange(30.0, 58.0), rng.integers(1, 4, 28)))
    few = np.concatenate([np.repeat(np.arange(12.0), 6), rng.integers(11, 14, 4)])
    for numbers, kept in ((many, True), (few, False)):
        frame = Frame.of({"x": list(numbers)})
        site: Any = DescribeAnalysis().guarded(DescribeAnalysis().sums(frame, {"x": ()}), LEAST)
        moments = site._columns.moments("x")
        found = steps(numbers, LEAST)
        moved = middles(found.places, found.counts, LEAST)[found.which]
        sent_ = numbers if kept else moved
        assert moments.mean == pytest.approx(sent_.mean(), rel=1e-14)
        assert moments.squares(moments.mean, 1.0) == pytest.approx(sent_.var() * len(sent_))
        if kept:
            assert tables_alike(numbers) > 1000


KIDS = np.concatenate([np.repeat(np.arange(10.0), 19), np.full(9, 10.0), [13.0]])


@pytest.mark.parametrize(
    "numbers",
    [
        KIDS / 3.0,
        KIDS / 365.25,
        (KIDS / 3.0).round(3),
        np.append(KIDS, 4.3333333),
        np.append(KIDS, [0.25, 7.5, 7.125]),
        np.append(KIDS / 3.0, 1.23456789),
        np.exp(KIDS),
    ],
)
def test_codes_are_judged_alike_in_whatever_unit_they_are(numbers: FloatArray) -> None:
    """One row of 13 behind nineteen of each code would follow from the sums."""
    site: Any = DescribeAnalysis().guarded(
        DescribeAnalysis().sums(Frame.of({"x": list(numbers)}), {"x": ()}), LEAST
    )
    moments, found = site._columns.moments("x"), steps(numbers, LEAST)
    moved = middles(found.places, found.counts, LEAST)[found.which]
    assert moments.mean == pytest.approx(moved.mean(), rel=1e-12)
    assert moments.mean != pytest.approx(numbers.mean(), rel=1e-6)


@pytest.mark.parametrize("rows", [30, 200, 2000])
def test_numbers_of_no_list_of_codes_are_shown_as_they_are(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for numbers in (
        rng.normal(27.0, 4.0, rows),
        rng.normal(27.0, 4.0, rows).astype(np.float32).astype(float),
        np.exp(rng.normal(7.0, 1.0, rows)).round(2),
        rng.integers(6_000, 36_000, rows) / 365.25,
    ):
        site: Any = DescribeAnalysis().guarded(
            DescribeAnalysis().sums(Frame.of({"x": list(numbers)}), {"x": ()}), LEAST
        )
        moments = site._columns.moments("x")
        assert moments.mean == pytest.approx(numbers.mean(), rel=1e-14)
        variance = moments.squares(moments.mean, 1.0) / rows
        assert variance == pytest.approx(numbers.var(), rel=1e-12)


@pytest.mark.parametrize("rows", [300, 1000, 4000])
def test_the_mean_of_ages_in_whole_years_is_off_by_little(rows: int) -> None:
    age = np.clip(np.random.default_rng(rows).normal(60.0, 12.0, rows).round(), 18, 99)
    site: Any = DescribeAnalysis().guarded(
        DescribeAnalysis().sums(Frame.of({"age": list(age)}), {"age": ()}), 5
    )
    moments = site._columns.moments("age")
    error = age.std() / np.sqrt(rows)
    assert abs(moments.mean - age.mean()) < 0.2 * error
    assert np.sqrt(moments.squares(moments.mean, 1.0) / rows) == pytest.approx(age.std(), rel=0.03)


def test_more_numbers_than_codes_are_shown() -> None:
    for count in (MOST_CODES, MOST_CODES + 1):
        frame = Frame.of({"x": [float(one) for one in range(count)]})
        site: Any = DescribeAnalysis().guarded(DescribeAnalysis().sums(frame, {"x": ()}), LEAST)
        answer = site.statistics(DescribeAnalysis().point(DescribeAnalysis().begin({"x": ()})))
        assert (answer["counts"][0, 0] > 0) == (count > MOST_CODES)
    assert PARTS == 64


def test_few_rows_that_enter_after_a_horizon_are_a_cell() -> None:
    """A column as time of entry: by bisection of horizons they would give the largest value."""
    age = [float(one) for one in [*np.random.default_rng(3).integers(20, 90, 60), 97]]
    died = [float(place % 2) for place in range(61)]
    frame = Frame.of({"age": age, "days": [one + 100.0 for one in age], "died": died})
    for horizon, few in ((95.0, 1), (98.0, 0)):
        analysis = KaplanMeierAnalysis("days", "died", "age", horizon=horizon)
        own = analysis.sums(frame, {})
        assert own.dropped == (few, 0, 0, 0)
        if few:
            with pytest.raises(AnalysisError, match="enter after the end or the horizon"):
                analysis.guarded(own, 5)
    assert analysis.guarded(own, 1)


@pytest.mark.parametrize("values", [[0.0] * 39 + [23.0], [7.0] * 38 + [1.0, 2.0]])
@pytest.mark.parametrize("place", ["column", "weights"])
def test_a_value_of_few_rows_is_in_no_cox_model(values: list[float], place: str) -> None:
    columns = {
        "x": values,
        "z": [float(one % 7) for one in range(40)],
        "days": [float(one + 1) for one in range(40)],
        "died": [float(one % 2) for one in range(40)],
    }
    formula = "x + z" if place == "column" else "z"
    weights = {"weight_column": "x"} if place == "weights" and min(values) > 0 else {}
    analysis = CoxAnalysis("days", "died", formula=formula, **weights)
    own = analysis.sums(Frame.of(columns), {})
    if formula == "z" and not weights:
        assert analysis.guarded(own, 5)
        return
    with pytest.raises(AnalysisError, match="min-cell = 5"):
        analysis.guarded(own, 5)


def test_a_curve_does_not_count_few_rows_off_its_grid() -> None:
    days = [*([10.0, 20.0, 30.0] * 20), 20.5]
    columns = {"days": days, "died": [float(place // 3 % 2) for place in range(61)]}
    analysis = KaplanMeierAnalysis("days", "died", time_unit=10.0, horizon=30.0)
    own = analysis.sums(Frame.of(columns), {})
    assert own.times.off_grid == 1
    assert analysis.guarded(own, 5).times.off_grid >= 5
    assert analysis.guarded(own, 1).times.off_grid == 1


# ------------------------------------------------------------------ regressions


def sent_of_fit(frame: Frame, analysis: Any) -> dict[str, Any]:
    """The sums of the first two rounds of a linear fit, in plain units."""
    site = analysis.guarded(analysis.sums(frame, {}), LEAST)
    width = site.matrix.shape[1]
    names = ("unit", "level", "heaviness", "spread", "null_spread", "mean")
    point = {name: np.array(1.0) for name in names} | {"shift": np.array(0.0)}
    point |= {"centre": np.zeros(width), "basis": np.eye(width)}
    return {
        f"{name} {phase}": values
        for phase in (SIZES, START)
        for name, values in site.statistics(point | {"phase": np.array(float(phase))}).items()
    }


@pytest.mark.parametrize("codes", [(0, 1), (0, 1, 2), (0.0, 2.5, 9.0), (1, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("rows", [13, 14])
def test_no_rare_code_is_solved_for_from_the_sums_of_a_regression(
    codes: tuple[float, ...], rows: int
) -> None:
    """Of a column beside an outcome of which nothing else is known."""
    seen = defaultdict(list)
    outcome = np.linspace(3.0, 4.0, rows)
    for counts in tables(len(codes), rows):
        [numbers] = rows_of([(code,) for code in codes], counts)
        try:
            sums = sent_of_fit(Frame.of({"x": numbers, "y": outcome}), Glm("gaussian", "y ~ x"))
            told = b"".join(
                np.round(sums[name], 9).tobytes()
                for name in ("nonzero 0", "sizes 0", "information 1")
            )
        except AnalysisError:
            told = b"refused"
        seen[told].append(counts)
    assert len(seen) > 1
    assert solved(seen, {str(code): itemgetter(at) for at, code in enumerate(codes)}) == []


# ------------------------------------------------------------------ strata, and a Cox model

ROWS = {
    "x": [float(one % 5) + one / 100 for one in range(60)],
    "days": [float(one + 1) for one in range(60)],
    "died": [float(one % 2) for one in range(60)],
}


@pytest.mark.parametrize("kind", ["cox", "kaplan-meier"])
def test_a_stratum_of_few_rows_is_a_cell(kind: str) -> None:
    """Strata of one row each add 0, so that the sums would be of the others alone."""
    died = [*ROWS["died"][:58], 1.0, 1.0]
    frame = Frame.of({**ROWS, "died": died, "ward": ["a"] * 30 + ["b"] * 28 + ["c"] * 2})
    times = {"time_column": "days", "event_column": "died", "strata_column": "ward"}
    analysis: Any = CoxAnalysis(**times, formula="x")
    if kind == "kaplan-meier":
        analysis = KaplanMeierAnalysis(**times, horizon=60.0)
    sums = analysis.sums(frame, {})
    assert analysis.guarded(sums, 2)
    with pytest.raises(AnalysisError, match="a cell of strata-column has fewer rows") as caught:
        analysis.guarded(sums, 5)
    assert caught.value.told is Told.SMALL_CELL


@pytest.mark.parametrize("rare", ["a", "b"])
def test_a_category_of_few_rows_is_in_no_cox_model(rare: str) -> None:
    """The reference among them, which has no column of its own."""
    other = {"a": "b", "b": "a"}[rare]
    frame = Frame.of({**ROWS, "arm": [rare] * 2 + [other] * 40 + ["c"] * 18})
    analysis = CoxAnalysis("days", "died", formula="arm + x")
    sums = analysis.sums(frame, {"arm": ("a", "b", "c")})
    with pytest.raises(AnalysisError, match="min-cell = 5: a cell of"):
        analysis.guarded(sums, 5)


def test_deaths_in_a_category_are_a_cell_where_times_are_few() -> None:
    """All are at risk at the first time: the score is the deaths less their known expectation."""
    arm = ["a"] * 30 + ["b"] * 30
    died = [float(place % 2) for place in range(30)] + [1.0] * 2 + [0.0] * 28
    columns = {**ROWS, "arm": arm, "died": died, "year": [1.0 + place // 30 for place in range(60)]}
    levels = {"arm": ("a", "b")}
    at_year = CoxAnalysis("year", "died", formula="arm + x")
    with pytest.raises(AnalysisError, match="a cell of arm and the event has fewer"):
        at_year.guarded(at_year.sums(Frame.of(columns), levels), 5)
    by_day = CoxAnalysis("days", "died", formula="arm + x")
    assert by_day.guarded(by_day.sums(Frame.of(columns), levels), 5)


@pytest.mark.parametrize("kind", ["cox", "kaplan-meier"])
def test_as_many_strata_as_rows_are_refused_in_little_memory(kind: str) -> None:
    count = 20_000
    number = [float(one) for one in range(count)]
    frame = Frame.of({**dict.fromkeys(("days", "x", "id"), number), "died": [1.0] * count})
    times = {"time_column": "days", "event_column": "died", "strata_column": "id"}
    analysis: Any = CoxAnalysis(**times, formula="x")
    if kind == "kaplan-meier":
        analysis = KaplanMeierAnalysis(**times, horizon=float(count))
    sums = analysis.sums(frame, {})
    tracemalloc.start()
    with pytest.raises(AnalysisError, match="a cell of strata-column has fewer rows"):
        analysis.guarded(sums, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6


def test_as_many_strata_as_rows_are_summed_in_little_time() -> None:
    count = 60_000
    number = np.arange(float(count))
    frame = Frame.of({"days": number % 700 + 1.0, "id": number, "died": number % 2})
    analysis = KaplanMeierAnalysis("days", "died", strata_column="id", horizon=700.0)
    sums = analysis.sums(frame, {})
    started = process_time()
    found = sums.statistics({"unit": np.array(1.0), "cells": np.array(700.0)})
    assert process_time() - started < 2.0
    assert not found["excess"].any()
    assert not found["variance"].any()
    assert found["events"].sum() == count / 2


@pytest.mark.parametrize(("several", "told"), [(0, 40), (1, 40), (4, 40), (5, 35), (12, 28)])
def test_few_persons_with_a_second_row_are_a_cell(several: int, told: int) -> None:
    frame = replace(Frame.of({"x": np.arange(40.0)}), persons=40 - several)
    analysis = DescribeAnalysis()
    levels: dict[str, tuple[str, ...]] = {"x": ()}
    point = analysis.point(analysis.begin(levels))
    own = analysis.sums(frame, levels)
    found = analysis.guarded(own, 5).statistics(point)["persons"] * point["unit"]
    assert found.tolist() == [told]
    assert (own.statistics(point)["persons"] * point["unit"]).tolist() == [40 - several]
