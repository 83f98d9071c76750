"""What a site refuses to sum for a regression, against cells counted by their definition."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from time import process_time
from typing import Any

import numpy as np
import pytest

from privet.analyses import disclosure
from privet.analyses.analysis import Analysis
from privet.analyses.column_cells import Cells
from privet.analyses.cox import CoxAnalysis
from privet.analyses.disclosure import require_large_cells, require_large_pairs
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.glm import Glm
from privet.analyses.glm_state import SIZES
from privet.analyses.small_cells import MOST_CODES
from privet.data.analysed import AnalysedTable
from privet.data.dataset import DataError
from privet.kernel import Told
from support.analysis_sites import TABLES, agreed, dealt, table_columns

LEAST = 5
ROWS = 60


def guarded(glm: Analysis[Any], columns: Mapping[str, Any], levels: Any = None) -> Any:
    frame = Frame.of(columns)
    levels = levels or agreed(glm, [frame])
    return glm.guarded(glm.sums(frame, levels), LEAST)


def is_refused(glm: Analysis[Any], columns: Mapping[str, Any], levels: Any = None) -> bool:
    try:
        guarded(glm, columns, levels)
    except AnalysisError as error:
        return error.told is Told.SMALL_CELL
    return False


def smallest(columns: list[Any]) -> int:
    """The smallest cell, not 0, of any two columns of categories."""
    pairs = combinations([np.asarray(one) for one in columns], 2)
    counts = [
        int(((one == first) & (other == second)).sum())
        for one, other in pairs
        for first, second in product(np.unique(one), np.unique(other))
    ]
    return min(count for count in counts if count)


@pytest.mark.parametrize("values", [(0, 1), (1, 2), (-1, 1), (0.25, -0.75), (3.5, 7)])
def test_a_column_of_two_values_is_one_of_cells_whatever_they_are(values: Any) -> None:
    rng = np.random.default_rng(3)
    age, died = rng.normal(60, 10, ROWS), np.arange(ROWS) % 2
    for rare in range(3 * LEAST):
        column = np.array(values, float)[(np.arange(ROWS) < rare).astype(int)]
        found = is_refused(Glm(formula="died ~ age + x"), {"died": died, "age": age, "x": column})
        assert found == (rare > 0 and smallest([column, died]) < LEAST), rare


@pytest.mark.parametrize("seed", range(40))
def test_no_cell_of_two_categories_or_of_one_and_the_outcome_is_small(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.1, 0.5)
    columns = {
        "died": (rng.random(ROWS) < 0.5) * 1.0,
        "age": rng.normal(60, 10, ROWS),
        "stage": rng.choice(["i", "ii", "iii"], ROWS, p=[1 - share, share / 2, share / 2]),
        "arm": rng.choice([1.0, 2.0], ROWS),
    }
    cells = [columns[name] for name in ("died", "stage", "arm")]
    assert is_refused(Glm(formula="died ~ age + stage + arm"), columns) == (smallest(cells) < LEAST)


def test_the_reference_category_and_its_cells_are_no_exception() -> None:
    died, age = np.arange(ROWS) % 2, np.linspace(40, 80, ROWS)
    stage = np.array(["i"] * 3 + ["ii"] * 29 + ["iii"] * 28)
    columns = {"died": died, "age": age, "stage": stage}
    assert is_refused(Glm(formula="died ~ age + stage"), columns)
    columns["stage"] = np.where(stage == "i", "ii", stage)
    levels = {"stage": ("i", "ii", "iii")}
    assert not is_refused(Glm(formula="died ~ age + stage"), columns, levels)


def test_sums_of_few_rows_are_refused_in_products_splines_and_columns_of_zeros() -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "died": np.arange(ROWS) % 2,
        "sex": np.array(["F", "M"])[(np.arange(ROWS) // 2 % 2)],
        "age": rng.uniform(40, 59, ROWS),
    }
    assert not is_refused(Glm(formula="died ~ sex*age"), columns)
    assert not is_refused(Glm(formula="died ~ rcs(age, 45, 50, 55)"), columns)
    columns["age"][:3] = (61.5, 72.0, 85.25)
    assert is_refused(Glm(formula="died ~ rcs(age, 60, 70, 80)"), columns)
    columns["dose"] = np.where(np.arange(ROWS) < 12, rng.uniform(1, 9, ROWS), 0.0)
    columns["sex"][:12] = ["F"] * 10 + ["M"] * 2
    assert is_refused(Glm(formula="died ~ age + sex:dose"), columns)
    assert is_refused(Glm(formula="died ~ age + sex + dose"), columns)
    columns["sex"][:12] = ["F", "F", "M", "M"] * 3
    assert not is_refused(Glm(formula="died ~ age + sex + dose"), columns)


def test_an_offset_or_weight_that_few_rows_have_is_refused() -> None:
    years = np.where(np.arange(ROWS) < 3, 0.5, 1.0)
    columns = {
        "died": np.arange(ROWS) % 2,
        "age": np.linspace(40, 80, ROWS),
        "years": years,
    }
    for key in ("exposure_column", "offset_column", "weight_column"):
        assert is_refused(Glm(formula="died ~ age", **{key: "years"}), columns)
    assert not is_refused(Glm(formula="died ~ age"), columns)


def test_few_zeros_of_a_column_are_in_no_count() -> None:
    rng = np.random.default_rng(1)
    columns = {"died": np.arange(ROWS) % 2, "age": rng.normal(0.0, 3.0, ROWS).round(1)}
    columns["age"][:2] = 0.0
    columns["age"][2:] += columns["age"][2:] == 0.0
    point = {"phase": np.array(float(SIZES)), "unit": np.array(1.0)}
    own = guarded(Glm(formula="died ~ age"), columns).statistics(point)
    there = np.abs(columns["age"][2:])
    assert own["nonzero"][1] == ROWS
    assert own["sizes"][1] / ROWS == pytest.approx(np.log2(there).mean())


@pytest.mark.parametrize("codes", [3, 6, 10])
@pytest.mark.parametrize("few", range(8))
def test_each_value_of_a_column_of_codes_is_paired(codes: int, few: int) -> None:
    """Of three codes sums of the column and of its square by outcome give the events of each."""
    rng, rows = np.random.default_rng(few), 40 * codes
    stage = np.arange(rows) // 40 * 1.0
    died = np.arange(rows) % 2.0
    died[stage == codes - 1] = np.arange(40) < few
    columns: dict[str, Any] = {"died": died, "stage": stage, "age": rng.normal(60.0, 10.0, rows)}
    refused = 0 < few < LEAST
    assert is_refused(Glm(formula="died ~ stage + I(stage ** 2) + age"), columns) == refused
    columns |= {"x": died, "died": np.arange(rows) // 2 % 2}
    assert is_refused(Glm(formula="died ~ stage + x + age"), columns) == refused


@pytest.mark.parametrize("powers", [1, 2, 3, 6])
@pytest.mark.parametrize("rare", [0, 1, LEAST - 1, LEAST])
def test_a_rare_value_is_refused_where_the_terms_tell_as_many_as_there_are(
    powers: int, rare: int
) -> None:
    """Each further term of the column is a few more equations for how many rows have each."""
    terms = [f"I(kids ** {power})" for power in range(2, powers + 1)]
    formula = " + ".join(["died ~ kids", *terms, "age"])
    answers = []
    for codes in range(MOST_CODES, 45):
        counts = [2 * LEAST] * codes + [rare]
        kids = np.repeat(np.arange(codes + 1.0), counts)
        died = np.arange(len(kids)) % 2.0 * (kids < codes)  # no cell of the rare value and 1
        columns: dict[str, Any] = {"kids": kids, "died": died}
        columns["age"] = np.random.default_rng(codes).normal(60.0, 10.0, len(kids))
        answers.append(is_refused(Glm(formula=formula), columns))
        if 0 < rare < LEAST:
            told = linear_equations(kids, columns["died"], powers)
            assert answers[-1] or told < codes + 1
    assert answers == sorted(answers, reverse=True)
    assert any(answers) == (0 < rare < LEAST)


@pytest.mark.parametrize(("codes", "powers"), [(11, 1), (12, 1), (17, 2), (22, 3)])
@pytest.mark.parametrize("other", ["category", "two values", "outcome", "pattern", "stratum"])
def test_a_value_that_is_solved_for_is_one_of_cells(codes: int, powers: int, other: str) -> None:
    """Of as many values as have `min-cell` rows each, those of pairs and patterns as well."""
    kids = np.repeat(np.arange(codes * 1.0), 40)
    rows, marks = len(kids), np.arange(len(kids)) % 2.0
    terms = " + ".join(["kids", *(f"I(kids ** {power})" for power in range(2, powers + 1))])
    for few in (0, 1, LEAST - 1, LEAST):
        mixed = np.where(kids == codes - 1, np.arange(rows) % 40 < few, marks)
        columns: dict[str, Any] = {"kids": kids, "died": np.arange(rows) // 2 % 2.0}
        columns |= {
            "time": 1.0 + np.arange(rows),
            "age": np.random.default_rng(1).normal(size=rows),
        }
        formula = f"died ~ {terms} + age"
        glm: Analysis[Any] = Glm(formula=f"{formula} + x")
        if other == "category":
            columns["x"] = np.array(["F", "M"])[mixed.astype(int)]
        elif other == "outcome":
            glm, columns["died"] = Glm(formula=formula), mixed
        else:
            columns["x"] = mixed
        if other == "pattern":  # each pair is large: kids and x with y a half of either
            columns["x"], columns["y"] = marks, np.arange(rows) // 2 % 2.0
            half = np.arange(rows) % 40 < 20
            at = (kids == codes - 1) & np.where(half, marks == 1.0, marks == 0.0)
            columns["y"][kids == codes - 1] = 0.0
            columns["y"][np.flatnonzero(at)[: 20 - few]] = 1.0
            columns["died"] = np.random.default_rng(2).normal(size=rows)
            cells = np.stack([kids, columns["x"], columns["y"]], axis=1)
            counts = np.unique(cells, axis=0, return_counts=True)[1]
            gaussian = Glm("gaussian", f"died ~ {terms} + x + y")
            assert is_refused(gaussian, columns) == (counts.min() < LEAST)
            continue
        refused = 0 < few < LEAST
        if other != "stratum":
            assert is_refused(glm, columns) == refused
        cox = CoxAnalysis("time", "died", formula=f"{terms} + age + x")
        if other == "stratum":
            cox = CoxAnalysis("time", "died", formula=f"{terms} + age", strata_column="x")
        if other != "outcome":
            assert is_refused(cox, columns) == refused


@pytest.mark.parametrize("kind", ["products", "splines"])
def test_many_terms_are_looked_at_in_little_time(kind: str) -> None:
    """As many as a formula has, each of which is a function of others, or nearly so."""
    rng, rows = np.random.default_rng(5), 40_000
    drawn = [rng.geometric(0.22, rows).astype(float) for _ in range(4)]
    if kind == "products":
        terms = [
            one**first * other**second
            for one, other in combinations(drawn, 2)
            for first, second in product(range(1, 10), repeat=2)
        ]
    else:
        ages = rng.integers(0, 60, rows).astype(float)
        terms = [np.maximum(ages - knot / 9.0, 0.0) ** 3 for knot in range(480)]
    started = process_time()
    cells = require_large_cells([(str(place), one) for place, one in enumerate(terms)], LEAST)
    assert process_time() - started < 12.0
    assert sum(one.coarser for _, one in cells) == {"products": 0, "splines": 479}[kind]


@pytest.mark.parametrize("seed", range(12))
def test_pairs_are_refused_alike_by_one_table_and_pair_by_pair(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, 2 + seed % 3, 150).astype(np.int32) for _ in range(4)]
    drawn[3][rng.random(150) < 0.5] = -1
    columns = [("c", Cells(drawn[2], whole=True)), ("d", Cells(drawn[3], whole=False))]
    factors = [("a", drawn[0]), ("b", drawn[1])]
    refused = []
    for widest in (1 << 10, 0):
        monkeypatch.setattr(disclosure, "_WIDEST", widest)
        try:
            require_large_pairs(columns, factors, 13)
            refused.append(False)
        except AnalysisError:
            refused.append(True)
    shown = drawn[3] >= 0
    small = min(smallest(drawn[:3]), smallest([one[shown] for one in drawn]))
    assert refused == [small < 13] * 2
    monkeypatch.setattr(disclosure, "_MOST_WORK", 100)
    with pytest.raises(AnalysisError, match="6 pairs of columns of few values") as caught:
        require_large_pairs(columns, factors, 13)
    assert caught.value.told is Told.MANY_CELLS


@pytest.mark.parametrize(
    ("glm", "name", "value"),
    [
        (Glm(formula="died ~ age", weight_column="w"), "w", 0.0),
        (Glm(formula="died ~ age", exposure_column="w"), "w", -1.0),
        (Glm(formula="died ~ age + log(w)"), "w", 0.0),
        (Glm(formula="died ~ sqrt(w):age"), "w", -2.0),
        (Glm(formula="died ~ age + log1p(w)"), "w", -1.0),
        (Glm(formula="died ~ age"), "died", 2.0),
        (Glm("poisson", "died ~ age"), "died", -1.0),
        (Glm("gaussian", "log(w) ~ age"), "w", 0.0),
        (CoxAnalysis("time", "died", formula="age + log(w)"), "w", 0.0),
        (CoxAnalysis("time", "died", formula="log(age) + log(w) + sqrt(w)"), "w", -1.0),
        (Glm(formula="died ~ age + I(w ** 9)"), "w", 1e40),
        (Glm(formula="died ~ w:I(age ** 9)"), "w", -1e300),
        (Glm(formula="died ~ age + rcs(w, 2, 4, 6)"), "w", 1e110),
        (Glm("poisson", "I(w ** 9) ~ age"), "w", 1e40),
        (CoxAnalysis("time", "died", formula="log(w):I(w ** 9):age"), "w", 1e36),
    ],
)
@pytest.mark.parametrize("few", [1, LEAST - 1, LEAST, 12])
def test_rows_that_cannot_be_used_are_left_out_and_are_a_cell(
    glm: Analysis[Any], name: str, value: float, few: int
) -> None:
    rng = np.random.default_rng(few)
    columns: dict[str, Any] = {"died": np.arange(ROWS) % 2.0, "age": rng.normal(60, 10, ROWS)}
    columns |= {"w": rng.uniform(1.0, 9.0, ROWS), "time": rng.uniform(1.0, 9.0, ROWS)}
    columns[name][:few] = value
    sums: Any = glm.sums(Frame.of(columns), {})
    assert sums.num_examples == ROWS - few
    assert sums.left_out[""] == sums.left_out[name] == few
    assert is_refused(glm, columns, {}) == (few < LEAST)
    others = glm.sums(Frame.of({key: own[few:] for key, own in columns.items()}), {})
    point = {key: np.asarray(own) for key, own in glm.point(glm.begin({})).items()}
    found, wanted = sums.statistics(point), others.statistics(point)
    for key in found.keys() - {"left_out"}:
        np.testing.assert_array_equal(found[key], wanted[key])
    columns[name][: ROWS // 2] = value
    with pytest.raises(AnalysisError, match=r"w'|died has|died' has|is too large"):
        glm.sums(Frame.of(columns), {})


def test_no_path_of_a_node_is_in_what_others_are_told() -> None:
    columns = {"died": np.arange(ROWS) % 2.0, "w": np.full(ROWS, -1.0)}
    frame = Frame.of(columns, "/data/own.csv")
    for own, told in (
        (True, "log(w) takes values above 0, and column 'w' has others"),
        (False, ""),
    ):
        table = AnalysedTable(Glm(formula="died ~ log(w)"), frame, own=own)
        with pytest.raises(DataError, match=r"^/data/own.csv: [^/]*$") as caught:
            _ = table.sums
        assert caught.value.told == told


def linear_equations(kids: Any, died: Any, powers: int) -> int:
    """How many independent equations for the counts of all codes the information matrices of
    Newton's rounds are, of powers that are scaled; what is below 1e-11 is rounding."""
    codes, places = np.unique(kids, return_inverse=True)
    raw = np.stack([codes**power for power in range(powers + 1)], axis=1)
    scale = np.maximum(raw.std(axis=0), 1.0)
    own = (raw - np.r_[0.0, raw[:, 1:].mean(axis=0)]) / np.r_[1.0, scale[1:]]
    rows, coefficients, equations = own[places], np.zeros(powers + 1), []
    for _ in range(8):
        mean = 1.0 / (1.0 + np.exp(-own @ coefficients))
        weight = mean * (1.0 - mean)
        equations += [
            weight * own[:, one] * own[:, other]
            for one in range(powers + 1)
            for other in range(one, powers + 1)
        ]
        information = rows.T @ (rows * weight[places][:, None])
        score = rows.T @ (died - mean[places])
        coefficients = coefficients + np.linalg.lstsq(information, score, rcond=None)[0]
    matrix = np.stack(equations)
    matrix /= abs(matrix).max(axis=1, keepdims=True)
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > 1e-11 * values[0]).sum())


@pytest.mark.parametrize("seed", range(40))
def test_a_model_of_few_values_is_the_cross_table_of_its_columns(seed: int) -> None:
    """Also of three columns and the outcome; a column of many values beside them ends the rule."""
    rng, rows = np.random.default_rng(seed), 300
    odds = rng.uniform(0.3, 0.6)
    columns: dict[str, Any] = {name: (rng.random(rows) < odds) * 1.0 for name in ("a", "b", "died")}
    columns["c"] = rng.choice(["x", "y"], rows, p=[odds, 1 - odds])
    rows_of = [str(one) for one in zip(*columns.values(), strict=True)]
    counts = np.unique(rows_of, return_counts=True)[1]
    assert is_refused(Glm(formula="died ~ a + b + c"), columns) == (counts.min() < LEAST)
    columns["age"] = rng.normal(60.0, 10.0, rows)
    pairs = smallest([columns[name] for name in ("a", "b", "c", "died")])
    assert is_refused(Glm(formula="died ~ a + b + c + age"), columns) == (pairs < LEAST)


@pytest.mark.parametrize("name", ["glm-binomial-1", "glm-gaussian-1"])
def test_the_worked_tables_are_answered_by_every_site(name: str) -> None:
    formula = {
        "glm-binomial-1": "died ~ age + sex + bmi + crp + smoker",
        "glm-gaussian-1": "pressure ~ age * sex + bmi",
    }[name]
    glm = Glm(family=name.split("-")[1], formula=formula)
    columns = table_columns(TABLES / f"{name}.csv")
    frames = dealt(columns, columns["site"])
    levels = agreed(glm, frames.values())
    for frame in frames.values():
        glm.guarded(glm.sums(frame, levels), LEAST)


@pytest.mark.parametrize(("rows", "refused"), [(14, True), (15, False)])
def test_more_than_a_third_as_many_terms_as_rows_are_refused(rows: int, refused: bool) -> None:
    rng = np.random.default_rng(rows)
    columns = {name: rng.normal(0.0, 1.0, rows) for name in "abcdy"}
    glm = Glm("gaussian", "y ~ a + b + c + d")
    if not refused:
        guarded(glm, columns)
        return
    with pytest.raises(AnalysisError, match="5 terms of 14 rows of this site") as caught:
        guarded(glm, columns)
    assert caught.value.told is Told.MANY_TERMS
