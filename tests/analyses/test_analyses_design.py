"""Design matrices against their definition, row by row, and the same at every site."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.design import Design, complete_cases
from privet.analyses.formula import read_formula
from privet.analyses.frame import AnalysisError, Frame

LEVELS = {"sex": ("F", "M"), "smoker": ("current", "former", "never")}


def rows(count: int = 40, seed: int = 0) -> dict[str, list[object]]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(20, 90, count).tolist(),
        "crp": rng.gamma(2.0, 3.0, count).tolist(),
        "sex": rng.choice(LEVELS["sex"], count).tolist(),
        "smoker": rng.choice(LEVELS["smoker"], count).tolist(),
    }


def design(formula: str) -> Design:
    return Design.of(read_formula(formula), LEVELS)


def test_columns_are_what_their_names_say() -> None:
    table = rows()
    made = design("y ~ age * C(smoker, ref='never') + log(crp) + I(age ** 2) + sex:crp")
    matrix = dict(zip(made.names, made.matrix(Frame.of(table)).T, strict=True))
    for row in range(40):
        age, crp = float(table["age"][row]), float(table["crp"][row])  # type: ignore[arg-type]
        former, male = table["smoker"][row] == "former", table["sex"][row] == "M"
        for name, value in {
            "Intercept": 1.0,
            "smoker[T.former]": former,
            "age": age,
            "age:smoker[T.former]": age * former,
            "log(crp)": math.log(crp),
            "I(age ** 2)": age * age,
            "sex[F]:crp": crp * (not male),
            "sex[M]:crp": crp * male,
        }.items():
            assert matrix[name][row] == pytest.approx(float(value), rel=1e-14), name


def test_the_spline_is_linear_outside_its_knots_and_cubic_between() -> None:
    made = design("y ~ rcs(age, 30, 50, 60, 80)")
    ages = np.arange(0.0, 120.0, 0.5)
    columns = made.matrix(Frame.of({"age": ages.tolist()})).T[1:]
    np.testing.assert_array_equal(columns[0], ages)
    for place, knot in enumerate((30.0, 50.0), start=1):
        expected = [
            (
                max(x - knot, 0) ** 3
                - max(x - 60, 0) ** 3 * (80 - knot) / 20
                + max(x - 80, 0) ** 3 * (60 - knot) / 20
            )
            / 2500
            for x in ages
        ]
        np.testing.assert_allclose(columns[place], expected, rtol=1e-9, atol=1e-9)
        bends = np.diff(columns[place], 2)
        np.testing.assert_allclose(bends[ages[2:] <= 30], 0.0, atol=1e-9)
        np.testing.assert_allclose(bends[ages[:-2] >= 80], 0.0, atol=1e-9)
        assert np.abs(bends).max() > 1e-3


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_site_makes_the_columns_that_all_rows_have(seed: int, cut: int) -> None:
    table, made = rows(seed=seed), design("y ~ age * smoker + sex:crp + rcs(age, 30, 50, 70)")
    parts = [
        Frame.of({name: column[part] for name, column in table.items()})
        for part in (slice(cut), slice(cut, None))
        if len(table["age"][part])
    ]
    stacked = np.concatenate([made.matrix(part) for part in parts])
    np.testing.assert_array_equal(stacked, made.matrix(Frame.of(table)))


@pytest.mark.parametrize(
    ("formula", "place"),
    [
        ("y ~ age + sex", [1, 0, 0]),
        ("y ~ sex + age - 1", [1, 1, 0]),
        ("y ~ age - 1", [0]),
        ("y ~ sex:age - 1", [0, 0]),
        ("y ~ sex:smoker - 1", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_ones_says_how_the_columns_add_up_to_one(formula: str, place: list[int]) -> None:
    made = design(formula)
    np.testing.assert_array_equal(made.ones, place)
    if any(place):
        np.testing.assert_array_equal(made.matrix(Frame.of(rows())) @ made.ones, np.ones(40))


def test_terms_have_their_columns() -> None:
    assert design("y ~ age * smoker").terms == {
        "Intercept": (0,),
        "smoker": (1, 2),
        "age": (3,),
        "age:smoker": (4, 5),
    }


def test_rows_without_a_value_are_counted_by_column() -> None:
    frame = Frame.of({"x": [1.0, None, 3.0, None], "g": ["a", "b", None, None], "z": [None] * 4})
    complete, counts = complete_cases(frame, ("x", "g"))
    assert complete.tolist() == [True, False, False, False]
    assert counts == {"": 3, "x": 2, "g": 2}


def test_numbers_serve_as_categories() -> None:
    frame = Frame.of({"site": [10, 2, 2.5, 10]})
    assert frame.factor("site").levels == ("2", "2.5", "10")
    made = Design.of(read_formula("y ~ C(site)"), {"site": ("2", "2.5", "10")})
    assert made.names == ("Intercept", "site[T.2.5]", "site[T.10]")
    np.testing.assert_array_equal(made.matrix(frame), [[1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 0, 1]])


@pytest.mark.parametrize(
    ("formula", "table", "words"),
    [
        ("y ~ age", {"crp": [1.0]}, "column 'age' is not in the table"),
        ("y ~ age", {"age": ["1271"]}, "column 'age' holds texts"),
        ("y ~ log(crp)", {"crp": [-1271.0]}, r"log\(crp\) takes values above 0"),
        ("y ~ sqrt(crp)", {"crp": [-1271.0]}, r"sqrt\(crp\) takes values 0 or above"),
        ("y ~ crp", {"crp": [math.inf]}, "column 'crp' holds infinite values"),
        ("y ~ I(crp ** 9)", {"crp": [1271e300]}, r"I\(crp \*\* 9\) is too large"),
        ("y ~ sex", {"sex": ["1271"]}, "column 'sex'.*: a category is not among"),
    ],
)
def test_what_cannot_be_used_is_named_without_a_value(
    formula: str, table: dict[str, list[object]], words: str
) -> None:
    with pytest.raises(AnalysisError, match=words) as caught:
        design(formula).matrix(Frame.of(table, "north"))
    assert "1271" not in str(caught.value)
    assert "north" in str(caught.value)
