"""The formula's grammar: what it reads, what it refuses, and the columns that patsy would make."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.coding import blocks
from privet.analyses.formula import Piece, read_formula
from privet.analyses.frame import AnalysisError

LEVELS: Mapping[str, Sequence[str]] = {
    "sex": ("F", "M"),
    "smoker": ("current", "former", "never"),
    "site": ("a", "b"),
}


def names(formula: str, levels: Mapping[str, Sequence[str]] = LEVELS) -> list[str]:
    return [name for block in blocks(read_formula(formula), levels) for name in block.names]


def test_every_piece_of_the_grammar_is_read() -> None:
    text = (
        'died ~ age + C(smoker, ref="never") + sex:bmi + age*sex + log(crp) + log1p(crp)'
        " + sqrt(crp) + I(bmi ** 2) + rcs(age, 30, 50.5, 70) + Q('white cells') - 1"
    )
    formula = read_formula(text)
    assert formula.outcome == Piece("died")
    assert not formula.intercept
    assert formula.columns == ("died", "age", "smoker", "sex", "bmi", "crp", "white cells")
    assert formula.categories == ("smoker",)
    assert [":".join(piece.name for piece in term) for term in formula.terms] == [
        "age", "smoker", "sex:bmi", "sex", "age:sex", "log(crp)", "log1p(crp)", "sqrt(crp)",
        "I(bmi ** 2)", "rcs(age, 30, 50.5, 70)", 'Q("white cells")',
    ]  # fmt: skip


# The columns that patsy 1.0.3 makes of them, C(...) left out of the names.
@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("y ~ age * sex + bmi", ["Intercept", "sex[T.M]", "age", "age:sex[T.M]", "bmi"]),
        ("y ~ age + sex", ["Intercept", "sex[T.M]", "age"]),
        ("y ~ sex:bmi", ["Intercept", "sex[F]:bmi", "sex[M]:bmi"]),
        ("y ~ bmi + sex:bmi", ["Intercept", "bmi", "sex[T.M]:bmi"]),
        ("y ~ sex + smoker - 1", ["sex[F]", "sex[M]", "smoker[T.former]", "smoker[T.never]"]),
        ("y ~ 0 + age", ["age"]),
        ("y ~ -1 + age", ["age"]),
        ("y ~ 1", ["Intercept"]),
        ("y ~ age * sex - age", ["Intercept", "sex[T.M]", "age:sex[F]", "age:sex[M]"]),
        (
            "y ~ sex:smoker",
            [
                "Intercept", "smoker[T.former]", "smoker[T.never]", "sex[T.M]:smoker[current]",
                "sex[T.M]:smoker[former]", "sex[T.M]:smoker[never]",
            ],
        ),
        (
            "y ~ 0 + smoker:sex",
            [
                "smoker[current]:sex[F]", "smoker[former]:sex[F]", "smoker[never]:sex[F]",
                "smoker[current]:sex[M]", "smoker[former]:sex[M]", "smoker[never]:sex[M]",
            ],
        ),
        (
            "y ~ C(smoker, ref='never'):sex + smoker",
            [
                "Intercept", "smoker[T.current]", "smoker[T.former]", "smoker[current]:sex[T.M]",
                "smoker[former]:sex[T.M]", "smoker[never]:sex[T.M]",
            ],
        ),
        ("y ~ rcs(age, 1, 2, 3)", ["Intercept", "rcs(age, 1, 2, 3)[0]", "rcs(age, 1, 2, 3)[1]"]),
    ],
)  # fmt: skip
def test_columns_have_the_names_and_order_of_patsy(formula: str, columns: list[str]) -> None:
    assert names(formula) == columns


HOSTILE = [
    "died ~ __import__('os').system('id')",
    "died ~ age.__class__",
    "died ~ I(__import__('os').getpid())",
    "died ~ I(age ** 2 ** 9 ** 9)",
    "died ~ I(age ** 999999999)",
    "died ~ I(age ** x)",
    "died ~ (lambda: 1)()",
    "died ~ log(eval('1'))",
    "died ~ exec('import os')",
    "died ~ C(age, Treatment('x'))",
    "died ~ C(age, ref=__builtins__)",
    "died ~ age[0]",
    "died ~ f'{age}'",
    "died ~ (x := 1)",
    "died ~ age; import os",
    "died ~ `age`",
    "died ~ {age: 1}",
    "died ~ age if age else 1",
    "died ~ np.log(age)",
    "died ~ open('/etc/passwd')",
    "died ~ Q('a\\x22')",
    "died ~ Q('a\"b')",
    "died ~ rcs(age, 1e999, 2, 3)",
    "died ~ rcs(age, -1e999, 2, 3)",
    "died ~ age + \x00",
    "died ~ log(log(age))",
    "died ~ @age",
    "died ~ *args",
    "died ~ age ~ sex",
    "died ~ 2",
    "died ~ age sex",
    "died ~ C(age, ref='x'",
    "died ~",
    "died",
    "",
    "~ age",
    "died ~ died",
    "died ~ age - age - 1",
    "died ~ " + "(" * 5000 + "age" + ")" * 5000,
    "died ~ " + "*".join(f"x{place}" for place in range(30)),
    "died ~ " + "+".join(f"x{place}" for place in range(1500)),
    "died ~ " + "age + " * 200_000 + "age",
    "died ~ rcs(age" + ", 1" * 3000 + ")",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:24]))
def test_what_is_not_in_the_grammar_is_refused_in_one_line(text: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(AnalysisError) as caught:
        read_formula(text)
    spent = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    line = str(caught.value)
    assert line.startswith("formula: ")
    assert line.isprintable()
    assert len(line) < 250
    assert spent < 5.0
    assert peak < 2**23


def test_the_refusal_names_the_piece() -> None:
    for text, piece in [("y ~ exp(x)", "'exp'"), ("y ~ x.y", "'.y'"), ("y ~ x / z", "'/ z'")]:
        with pytest.raises(AnalysisError, match=piece):
            read_formula(text)


@given(st.text(alphabet="xyC(),:*+-~10 'ref=\"IQ.[]lo\\g{}", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        formula = read_formula("y ~ x + " + text)
    except AnalysisError:
        return
    assert formula.terms or formula.intercept


@pytest.mark.parametrize(
    ("formula", "piece"),
    [
        ("y ~ log(sex)", "log"),
        ("y ~ C(age)", "age"),
        ("y ~ C(sex, ref='X')", "sex"),
        ("y ~ C(sex, ref='F') + C(sex, ref='M')", "sex"),
    ],
)
def test_categories_that_cannot_be_used_are_named(formula: str, piece: str) -> None:
    with pytest.raises(AnalysisError, match=piece):
        names(formula)


def test_a_product_of_large_factors_is_refused_before_it_is_made() -> None:
    large = {name: [str(level) for level in range(3000)] for name in "abc"}
    with pytest.raises(AnalysisError, match="more than 2000 columns up to a:b:c"):
        names("y ~ a:b:c - 1", large)


def test_a_column_that_is_once_a_category_is_one_everywhere() -> None:
    assert names("y ~ C(site) + site:age") == [
        "Intercept",
        "site[T.b]",
        "site[a]:age",
        "site[b]:age",
    ]
