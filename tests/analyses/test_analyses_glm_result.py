"""The regression table as numbers by term and as texts."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from privet.analyses.glm_result import GlmResult
from privet.analyses.text_table import markdown_rows, short
from support.analysis_sites import TABLES, fitted, table_of
from support.patients_of_sites import patients


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    columns = table_of("glm-binomial-1.csv")
    glm = Glm(formula="died ~ age + sex + bmi + crp + smoker")
    # As it comes out of a file.
    found: dict[str, Any] = json.loads(json.dumps(fitted(glm, columns, columns["site"])))
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TABLES / "glm-binomial-1.json").read_text())
    return found


def test_numbers_have_statsmodels_names(table: dict[str, Any], expected: dict[str, Any]) -> None:
    result = GlmResult(table)
    for name, key in {"params": "coef", "tvalues": "z", "pvalues": "p"}.items():
        series = getattr(result, name)
        assert list(series.index) == expected["terms"]
        np.testing.assert_allclose(series, expected[key], rtol=1e-7)
    np.testing.assert_allclose(result.bse, expected["se"]["nonrobust"], rtol=1e-8)
    np.testing.assert_allclose(result.conf_int(), expected["ci95"], rtol=1e-8)
    np.testing.assert_allclose(result.cov_params(), expected["cov"], rtol=1e-8, atol=1e-12)
    assert result.llf == pytest.approx(expected["loglik"])
    assert result.aic == pytest.approx(expected["aic"])
    assert result.bic == pytest.approx(-2 * expected["loglik"] + 7 * np.log(900))
    assert result.nobs == 900


@pytest.mark.parametrize("kind", ["HC0", "cluster"])
def test_other_errors_are_taken_throughout(
    kind: str, table: dict[str, Any], expected: dict[str, Any]
) -> None:
    result = GlmResult(table, kind)
    errors = np.array(expected["se"][kind])
    z = np.array(expected["coef"]) / errors
    np.testing.assert_allclose(result.bse, errors, rtol=1e-8)
    np.testing.assert_allclose(result.tvalues, z, rtol=1e-8)
    np.testing.assert_allclose(result.pvalues, 2 * norm.sf(np.abs(z)), rtol=1e-6)
    reach = np.diff(result.conf_int(alpha=0.1), axis=1)[:, 0] / 2
    np.testing.assert_allclose(reach, norm.ppf(0.95) * errors, rtol=1e-8)
    np.testing.assert_allclose(np.diag(result.cov_params()), errors**2, rtol=1e-8)


def test_without_pandas_there_are_mappings(
    table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_pandas = GlmResult(table)
    series, ends, cov = with_pandas.params, with_pandas.conf_int(), with_pandas.cov_params()
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = GlmResult(table)
    assert result.params == series.to_dict()
    assert result.conf_int()["age"] == tuple(ends.loc["age"])
    assert result.cov_params()["age"] == cov.loc["age"].to_dict()
    assert result.summary() == with_pandas.summary()


def test_the_summary_ends_with_ratios_and_their_intervals(table: dict[str, Any]) -> None:
    lines = GlmResult(table).summary().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("odds ratio"))
    terms = [term for term in table["terms"] if term != "Intercept"]
    for term, line in zip(terms, lines[start + 1 :], strict=False):
        at = table["terms"].index(term)
        ends = np.exp([table["coef"][at], *table["ci95"][at]])
        assert line.split()[-3:] == [f"{one:#.4g}" for one in ends], line
    assert lines[start + 1 + len(terms)] == ""


def test_the_summary_has_a_line_for_each_term(table: dict[str, Any]) -> None:
    lines = GlmResult(table).summary().splitlines()
    assert "\n".join(lines).isascii()
    age, _of_ratios = (line.split() for line in lines if line.startswith("age "))
    assert age == ["age", "0.0266", "0.0053", "5.006", "0.000", "0.016", "0.037"]
    rules = [line for line in lines if set(line) == {"="}]
    assert len({len(rule) for rule in rules}) == 1
    assert max(map(len, lines[: lines.index(rules[-1])])) <= len(rules[0])
    facts = "\n".join(lines)
    for fact in (
        r"Observations: +900",
        r"Events: +338",
        r"AIC: +1126\.27",
        r"Outcome: +died",
        r"smoker: chi2\(2\) = 15\.2\d, p < 0\.001",
        "with 4 sites errors clustered by site .* are too small",
    ):
        assert re.search(fact, facts), fact


def test_texts_for_papers(table: dict[str, Any]) -> None:
    result = GlmResult(table)
    markdown = result.to_markdown().splitlines()
    assert len(markdown) == 2 + 7
    assert {line.count(" | ") for line in markdown} == {9}
    assert markdown[3].startswith("| sex\\[T.M\\] | 0.5363 | 0.1448 | 3.704 | \\<0.001 |")
    latex = result.to_latex()
    assert r"sex[T.M] & 0.5363 & 0.1448 & 3.704 & \textless{}0.001 & 0.2526" in latex
    assert r"95 \% low" in latex
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [row["term"] for row in rows] == table["terms"]
    assert [float(row["coef"]) for row in rows] == table["coef"]
    ratios = [float(row["odds ratio high"]) for row in rows]
    np.testing.assert_allclose(ratios, np.exp(table["ci95"])[:, 1], rtol=1e-12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.25, "0.2500"),
        (-1.3, "-1.300"),
        (12.30004, "12.30"),
        (1234.5, "1234"),
        (0.00012, "0.0001200"),
        (1.2e-7, "1.200e-07"),
        (2.5e8, "2.5e+08"),
        (365.0, "365"),
        (0.0, "0"),
        (np.inf, "-"),
    ],
)
def test_numbers_in_four_digits_keep_their_last_zeros(value: float, shown: str) -> None:
    assert short(value) == shown
    assert markdown_rows(["a", "b"], [["x", short(value)]]).splitlines()[-1] == f"| x | {shown} |"


def test_marks_of_latex_and_markdown_in_names_are_escaped() -> None:
    columns = patients(100)
    columns["a_b & 5%|c"] = columns["bmi"]
    result = GlmResult(fitted(Glm(formula="died ~ Q('a_b & 5%|c')"), columns, columns["site"]))
    assert r'Q("a\_b \& 5\%|c") & ' in result.to_latex()
    assert r'| Q("a\_b & 5%\|c") |' in result.to_markdown()


def test_errors_that_do_not_exist_are_blank() -> None:
    columns = patients(200)
    table = fitted(Glm(formula="died ~ age + C(site)"), columns, columns["site"])
    result = GlmResult(table, "cluster")
    assert np.isnan(result.bse["Intercept"])
    assert "nan" not in result.summary() + result.to_csv() + result.to_markdown()
    with pytest.raises(AnalysisError, match="'HC3': the table has nonrobust, HC0, cluster"):
        GlmResult(table, "HC3")
    with pytest.raises(AnalysisError, match="alpha 95"):
        result.conf_int(95)
