"""Predictions of new rows by a regression table, against closed forms on the pooled design."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_result import CoxResult
from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from privet.analyses.glm_result import GlmResult
from privet.analyses.pooled_cox import PooledCox
from support.analysis_sites import fitted, table_of
from support.patients_of_sites import patients
from support.pooled import means, pooled

MEANS = {"binomial": lambda eta: 1 / (1 + np.exp(-eta)), "poisson": np.exp, "gaussian": np.asarray}


def saved(table: dict[str, Any]) -> dict[str, Any]:
    """A table as it comes out of a file."""
    found: dict[str, Any] = json.loads(json.dumps(table, allow_nan=False))
    return found


def design(columns: dict[str, Any]) -> Any:
    """1, sex M, smoker former and current (never is the reference), age, log crp, age x bmi."""
    sex, smoker = np.array(columns["sex"]), np.array(columns["smoker"])
    parts = [np.ones(len(sex)), sex == "M", smoker == "current", smoker == "former"]
    parts += [columns["age"], np.log(columns["crp"]), columns["age"] * columns["bmi"]]
    return np.stack(parts, axis=1).astype(float)


@pytest.mark.parametrize(
    ("family", "outcome"), [("binomial", "died"), ("poisson", "visits"), ("gaussian", "pressure")]
)
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_means_have_the_intervals_of_the_pooled_covariance(
    family: str, outcome: str, alpha: float
) -> None:
    columns, rows = patients(600, seed=1), patients(40, seed=2)
    formula = f"{outcome} ~ sex + C(smoker, ref='never') + age + log(crp) + age:bmi"
    glm = Glm(family, formula, exposure_column="years", offset_column="log_dose")
    table = saved(fitted(glm, columns, columns["site"]))
    offset = np.log(columns["years"]) + columns["log_dose"]
    whole = pooled(family, design(columns), columns[outcome], columns["site"], offset)
    new, cov = design(rows), whole.cov["nonrobust"].astype(float)
    eta = new @ whole.coef.astype(float) + np.log(rows["years"]) + rows["log_dose"]
    reach = norm.ppf(1 - alpha / 2) * np.sqrt(np.einsum("ij,jk,ik->i", new, cov, new))
    del rows[outcome]
    found = GlmResult(table).predict(rows, alpha)
    g = MEANS[family]
    close = {"rtol": 1e-7, "atol": 1e-9}
    np.testing.assert_allclose(found["linear_predictor"], eta, **close)
    np.testing.assert_allclose(found["mean"], means(family, eta)[0], **close)
    np.testing.assert_allclose(found["mean_ci_lower"], g(eta - reach), **close)
    np.testing.assert_allclose(found["mean_ci_upper"], g(eta + reach), **close)


def test_the_errors_of_the_result_make_the_interval() -> None:
    columns = patients(600)
    table = saved(fitted(Glm(formula="died ~ age + bmi"), columns, columns["site"]))
    rows = pd.DataFrame({"age": [40.0, 70.0], "bmi": [22.0, 30.0]}, index=["a", "b"])
    new = np.array([[1.0, 40.0, 22.0], [1.0, 70.0, 30.0]])
    found = GlmResult(table, "HC0").predict(rows)
    assert list(found.index) == ["a", "b"]
    cov = np.array(table["cov_robust"]["HC0"])
    eta = new @ table["coef"]
    upper = eta + norm.ppf(0.975) * np.sqrt(np.diag(new @ cov @ new.T))
    np.testing.assert_allclose(found["mean_ci_upper"], 1 / (1 + np.exp(-upper)), rtol=1e-10)


@pytest.mark.parametrize("formula", ["age + sex", "died ~ age + sex", ""])
@pytest.mark.parametrize("baseline", ["site", "pooled"])
def test_hazards_are_relative_to_a_row_of_zeros(formula: str, baseline: str) -> None:
    columns = {
        name: values
        for name, values in table_of("cox-1.csv").items()
        if name in ("site", "days", "died", "age", "sex")
    }
    names = {"time_column": "days", "event_column": "died", "id_column": "site"}
    kind: Any = CoxAnalysis if baseline == "site" else PooledCox
    analysis = kind(**names, formula=formula).over(tuple(columns))
    table = saved(fitted(analysis, columns, columns["site"]))
    new = {"age": [0.0, 50.0, 51.0], "sex": ["F", "M", "M"]}
    order = {"age": [0.0, 50.0, 51.0], "sex[T.M]": [0.0, 1.0, 1.0]}
    matrix = np.stack([order[term] for term in table["terms"]], axis=1)
    found = CoxResult(table).predict_partial_hazard(new)
    eta = matrix @ table["coef"]
    error = np.sqrt(np.diag(matrix @ np.array(table["cov"]) @ matrix.T))
    np.testing.assert_allclose(found["partial_hazard"], np.exp(eta), rtol=1e-12)
    lower, upper = (np.exp(eta + sign * norm.ppf(0.975) * error) for sign in (-1, 1))
    np.testing.assert_allclose(found["partial_hazard_ci_lower"], lower, rtol=1e-12)
    np.testing.assert_allclose(found["partial_hazard_ci_upper"], upper, rtol=1e-12)
    assert found["partial_hazard"][0] == found["partial_hazard_ci_upper"][0] == 1.0
    ratio = found["partial_hazard"][2] / found["partial_hazard"][1]
    assert ratio == pytest.approx(table["ratio"][table["terms"].index("age")])


@pytest.fixture(scope="module")
def result() -> GlmResult:
    columns = patients(400)
    formula = "died ~ C(year) + log(crp) + smoker"
    columns["year"] = 2000.0 + columns["year"] % 3
    glm = Glm(formula=formula, exposure_column="years")
    return GlmResult(saved(fitted(glm, columns, columns["site"])))


ROW = {"year": [2001.0], "crp": [1.0], "smoker": ["never"], "years": [2.0]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"smoker": ["pipe"]}, "'smoker': 'pipe' is none of .* current, former, never; with unk"),
        ({"year": [1999.0]}, "'year': '1999' is none of the model's categories"),
        ({"crp": [0.0]}, r"log\(crp\) takes values above 0, and column 'crp' has others"),
        ({"years": [-1.0]}, r"log\(years\) takes values above 0"),
        ({"crp": ["high"]}, "'crp' holds texts"),
        ({"years": None, "crp": None}, "no column crp, years"),
        ({"crp": [np.inf]}, "'crp' holds infinite values"),
    ],
)
def test_what_cannot_be_predicted_is_named(
    result: GlmResult, change: dict[str, Any], words: str
) -> None:
    rows = {name: values for name, values in (ROW | change).items() if values}
    with pytest.raises(AnalysisError, match=words):
        result.predict(rows)
    result.predict(ROW)


def test_missing_values_have_no_prediction(result: GlmResult) -> None:
    rows = {name: values * 5 for name, values in ROW.items()}
    rows |= {"smoker": ["never", "pipe", None, "never", "former"]}
    rows |= {"years": [2.0, 2.0, 2.0, np.nan, 2.0]}
    with pytest.raises(AnalysisError, match="pipe"):
        result.predict(rows)
    found = result.predict(rows, unknown="missing")
    assert np.isnan(found["mean"]).tolist() == [False, True, True, True, False]
    assert found["mean"][0] == result.predict(ROW)["mean"][0]
    with pytest.raises(AnalysisError, match="unknown = 'zero': refuse or missing"):
        result.predict(ROW, unknown="zero")
    with pytest.raises(AnalysisError, match="alpha 95"):
        result.predict(ROW, alpha=95)


def test_without_pandas_there_are_mappings(
    result: GlmResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result.predict(ROW).to_dict()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert result.predict(ROW) == expected
