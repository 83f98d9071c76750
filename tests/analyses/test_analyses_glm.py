"""Generalised linear models by sums of sites: the worked tables, with rounded sums and without."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from privet.analyses.glm import Glm
from support.analysis_sites import TABLES, fitted, table_of

WORKED = {
    "glm-binomial-1": Glm(formula="died ~ age + sex + bmi + crp + smoker"),
    "glm-gaussian-1": Glm(family="gaussian", formula="pressure ~ age * sex + bmi"),
    "glm-poisson-1": Glm(
        family="poisson", formula="visits ~ age + sex + smoker", exposure_column="years"
    ),
}
NUMBERS = ("loglik", "null_loglik", "deviance", "scale", "aic")


def worked(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", WORKED)
def test_the_worked_tables_are_met(name: str, rounded: bool) -> None:
    columns, expected = table_of(f"{name}.csv"), worked(name)
    table = fitted(WORKED[name], columns, columns["site"], rounded)
    for key in ("format", "kind", "family", "link", "formula", "offset", "n", "terms"):
        assert table[key] == expected[key], key
    size = np.maximum(np.abs(expected["coef"]), expected["se"]["nonrobust"])
    assert np.abs(np.subtract(table["coef"], expected["coef"]) / size).max() < 1e-10
    assert list(table["se"]) == ["nonrobust", "HC0", "cluster"]
    for kind, errors in expected["se"].items():
        np.testing.assert_allclose(table["se"][kind], errors, rtol=1e-8)
    np.testing.assert_allclose(table["cov"], expected["cov"], rtol=1e-8, atol=1e-12)
    for key in NUMBERS:
        assert table[key] == pytest.approx(expected[key], rel=1e-11), key
    np.testing.assert_allclose(table["z"], expected["z"], rtol=1e-8)
    np.testing.assert_allclose(table["p"], expected["p"], rtol=1e-7)
    np.testing.assert_allclose(table["ci95"], expected["ci95"], rtol=1e-8)
    assert 4 <= table["rounds"] <= 8
    json.dumps(table, allow_nan=False)
