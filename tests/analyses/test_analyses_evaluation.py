"""Evaluation by sums against scikit-learn and a pooled fit of the slope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from privet.analyses.analysis import Analysis
from privet.analyses.evaluation import HELD_OUT, EvaluatedGlm
from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from privet.kernel import Told
from support.analysis_sites import agreed, fitted, frames_by
from support.patients_of_sites import patients
from support.pooled import pooled

FORMULA = "died ~ age + bmi + sex"
MODEL = Glm(formula=FORMULA)


def predictor(columns: dict[str, Any], coef: list[float]) -> Any:
    male = (np.array(columns["sex"]) == "M") * 1.0
    ones = np.ones(len(male))
    return np.stack([ones, male, columns["age"], columns["bmi"]], axis=1) @ coef


def of_both(analysis: Analysis[Any], columns: dict[str, Any], rounded: bool = True) -> Any:
    return fitted(analysis, columns, columns["site"], rounded)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("bins", [16, 256, 4096])
def test_rows_held_out_are_evaluated_as_scikit_learn_does(bins: int, rounded: bool) -> None:
    train, test = patients(500, seed=1), patients(600, seed=2)
    both = {name: np.concatenate([train[name], test[name]]) for name in train}
    both[HELD_OUT] = np.repeat([0.0, 1.0], [500, 600])
    whole = of_both(EvaluatedGlm(MODEL, hold_out=True, bins=bins), both, rounded)
    alone = fitted(MODEL, train, train["site"], rounded)
    assert whole["coef"] == pytest.approx(alone["coef"], rel=1e-12)
    assert whole["n"] == 500
    table, eta = whole["evaluation"], predictor(test, whole["coef"])
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
    assert not table["apparent"]
    assert whole["rounds"] <= alone["rounds"] + 8


@pytest.mark.parametrize("heavy", [1.0, 1e6])
def test_weights_and_offsets_count_as_in_scikit_learn(heavy: float) -> None:
    columns = patients(800, seed=3)
    rng = np.random.default_rng(4)
    columns["w"] = rng.uniform(0.2, 5.0, 800) * heavy
    columns["shift"] = rng.normal(0.0, 0.5, 800)
    model = Glm(formula=FORMULA, offset_column="shift", weight_column="w")
    whole = of_both(EvaluatedGlm(model, bins=4096), columns)
    eta = predictor(columns, whole["coef"]) + columns["shift"]
    table, weights = whole["evaluation"], columns["w"]
    auc = roc_auc_score(columns["died"], eta, sample_weight=weights)
    assert abs(table["auc"] - auc) <= table["auc_bound"] < 1e-3
    assert abs(roc_auc_score(columns["died"], eta) - auc) > table["auc_bound"]
    brier = brier_score_loss(columns["died"], 1 / (1 + np.exp(-eta)), sample_weight=weights)
    assert table["brier"] == pytest.approx(brier, rel=1e-9)
    lines = np.stack([np.ones(800), eta], axis=1)
    line = pooled("binomial", lines, columns["died"], columns["site"], weights=weights)
    found = [table["calibration_intercept"], table["calibration_slope"]]
    np.testing.assert_allclose(found, line.coef.astype(float), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(table["calibration_se"], line.errors("nonrobust"), rtol=1e-6)
    assert sum(group["n"] for group in table["calibration"]) == pytest.approx(weights.sum())


@pytest.mark.parametrize("firth", [False, True])
def test_the_rows_that_were_fitted_have_slope_1_and_are_named_apparent(firth: bool) -> None:
    columns = patients(400)
    whole = of_both(EvaluatedGlm(Glm(formula=FORMULA, firth=firth)), columns)
    table = whole["evaluation"]
    assert table["apparent"]
    if not firth:
        assert table["calibration_slope"] == pytest.approx(1.0, abs=1e-8)
        assert table["calibration_intercept"] == pytest.approx(0.0, abs=1e-8)
    else:  # shrunk towards 0
        assert 1.0 < table["calibration_slope"] < 1.2


def test_a_fit_that_cannot_be_evaluated_has_its_table_and_says_why() -> None:
    columns = patients(200)
    columns[HELD_OUT] = (np.asarray(columns["died"]) == 1) * (np.arange(200) % 4 == 0) * 1.0
    whole = of_both(EvaluatedGlm(MODEL, hold_out=True), columns)
    assert whole["evaluation"] is None
    assert whole["notes"][-1] == "no evaluation: the outcome is the same in every row evaluated"
    rest = {name: np.asarray(one)[columns[HELD_OUT] == 0] for name, one in columns.items()}
    assert whole["coef"] == pytest.approx(fitted(MODEL, rest, rest["site"])["coef"], rel=1e-9)
    flat = of_both(EvaluatedGlm(Glm(formula="died ~ 1")), columns)
    assert "the same for every row" in flat["notes"][-1]


@pytest.mark.parametrize("bins", [2, 256])
def test_outcomes_that_are_separated_have_no_slope(bins: int) -> None:
    columns = patients(100)
    columns["old"] = (columns["age"] > 60) * 1.0
    model = Glm(formula="old ~ age", firth=True)
    whole = of_both(EvaluatedGlm(model, bins=bins), columns)
    table = whole["evaluation"]
    assert table["calibration_slope"] is None
    assert table["auc"] + table["auc_bound"] >= 1.0
    assert "separates the outcomes" in whole["notes"][-1]


def test_other_families_and_small_cells_are_refused() -> None:
    columns = patients(100)
    with pytest.raises(AnalysisError, match="evaluate: of family = binomial, not poisson"):
        EvaluatedGlm(Glm("poisson", FORMULA)).columns  # noqa: B018
    analysis = EvaluatedGlm(MODEL)
    frames = frames_by(columns)
    sums = analysis.sums(frames[0], agreed(analysis, frames))
    with pytest.raises(AnalysisError, match="secure sums") as caught:
        analysis.guarded(sums, 5)
    assert caught.value.told is Told.SMALL_CELL
