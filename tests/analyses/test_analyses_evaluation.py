"""LinearEvaluation by sums against scikit-learn and a pooled fit of the slope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from privet.analyses.evaluation import LinearEvaluation
from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from support.analysis_sites import fitted
from support.patients_of_sites import patients
from support.pooled import pooled

FORMULA = "died ~ age + bmi + sex"


def predictor(columns: dict[str, Any], coef: list[float]) -> Any:
    male = (np.array(columns["sex"]) == "M") * 1.0
    ones = np.ones(len(male))
    return np.stack([ones, male, columns["age"], columns["bmi"]], axis=1) @ coef


@pytest.mark.parametrize("bins", [16, 256, 4096])
def test_other_rows_are_evaluated_as_scikit_learn_does(bins: int) -> None:
    train, test = patients(500, seed=1), patients(600, seed=2)
    coef = fitted(Glm(formula=FORMULA), train, train["site"])["coef"]
    evaluation = LinearEvaluation(FORMULA, coefficients=tuple(coef), bins=bins, apparent=False)
    table = fitted(evaluation, test, test["site"])
    eta = predictor(test, coef)
    probability = 1 / (1 + np.exp(-eta))
    assert abs(table["auc"] - roc_auc_score(test["died"], eta)) <= table["auc_bound"]
    assert table["auc_bound"] < {16: 0.1, 256: 0.005, 4096: 4e-4}[bins]
    assert table["brier"] == pytest.approx(brier_score_loss(test["died"], probability), rel=1e-9)
    line = pooled("binomial", np.stack([np.ones(600), eta], axis=1), test["died"], test["site"])
    found = [table["calibration_intercept"], table["calibration_slope"]]
    np.testing.assert_allclose(found, line.coef.astype(float), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(table["calibration_se"], line.errors("nonrobust"), rtol=1e-7)
    groups = table["calibration"]
    assert sum(group["n"] for group in groups) == table["n"] == 600
    assert sum(group["events"] for group in groups) == table["events"] == test["died"].sum()
    total = sum(group["n"] * group["predicted"] for group in groups)
    assert total == pytest.approx(probability.sum(), rel=1e-9)
    shares = [group["predicted"] for group in groups]
    assert shares == sorted(shares)
    assert table["notes"] == []
    assert table["rounds"] <= 8


def test_the_rows_that_were_fitted_have_slope_1_and_are_named_apparent() -> None:
    columns = patients(400)
    coef = fitted(Glm(formula=FORMULA), columns, columns["site"])["coef"]
    table = fitted(LinearEvaluation(FORMULA, coefficients=tuple(coef)), columns, columns["site"])
    assert table["calibration_slope"] == pytest.approx(1.0, abs=1e-8)
    assert table["calibration_intercept"] == pytest.approx(0.0, abs=1e-8)
    assert table["apparent"]
    assert "apparent" in table["notes"][0]


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        (LinearEvaluation(FORMULA, coefficients=(1.0,)), "1 for 4 columns"),
        (LinearEvaluation("died ~ age", coefficients=(1.0, 0.0)), "the same for every row"),
        (LinearEvaluation("died ~ age", coefficients=(0.0, 1.0), bins=1), "bins 1"),
        (LinearEvaluation("alive ~ age", coefficients=(0.0, 1.0)), "outcome is the same"),
    ],
)
def test_what_cannot_be_evaluated_is_named(evaluation: LinearEvaluation, words: str) -> None:
    columns = patients(100)
    columns["alive"] = np.ones(100)
    with pytest.raises(AnalysisError, match=words):
        fitted(evaluation, columns, columns["site"])


@pytest.mark.parametrize("bins", [2, 256])
def test_outcomes_that_are_separated_have_no_slope(bins: int) -> None:
    columns = patients(100)
    columns["old"] = (columns["age"] > 60) * 1.0
    evaluation = LinearEvaluation("old ~ age", coefficients=(-50.0, 1.0), bins=bins)
    table = fitted(evaluation, columns, columns["site"])
    assert table["calibration_slope"] is None
    assert table["auc"] + table["auc_bound"] >= 1.0
    assert "separates the outcomes" in table["notes"][-1]
