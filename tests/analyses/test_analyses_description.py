"""Descriptions beside pandas on the pooled table, for any deal of the rows to sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.analyses.description import DescribeAnalysis
from privet.analyses.description_state import QUANTILES
from privet.analyses.description_table import disagreements
from privet.analyses.frame import AnalysisError, Frame, Levels
from privet.analyses.table_one import table_one

GRID = 2.0**-40


def described(
    frames: Sequence[Frame],
    levels: Levels,
    *,
    by: str = "",
    rounded: bool = False,
    least: int = 1,
) -> dict[str, Any]:
    """The table of sites' frames; ``rounded`` gives each site's numbers the grid of secure sums."""
    analysis = DescribeAnalysis(by=by)
    sites = [analysis.sums(frame, levels) for frame in frames]
    if least > 1:
        sites = [analysis.guarded(site, least) for site in sites]
    state = analysis.begin(levels)
    while not state.done:
        answers = [site.statistics(analysis.point(state)) for site in sites]
        for name, shape in analysis.shapes(state).items():
            assert all(answer[name].shape == shape for answer in answers)
        if rounded:
            answers = [{n: np.rint(a / GRID) * GRID for n, a in one.items()} for one in answers]
            assert all(abs(a).max(initial=0) < 2.0**20 for one in answers for a in one.values())
        totals = {name: sum(answer[name] for answer in answers) for name in answers[0]}
        after = analysis.step(state, totals)
        state = after if rounded else analysis.by_site(state, after, answers)
    table = analysis.table(state)
    return {**table, "site_names": [f"s{at}" for at in range(len(frames))]}


def dealt(columns: Mapping[str, Any], whose: Any) -> list[Frame]:
    """Frames of the rows of each site."""
    return [
        Frame.of({n: np.array(v, dtype=object)[whose == site] for n, v in columns.items()})
        for site in range(int(max(whose)) + 1)
    ]


def require_alike(found: Mapping[str, Any], values: Any, tolerance: float) -> None:
    """Compare the description of a column of numbers with pandas on the pooled one."""
    known = pd.Series(values, dtype="float64").dropna()
    assert (found["n"], found["missing"]) == (len(known), len(values) - len(known))
    if not len(known):
        assert "mean" not in found
        return
    size = float(known.abs().max()) or 1.0
    spread = float(known.std()) if len(known) > 1 else math.nan
    assert abs(found["mean"] - known.mean()) <= tolerance * size
    if len(known) == 1:
        assert found["sd"] is None
    else:
        exact = float(np.std((known - known.mean()) / size, ddof=1)) * size
        assert found["sd"] == pytest.approx(exact, rel=tolerance, abs=tolerance * size * 1e-3)
        assert found["sd"] == pytest.approx(spread, rel=1e-6, abs=1e-12 * size)
    counts = found["histogram"]["counts"]
    assert sum(counts) == len(known)
    edges = np.linspace(found["histogram"]["low"], found["histogram"]["high"], len(counts) + 1)
    assert np.array_equal(counts, np.histogram(known, edges)[0])
    for q in QUANTILES:
        true = float(np.quantile(known, q, method="inverted_cdf"))
        least, error = found["quantiles"][f"{q:g}"], found["quantile_errors"][f"{q:g}"]
        assert least <= true <= least + error
        assert 0 < error <= 2.0**-17 * max(abs(true), 2.0**-22)


def made(rng: np.random.Generator, kind: str, count: int) -> Any:
    """A column of numbers of a kind, a tenth of them missing."""
    values = {
        "tiny": lambda: rng.normal(size=count) * 10.0 ** rng.uniform(-30, -11, count),
        "large": lambda: rng.normal(size=count) * 10.0 ** rng.uniform(-11, 17, count),
        "offset": lambda: 1e9 + rng.normal(size=count),
        "constant": lambda: np.full(count, rng.normal() * 10.0 ** rng.integers(-9, 9)),
        "whole": lambda: rng.integers(-50, 50, count).astype(float),
        "negative": lambda: -rng.exponential(10.0, count),
        "nothing": lambda: np.full(count, math.nan),
    }[kind]()
    values[rng.random(count) < 0.1] = math.nan
    return values


KINDS = ("tiny", "large", "offset", "constant", "whole", "negative", "nothing")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 300), sites=st.integers(1, 6))
def test_numbers_are_those_of_pandas_on_the_pooled_rows(
    kind: str, seed: int, count: int, sites: int
) -> None:
    rng = np.random.default_rng(seed)
    values = made(rng, kind, count)
    whose = rng.integers(0, sites, count)
    table = described(dealt({"x": values}, whose), {"x": ()})
    assert table["rows"] == count
    require_alike(table["columns"]["x"], values, 1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-30, 1e17, 2.0**-40, 2.0**30])
def test_one_value_is_its_own_mean_without_a_deviation(value: float) -> None:
    table = described([Frame.of({"x": [None, value, None]})], {"x": ()})
    require_alike(table["columns"]["x"], [None, value, None], 1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 300), sites=st.integers(1, 5))
def test_categories_are_counted_as_pandas_does(seed: int, count: int, sites: int) -> None:
    rng = np.random.default_rng(seed)
    texts = rng.choice(["ü", "b", "a b", ""], count, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    texts = [one or None for one in texts]
    levels = {"t": tuple(sorted({one for one in texts if one} | {"never"}))}
    whose = rng.integers(0, sites, count)
    frames = [one for one in dealt({"t": texts}, whose) if "t" in one.factors]
    rows = sum(one.rows for one in frames)
    if not frames:
        return
    [found] = described(frames, levels)["columns"].values()
    expected = pd.Series(texts).value_counts()
    assert found["categories"] == {one: int(expected.get(one, 0)) for one in levels["t"]}
    assert (found["n"], found["n"] + found["missing"]) == (int(expected.sum()), rows)
    assert sum(row["n"] for row in found["by_site"]) == found["n"]


def test_sites_without_a_column_or_with_another_kind_are_counted_apart() -> None:
    frames = [
        Frame.of({"x": [1.0, 2.0, None], "t": ["a", "b", "b"]}),
        Frame.of({"t": ["a", None]}),
        Frame.of({"x": ["a text", "b", "c", "c"], "t": [1.0, 2.0, 3.0, 4.0]}),
    ]
    table = described(frames, {"t": ("a", "b"), "x": ()})
    number, text = table["columns"]["x"], table["columns"]["t"]
    assert [number[key] for key in ("n", "missing", "other")] == [2, 1, 6]
    assert [text[key] for key in ("n", "missing", "other")] == [4, 1, 4]
    assert [row["other"] for row in number["by_site"]] == [0, 2, 4]
    assert number["mean"] == 1.5
    assert "column x: no column of numbers at s1, s2" in disagreements(table)


def test_each_sites_mean_and_deviation_are_pandas_own() -> None:
    rng = np.random.default_rng(1)
    frames = [Frame.of({"x": 1e6 * site + rng.normal(size=50 + site)}) for site in range(4)]
    rows = described(frames, {"x": ()})["columns"]["x"]["by_site"]
    for row, frame in zip(rows, frames, strict=True):
        own = pd.Series(frame.numbers["x"])
        assert row["mean"] == pytest.approx(own.mean(), rel=1e-12)
        assert row["sd"] == pytest.approx(own.std(), rel=1e-3)  # about the pooled mean


# ------------------------------------------------------------------ groups

LEVELS = {"group": ("a", "b"), "t": ("u", "v", "w"), "x": ()}


def grouped(seed: int, count: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    group = rng.choice(["a", "b"], count).tolist()
    values = rng.normal(size=count) * 3 + 10 * (np.array(group) == "a")
    values[rng.random(count) < 0.1] = math.nan
    texts = rng.choice(["u", "v", "w"], count, p=[0.5, 0.3, 0.2]).tolist()
    return {"group": group, "t": texts, "x": values}, rng.integers(0, 3, count)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), count=st.integers(60, 300))
def test_groups_are_those_of_groupby(seed: int, count: int) -> None:
    columns, whose = grouped(seed, count)
    table = described(dealt(columns, whose), LEVELS, by="group")["columns"]
    pooled = pd.DataFrame(columns)
    assert table["group"]["categories"] == pooled["group"].value_counts().to_dict()
    for name, rows in pooled.groupby("group"):
        require_alike(table["x"]["groups"][name], rows["x"], 1e-12)
        found = table["t"]["groups"][name]
        assert found["categories"] == {one: int((rows["t"] == one).sum()) for one in LEVELS["t"]}
        assert (found["n"], found["missing"]) == (len(rows), 0)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), count=st.integers(60, 300))
def test_standardised_differences_are_those_of_the_formula(seed: int, count: int) -> None:
    """Of numbers by pandas; of categories by solving with the covariance of all but the first."""
    columns, whose = grouped(seed, count)
    table = described(dealt(columns, whose), LEVELS, by="group")["columns"]
    first, second = (rows for _, rows in pd.DataFrame(columns).groupby("group"))
    spread = math.sqrt((first["x"].var() + second["x"].var()) / 2)
    expected = (second["x"].mean() - first["x"].mean()) / spread
    assert table["x"]["standardised_difference"] == pytest.approx(expected, rel=1e-10)
    shares = [
        np.array([(rows["t"] == one).mean() for one in LEVELS["t"][1:]]) for rows in (first, second)
    ]
    middle = np.zeros((2, 2))
    for one in shares:
        for i in range(2):
            for j in range(2):
                middle[i, j] += ((one[i] if i == j else 0.0) - one[i] * one[j]) / 2
    apart = shares[1] - shares[0]
    distance = math.sqrt(apart @ np.linalg.solve(middle, apart))
    assert table["t"]["standardised_difference"] == pytest.approx(distance, rel=1e-9, abs=1e-9)


def test_table_1_has_what_pandas_finds_in_each_group() -> None:
    columns, whose = grouped(5, 400)
    columns["t"][0] = None
    table = described(dealt(columns, whose), LEVELS, by="group")
    heads, *rows = table_one({**table, "by": "group"})
    pooled = pd.DataFrame(columns)
    parts = [pooled, *(rows for _, rows in pooled.groupby("group"))]
    sizes = [
        f"{name} (n = {len(part)})" for name, part in zip(("all", "a", "b"), parts, strict=True)
    ]
    assert heads == ["group", *sizes, "missing", "std. difference"]
    by_name = {first: cells for first, *cells in rows}
    assert all(1 <= one["x"].std() < 10 for one in parts)
    numbers = [f"{one['x'].mean():.2f} ({one['x'].std():.2f})" for one in parts]
    apart = table["columns"]["x"]["standardised_difference"]
    assert by_name["x, mean (sd)"] == [*numbers, str(pooled["x"].isna().sum()), f"{apart:.3f}"]
    assert by_name["t, n (%)"][3] == "1"
    for text in LEVELS["t"]:
        counts = [((one["t"] == text).sum(), one["t"].count()) for one in parts]
        shown = [f"{count} ({100 * count / known:.1f} %)" for count, known in counts]
        assert by_name[f"  {text}"] == [*shown, "", ""]


def test_table_1_gives_a_hidden_count_by_its_bounds() -> None:
    columns, whose = grouped(5, 60)
    columns["t"] = ["u"] * 57 + ["v"] * 3
    rows = table_one(
        {**described(dealt(columns, whose), LEVELS, by="group", least=9), "by": "group"}
    )
    cells = {first: cells for first, *cells in rows}
    assert " to " in cells["  v"][0]
    assert "(5.0 %)" not in cells["  v"][0]


def test_a_column_that_is_no_category_cannot_make_groups() -> None:
    with pytest.raises(AnalysisError, match="by: x is no column of categories"):
        DescribeAnalysis(by="x").begin({"x": ()})


# ------------------------------------------------------------------ grids and guards


@pytest.mark.parametrize("kind", ["offset", "constant", "whole", "negative"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_numbers_on_the_grid_of_secure_sums_are_those_of_pandas(kind: str, seed: int) -> None:
    """Means to 1e-9 of the largest number, deviations too."""
    rng = np.random.default_rng(seed)
    values = made(rng, kind, 200)
    table = described(dealt({"x": values}, rng.integers(0, 3, 200)), {"x": ()}, rounded=True)
    known = pd.Series(values).dropna()
    found, size = table["columns"]["x"], float(known.abs().max())
    assert found["n"] == len(known)
    assert abs(found["mean"] - known.mean()) <= 1e-9 * size
    assert abs(found["sd"] - known.std()) <= 1e-9 * known.std() + 1e-12 * size
    exact = described(dealt({"x": values}, rng.integers(0, 3, 200)), {"x": ()})["columns"]["x"]
    assert found["quantiles"] == exact["quantiles"]
    assert found["histogram"] == exact["histogram"]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), least=st.integers(2, 10))
def test_quantiles_of_nodes_that_hide_cells_are_within_the_ranks_that_are_told(
    seed: int, least: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=400) * 50
    table = described(dealt({"x": values}, rng.integers(0, 3, 400)), {"x": ()}, least=least)
    found, away = table["columns"]["x"], table["quantile_rank_error"]
    assert (found["n"], away) == (400, 3 * (least - 1))
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
    ordered = np.sort(values)
    for q in QUANTILES:
        low = found["quantiles"][f"{q:g}"]
        high = low + found["quantile_errors"][f"{q:g}"]
        rank = math.ceil(400 * q)
        assert ordered[max(rank - away - 1, 0)] <= high
        assert ordered[min(rank + away - 1, 399)] >= low
    assert sum(found["histogram"]["counts"]) == 400
