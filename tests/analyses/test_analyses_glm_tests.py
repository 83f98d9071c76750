"""Tests of factors, of nested models and of sites, against their definitions and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from privet.analyses.frame import AnalysisError
from privet.analyses.glm import Glm
from privet.analyses.glm_tests import likelihood_ratio, score_parts
from support.analysis_sites import fitted
from support.patients_of_sites import patients
from support.pooled import pooled


def matrix(columns: dict[str, Any], *names: str) -> Any:
    made = {name: columns[name] for name in ("age", "bmi", "crp")}
    made["male"] = (np.array(columns["sex"]) == "M") * 1.0
    return np.stack([np.ones(len(made["age"])), *(made[name] for name in names)], axis=1)


@pytest.mark.parametrize("kind", ["nonrobust", "HC0", "cluster"])
def test_a_factor_is_tested_jointly_by_every_kind_of_error(kind: str) -> None:
    columns = patients(400)
    table = fitted(Glm(formula="died ~ age + smoker"), columns, columns["site"])
    cov = table["cov"] if kind == "nonrobust" else table["cov_robust"][kind]
    part = np.array(cov)[np.ix_([1, 2], [1, 2])]
    expected = np.array(table["coef"])[1:3] @ np.linalg.inv(part) @ np.array(table["coef"])[1:3]
    found = table["tests"]["smoker"][kind]
    assert found["chi2"] == pytest.approx(expected, rel=1e-9)
    assert found["df"] == 2
    assert found["p"] == pytest.approx(chi2.sf(expected, 2), rel=1e-8)


def test_clustered_errors_test_no_more_columns_than_sites_less_one() -> None:
    columns = patients(400, sites=2)
    table = fitted(Glm(formula="died ~ age + smoker"), columns, columns["site"])
    assert list(table["tests"]["smoker"]) == ["nonrobust", "HC0"]
    assert "with 2 sites errors clustered" in table["notes"][-1]


def test_the_likelihood_ratio_of_nested_models() -> None:
    columns = patients(400)
    smaller, larger = (
        fitted(Glm(formula=formula), columns, columns["site"])
        for formula in ("died ~ age", "died ~ rcs(age, 30, 50, 70) + sex")
    )
    few = pooled("binomial", matrix(columns, "age"), columns["died"], columns["site"])
    test = likelihood_ratio(smaller, larger)
    assert test["chi2"] == pytest.approx(2 * (larger["loglik"] - few.loglik), rel=1e-8)
    assert test["df"] == 2
    assert test["p"] == pytest.approx(chi2.sf(test["chi2"], 2))


def test_likelihoods_of_other_models_are_not_compared() -> None:
    columns = patients(200)
    table = fitted(Glm(formula="died ~ age"), columns, columns["site"])
    other = fitted(Glm(formula="died ~ bmi + sex"), columns, columns["site"])
    with pytest.raises(AnalysisError, match=r"not nested \(age\)"):
        likelihood_ratio(table, other)
    with pytest.raises(AnalysisError, match="not nested"):
        likelihood_ratio(table, table)
    with pytest.raises(AnalysisError, match="differ in n"):
        likelihood_ratio(table, {**other, "n": 199})
    with pytest.raises(AnalysisError, match="different outcomes"):
        likelihood_ratio(table, {**other, "formula": "rare ~ age + sex"})


def test_penalised_likelihoods_are_compared_with_the_larger_penalty() -> None:
    # The smaller model's likelihood is maximised with log det I of the larger: brute force.
    from scipy.optimize import minimize

    columns = patients(60)
    full = matrix(columns, "male", "age")

    def penalised(coef: Any, places: list[int]) -> Any:
        eta = full[:, places] @ coef
        mean = 1 / (1 + np.exp(-eta))
        information = (full * (mean * (1 - mean))[:, None]).T @ full
        loglik = columns["died"] @ eta - np.logaddexp(0, eta).sum()
        return -loglik - np.linalg.slogdet(information)[1] / 2

    best = [
        -minimize(penalised, np.zeros(len(places)), (places,), tol=1e-12).fun
        for places in ([0, 2], [0, 1, 2])
    ]
    larger = fitted(Glm(formula="died ~ age + sex", firth=True), columns, columns["site"])
    within = Glm(formula="died ~ age", firth=True, within="died ~ age + sex")
    smaller = fitted(within, columns, columns["site"])
    assert smaller["terms"] == ["Intercept", "age"]
    assert smaller["penalised_loglik"] == pytest.approx(best[0], rel=1e-8)
    assert larger["penalised_loglik"] == pytest.approx(best[1], rel=1e-8)
    test = likelihood_ratio(smaller, larger)
    assert test["chi2"] == pytest.approx(2 * (best[1] - best[0]), rel=1e-5)
    alone = fitted(Glm(formula="died ~ age", firth=True), columns, columns["site"])
    with pytest.raises(AnalysisError, match="fit the smaller model within='died ~ age"):
        likelihood_ratio(alone, larger)


def test_site_tests_are_uniform_where_sites_share_the_model() -> None:
    # Of 150 draws; Kolmogorov and Smirnov's p is below 1e-3 once in a thousand seeds, this is one.
    rng = np.random.default_rng(7)
    values = []
    for _ in range(150):
        design = np.stack([np.ones(300), rng.normal(size=300)], axis=1)
        outcome = (rng.random(300) < 1 / (1 + np.exp(-design @ [0.3, 0.5]))) * 1.0
        fit = pooled("binomial", design, outcome, ["a"] * 300).coef.astype(float)
        mean = 1 / (1 + np.exp(-design @ fit))
        weighted = design * (mean * (1 - mean))[:, None]
        score = design[:100].T @ (outcome - mean)[:100]
        parts = weighted[:100].T @ design[:100], weighted.T @ design
        squares, spread = score_parts(score, *parts)
        values.append(chi2.sf((squares / spread).sum(), len(spread)))
    assert kstest(values, "uniform").pvalue > 1e-3
