"""Models of columns that are hard to fit, against the pooled fit in extended precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.glm import Glm
from support.analysis_sites import agreed, dealt, fitted, play
from support.patients_of_sites import patients
from support.pooled import pooled

Columns = dict[str, Any]


def one(columns: Columns) -> Any:
    return np.ones(len(columns["age"]))


def male(columns: Columns) -> Any:
    return (np.array(columns["sex"]) == "M") * 1.0


def smokes(columns: Columns, level: str) -> Any:
    return (np.array(columns["smoker"]) == level) * 1.0


def powers(name: str, *others: str, most: int) -> Callable[[Columns], list[Any]]:
    def made(columns: Columns) -> list[Any]:
        values = columns[name]
        raised = [values**power for power in range(1, most + 1)]
        return [one(columns), *raised, *(columns[other] for other in others)]

    return made


def spline(columns: Columns) -> list[Any]:
    age = columns["age"]

    def cube(knot: float) -> Any:
        return np.maximum(age - knot, 0) ** 3

    bent = (cube(30) - cube(50) * 40 / 20 + cube(70) * 20 / 20) / 1600
    return [one(columns), male(columns), age, bent]


CASES: dict[str, tuple[Glm, Callable[[Columns], list[Any]]]] = {
    "interactions": (
        Glm(formula="died ~ age * sex + bmi:smoker"),
        lambda t: (
            [one(t), male(t), t["age"], t["age"] * male(t)]
            + [t["bmi"] * smokes(t, level) for level in ("current", "former", "never")]
        ),
    ),
    "an age and its square and cube": (
        Glm(formula="died ~ age + I(age ** 2) + I(age ** 3)"),
        powers("age", most=3),
    ),
    "a year and its square, units 1e5 and 1e-6": (
        Glm(formula="died ~ year + I(year ** 2) + cells + tiny"),
        powers("year", "cells", "tiny", most=2),
    ),
    "columns that differ by 1e-5": (
        Glm(formula="died ~ bmi + near"),
        lambda t: [one(t), t["bmi"], t["near"]],
    ),
    "a spline": (Glm(formula="died ~ rcs(age, 30, 50, 70) + sex"), spline),
    "rare events": (Glm(formula="rare ~ age + sex"), lambda t: [one(t), male(t), t["age"]]),
    "no intercept": (
        Glm(formula="died ~ age + log(crp) - 1"),
        lambda t: [t["age"], np.log(t["crp"])],
    ),
    "all indicators": (
        Glm(formula="died ~ sex + age - 1"),
        lambda t: [1 - male(t), male(t), t["age"]],
    ),
    "weights and an offset": (
        Glm(formula="died ~ age + sex", weight_column="weight", offset_column="log_dose"),
        lambda t: [one(t), male(t), t["age"]],
    ),
    "weights of 1e6": (
        Glm(formula="died ~ age", weight_column="heavy"),
        lambda t: [one(t), t["age"]],
    ),
    "rates": (
        Glm("poisson", "visits ~ age + sex * smoker", exposure_column="years"),
        lambda t: [
            one(t),
            male(t),
            smokes(t, "former"),
            smokes(t, "never"),
            male(t) * smokes(t, "former"),
            male(t) * smokes(t, "never"),
            t["age"],
        ],
    ),
    "rates with weights and an offset": (
        Glm("poisson", "visits ~ age", "years", "log_dose", "weight"),
        lambda t: [one(t), t["age"]],
    ),
    "counts of 1e6": (
        Glm("poisson", "many ~ age + smoker"),
        lambda t: [one(t), smokes(t, "former"), smokes(t, "never"), t["age"]],
    ),
    "a large mean": (
        Glm("gaussian", "pressure ~ age + I(age ** 2) + cells", offset_column="log_dose"),
        powers("age", "cells", most=2),
    ),
    "a close fit": (
        Glm("gaussian", "exact ~ age + bmi + sex + smoker"),
        lambda t: [one(t), male(t), smokes(t, "former"), smokes(t, "never"), t["age"], t["bmi"]],
    ),
    "a Gaussian of weights": (
        Glm("gaussian", "log(crp) ~ age", weight_column="heavy"),
        lambda t: [one(t), t["age"]],
    ),
}


def arguments(glm: Glm, columns: Columns) -> dict[str, Any]:
    offset = columns[glm.offset_column] if glm.offset_column else 0.0
    if glm.exposure_column:
        offset = offset + np.log(columns[glm.exposure_column])
    outcome = glm.formula.split(" ~ ")[0]
    values = np.log(columns["crp"]) if outcome == "log(crp)" else columns[outcome]
    weights = columns[glm.weight_column] if glm.weight_column else 1.0
    return {"outcome": values, "sites": columns["site"], "offset": offset, "weights": weights}


def compare(table: dict[str, Any], oracle: Any, kinds: tuple[str, ...]) -> None:
    coef = oracle.coef.astype(float)
    size = np.maximum(np.abs(coef), oracle.errors("nonrobust"))
    assert np.abs((np.array(table["coef"]) - coef) / size).max() < 1e-9
    for kind in kinds:
        np.testing.assert_allclose(table["se"][kind], oracle.errors(kind), rtol=1e-8)
    for name in ("loglik", "deviance", "scale"):
        assert table[name] == pytest.approx(getattr(oracle, name), rel=1e-9), name


@pytest.mark.parametrize("name", CASES)
def test_a_hard_model_is_fitted_as_pooled(name: str) -> None:
    glm, design = CASES[name]
    columns = patients()
    table = fitted(glm, columns, columns["site"])
    given_ = arguments(glm, columns)
    matrix = np.stack(design(columns), axis=1)
    compare(table, pooled(glm.family, matrix, **given_), ("nonrobust", "HC0", "cluster"))
    null = pooled(glm.family, one(columns)[:, None], **given_)
    for key in ("loglik", "deviance"):
        assert table[f"null_{key}"] == pytest.approx(getattr(null, key), rel=1e-9)
    assert table["rounds"] <= 8


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_it_does_not_matter_how_rows_are_dealt(seed: int, sites: int) -> None:
    columns = patients(120)
    glm = Glm(formula="died ~ age + smoker")
    all_at_one = fitted(glm, columns, ["all"] * 120, rounded=False)
    dealt_out = fitted(glm, columns, np.random.default_rng(seed).integers(sites, size=120))
    for key in ("coef", "cov", "z", "loglik", "null_loglik", "deviance"):
        np.testing.assert_allclose(dealt_out[key], all_at_one[key], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(dealt_out["se"]["HC0"], all_at_one["se"]["HC0"], rtol=1e-8)


def test_the_order_of_terms_and_the_names_of_levels_do_not_matter() -> None:
    columns = patients(300)
    first = fitted(Glm(formula="died ~ age + sex + smoker"), columns, columns["site"])
    other = fitted(
        Glm(formula="died ~ C(smoker, ref='never') + age + C(sex, ref='M')"),
        columns,
        columns["site"],
    )
    a, b = (dict(zip(table["terms"], table["coef"], strict=True)) for table in (first, other))
    assert b["smoker[T.former]"] == pytest.approx(a["smoker[T.former]"] - a["smoker[T.never]"])
    assert b["sex[T.F]"] == pytest.approx(-a["sex[T.M]"], rel=1e-9)
    assert b["age"] == pytest.approx(a["age"], rel=1e-9)
    assert other["loglik"] == pytest.approx(first["loglik"], rel=1e-12)
    wald = [table["tests"]["smoker"]["nonrobust"]["chi2"] for table in (first, other)]
    assert wald[0] == pytest.approx(wald[1], rel=1e-8)


def test_site_intercepts_have_no_clustered_errors() -> None:
    columns = patients()
    table = fitted(Glm(formula="died ~ age + C(site)"), columns, columns["site"])
    marks = np.array(columns["site"])
    matrix = np.stack(
        [one(columns), *((marks == f"s{place}") * 1.0 for place in range(1, 5)), columns["age"]],
        axis=1,
    )
    oracle = pooled("binomial", matrix, columns["died"], columns["site"])
    compare(table, oracle, ("nonrobust", "HC0"))
    assert table["se"]["cluster"][:5] == [None] * 5
    assert table["se"]["cluster"][5] == pytest.approx(oracle.errors("cluster")[5], rel=1e-8)
    assert list(table["tests"]["site"]) == ["nonrobust", "HC0"]
    assert any("is 0 at all sites but one" in note for note in table["notes"])


def separated(count: int = 200) -> Columns:
    columns = patients(count)
    rng = np.random.default_rng(3)
    columns["marker"] = columns["died"] * (rng.random(count) < 0.7)
    columns["u"] = rng.normal(size=count)
    sign = 2 * columns["died"] - 1
    columns["v"] = sign * (0.1 + np.abs(rng.normal(size=count))) - columns["u"]
    columns["none"] = (columns["visits"] == 0) * 1.0
    columns["double"] = 2.2046 * columns["bmi"] + 7
    columns["sum"] = 3 * columns["age"] - 2 * columns["bmi"]
    columns["ten"] = np.full(count, 10.0)
    columns["empty"] = np.zeros(count)
    return columns


@pytest.mark.parametrize(
    ("glm", "words"),
    [
        (Glm(formula="died ~ marker + age + sex"), "^marker: separation.* this column.*firth"),
        (Glm(formula="died ~ u + v + sex"), "^u, v: separation.* a combination.*firth"),
        (Glm("poisson", "visits ~ none + age"), "^none: separation"),
        (Glm(formula="died ~ age + bmi + double"), "^Intercept, bmi, double: linearly dependent"),
        (Glm(formula="died ~ age + bmi + sum - 1"), "^age, bmi, sum: linearly dependent"),
        (Glm(formula="died ~ age + ten"), "^Intercept, ten: linearly dependent"),
        (Glm(formula="died ~ age + empty"), "^empty: 0 in every row"),
        (Glm("gaussian", "double ~ bmi + age"), "outcome is a linear function"),
        (Glm("gaussian", "ten ~ bmi + age"), "outcome is the same in every row"),
        (Glm("poisson", "empty ~ bmi + age"), "outcome is 0 in every row"),
        (Glm(formula="none ~ age - 1", weight_column="empty"), "'empty' has numbers.* not above 0"),
        (Glm(formula="age ~ bmi"), "outcome age has numbers other than 0 and 1"),
        (Glm("poisson", "u ~ bmi"), "outcome u has numbers below 0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rounded", [False, True])
def test_what_has_no_estimate_is_named(glm: Glm, words: str, rounded: bool) -> None:
    columns = separated()
    with pytest.raises(AnalysisError, match=words):
        play(glm, dealt(columns, columns["site"]), rounded, most=16)


@pytest.mark.parametrize(
    ("glm", "names"),
    [
        (Glm(formula="died ~ marker + age", firth=True), ("marker", "age")),
        (Glm(formula="died ~ u + v", firth=True), ("u", "v")),
        (Glm("poisson", "visits ~ none + age", firth=True), ("none", "age")),
        (Glm(formula="died ~ bmi", firth=True, weight_column="weight"), ("bmi",)),
    ],
)
def test_firth_gives_finite_estimates(glm: Glm, names: tuple[str, ...]) -> None:
    columns = separated(120)
    table = fitted(glm, columns, columns["site"])
    matrix = np.stack([one(columns), *(columns[name] for name in names)], axis=1)
    oracle = pooled(glm.family, matrix, **arguments(glm, columns), firth=True)
    compare(table, oracle, ("nonrobust",))
    assert list(table["se"]) == ["nonrobust"]
    information = np.linalg.inv(oracle.cov["nonrobust"].astype(float))
    penalised = oracle.loglik + np.linalg.slogdet(information)[1] / 2
    assert table["penalised_loglik"] == pytest.approx(penalised, rel=1e-9)


def test_firth_of_a_two_by_two_table_is_its_log_odds_with_halves() -> None:
    exposed, died = (
        np.repeat([1.0, 1.0, 0.0, 0.0], [7, 3, 2, 9]),
        np.repeat([1.0, 0, 1, 0], [7, 3, 2, 9]),
    )
    columns = {"exposed": exposed, "died": died}
    table = fitted(Glm(formula="died ~ exposed", firth=True), columns, ["a", "b", "c"] * 7)
    assert table["coef"][1] == pytest.approx(np.log(7.5 * 9.5 / (3.5 * 2.5)), rel=1e-9)


def test_two_categories_are_an_outcome_and_the_table_says_which_is_1() -> None:
    columns = patients(200)
    numbers = fitted(Glm(formula="died ~ age"), columns, columns["site"])
    columns["fate"] = ["dead" if died else "alive" for died in columns["died"]]
    texts = fitted(Glm(formula="fate ~ age"), columns, columns["site"])
    np.testing.assert_allclose(texts["coef"], numbers["coef"], rtol=1e-9)
    assert "fate: dead counts as 1, alive as 0" in texts["notes"]


def test_missing_rows_are_left_out_and_counted() -> None:
    columns = patients(300)
    rows = {name: list(values) for name, values in columns.items()}
    rows["age"][:7] = [None] * 7
    rows["smoker"][5:10] = [None] * 5
    table = fitted(Glm(formula="died ~ age + smoker"), rows, columns["site"])
    kept = {name: list(values)[10:] for name, values in columns.items()}
    complete = fitted(Glm(formula="died ~ age + smoker"), kept, columns["site"][10:])
    assert table["left_out"] == {"": 10, "died": 0, "age": 7, "smoker": 5}
    assert table["n"] == 290
    np.testing.assert_allclose(table["coef"], complete["coef"], rtol=1e-9)
    assert (
        "10 rows with missing values, or values that cannot be used, left out (age 7, smoker 5)"
        in table["notes"]
    )


def test_a_state_is_arrays_and_numbers() -> None:
    columns = patients(100)
    state = play(Glm(formula="died ~ age + smoker"), dealt(columns, columns["site"]))
    for name in state.__dataclass_fields__ | {"gap": 0}:
        assert isinstance(getattr(state, name), np.ndarray | float | int), name


def test_large_coefficients_are_not_taken_for_separation() -> None:
    # One row on the wrong side; the estimate is far out and finite.
    dose = np.concatenate([np.linspace(-4.0, -0.1, 40), np.linspace(0.1, 4.0, 40)])
    columns = {"dose": np.append(dose, -0.15), "died": np.append(dose > 0, True) * 1.0}
    found = fitted(Glm(formula="died ~ dose"), columns, ["a", "b", "c"] * 27)
    oracle = pooled(
        "binomial", np.stack([np.ones(81), columns["dose"]], axis=1), columns["died"], ["a"] * 81
    )
    assert abs(found["coef"][1]) > 15
    compare(found, oracle, ("nonrobust",))
    np.testing.assert_allclose(found["se"]["HC0"], oracle.errors("HC0"), rtol=1e-6)


def test_a_site_without_complete_rows_changes_nothing() -> None:
    columns = patients(200)
    glm = Glm(formula="died ~ age + smoker")
    frames = dealt(columns, columns["site"])
    alone = glm.table(play(glm, frames))
    empty = {name: [None] * 3 for name in ("died", "age")} | {"smoker": ["never"] * 3}
    frames["s9"] = Frame.of(empty)
    table = glm.table(play(glm, frames))
    for key in ("coef", "n", "sites", "loglik"):
        np.testing.assert_allclose(table[key], alone[key], rtol=1e-10)
    assert table["left_out"] == {"": 3, "died": 3, "age": 3, "smoker": 0}


def test_sums_that_lack_a_site_are_asked_for_again() -> None:
    columns = patients(200)
    glm = Glm(formula="died ~ age + smoker")
    frames = dealt(columns, columns["site"])
    levels = agreed(glm, frames.values())
    sites = [glm.sums(frame, levels) for frame in frames.values()]

    def totals(state: Any, asked: list[Any]) -> dict[str, Any]:
        parts = [site.statistics(glm.point(state)) for site in asked]
        return {name: sum(part[name] for part in parts) for name in glm.shapes(state)}

    state = glm.begin(levels)
    for round_ in range(20):
        if round_ in (1, 2, 4):
            before = glm.point(state)
            state = glm.step(state, totals(state, sites[1:]))
            for name, value in glm.point(state).items():
                np.testing.assert_array_equal(value, before[name])
        state = glm.step(state, totals(state, sites))
        if state.done:
            break
    expected = fitted(glm, columns, columns["site"])
    np.testing.assert_allclose(glm.table(state)["coef"], expected["coef"], rtol=1e-9)
    assert state.rounds == expected["rounds"] + 3


@pytest.mark.parametrize("seed", range(12))
def test_firth_finds_the_maximum_of_perfectly_separated_outcomes(seed: int) -> None:
    # Its penalised likelihood is not concave; no point that a search comes to is higher.
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    dose = rng.normal(size=20)
    outcome = (dose > np.sort(dose)[rng.integers(2, 18)]) * 1.0
    columns = {"dose": dose, "died": outcome}
    glm = Glm(formula="died ~ dose", firth=True)
    found = fitted(glm, columns, rng.integers(3, size=20))
    design = np.stack([np.ones(20), dose], axis=1)

    def height(coef: Any) -> float:
        small = np.exp(-np.abs(design @ coef))
        information = (design * (small / (1 + small) ** 2)[:, None]).T @ design
        lost = np.logaddexp(0, -(2 * outcome - 1) * (design @ coef)).sum()
        return float(lost - np.linalg.slogdet(information)[1] / 2)

    best = height(np.array(found["coef"]))
    assert found["penalised_loglik"] == pytest.approx(-best, rel=1e-8)
    start = np.array(found["coef"])
    searched = [minimize(height, start * share, tol=1e-10).fun for share in (0.0, 0.5, 1.0)]
    assert best <= min(searched) + 1e-8
