"""scikit-learn pipelines of regression tables: what they make of raw rows is the model's mean."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from privet.analyses.glm_result import GlmResult
from support.analysis_sites import fitted
from support.patients_of_sites import patients

OUTCOMES = {"binomial": "died", "poisson": "visits", "gaussian": "pressure"}
TERMS = (
    "sex + C(smoker, ref='never') + age + log(crp)",
    "sex*smoker + I(age ** 2) + sqrt(bmi) + log1p(crp)",
    "rcs(age, 35, 50, 65, 75) * sex + bmi",
    "0 + smoker + smoker:age + sex:rcs(bmi, 20, 25, 30):log(crp) + age:log(age)",
    "C(ward, ref='2') * age + sex",
)


def of(family: str, terms: str, **keys: Any) -> GlmResult:
    columns = table_rows(600, 1)
    glm = Glm(family, f"{OUTCOMES[family]} ~ {terms}", **keys)
    return GlmResult(json.loads(json.dumps(fitted(glm, columns, columns["site"]))))


def table_rows(count: int, seed: int) -> dict[str, Any]:
    rows = patients(count, seed=seed)
    return {**rows, "ward": np.random.default_rng(seed).choice([1.0, 2.0, 10.0], count)}


def predicted(pipeline: Any, family: str, rows: pd.DataFrame) -> Any:
    if family == "binomial":
        return pipeline.predict_proba(rows)[:, 1]
    return pipeline.predict(rows)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("family", OUTCOMES)
def test_a_pipeline_predicts_the_mean_of_raw_rows(family: str, terms: str) -> None:
    """Far outside of the knots too, where splines are lines."""
    result = of(family, terms, exposure_column="years", offset_column="log_dose")
    rows = pd.DataFrame(table_rows(60, 2)).drop(columns=OUTCOMES[family])
    rows["age"] = np.linspace(20, 110, len(rows))
    mean = np.array(result.predict(rows)["mean"])
    np.testing.assert_allclose(predicted(result.to_sklearn(), family, rows), mean, rtol=1e-9)


def test_classes_are_those_of_the_outcome() -> None:
    columns = table_rows(400, 1)
    columns["end"] = np.where(columns["died"] > 0, "dead", "alive").tolist()
    glm = Glm("binomial", "end ~ age + sex")
    result = GlmResult(fitted(glm, columns, columns["site"]))
    pipeline, rows = result.to_sklearn(), pd.DataFrame(columns)
    assert pipeline.classes_.tolist() == ["alive", "dead"]
    expected = np.where(np.array(result.predict(rows)["mean"]) > 0.5, "dead", "alive")
    assert (pipeline.predict(rows) == expected).all()


def test_what_the_model_does_not_know_is_refused() -> None:
    pipeline = of("binomial", "sex + age").to_sklearn()
    rows = pd.DataFrame({"sex": ["F", "X"], "age": [40.0, 50.0]})
    with pytest.raises(ValueError, match="unknown categories"):
        pipeline.predict(rows)
    with pytest.raises(ValueError, match="NaN"):
        pipeline.predict(rows.assign(sex="F", age=[40.0, np.nan]))


def test_an_intercept_alone_is_no_pipeline() -> None:
    with pytest.raises(AnalysisError, match="the intercept alone"):
        of("gaussian", "1").to_sklearn()
