"""Deployed nodes with tables of their own: survival with secure sums is that of the pooled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.analyses import CoxResult, KaplanMeierResult
from support.analysis_sites import PATIENTS, TABLES, own_tables
from support.paths import ROOT
from support.processes import Deployment
from support.tls import make_certificates

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

WORKED = json.loads((TABLES / "cox-1.json").read_text())
SCHEMA = PATIENTS + "days = [0, 3000]\n"


def require_worked(table: dict[str, Any], ties: str) -> None:
    right = WORKED[ties]
    order = [table["short_terms"].index(term) for term in WORKED["terms"]]
    error = np.abs(np.array(table["coef"])[order] - right["coef"])
    assert (error <= 1e-8 * np.maximum(np.abs(right["coef"]), right["se"])).all()
    errors = np.array(table["se"]["nonrobust"])[order]
    np.testing.assert_allclose(errors, right["se"], rtol=1e-8)


def test_deployed_survival_by_secure_sums_is_that_of_the_pooled_rows(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    certificates = make_certificates(tmp_path / "tls")
    shared = {"num-agents": 4, "output-dir": str(tmp_path / "runs"), "secure-sum": True}
    shared |= {"schema": str(tmp_path / "schema.toml"), "time-column": "days"}
    shared |= {"event-column": "died"}
    formula = {"formula": "age + bmi + crp + sex + smoker"}
    with Deployment(tmp_path, certificates) as deployment:
        deployment.start_superlink()
        for site in own_tables(tmp_path, schema=SCHEMA, name="cox-1", pooled_baseline=True):
            name = str(site["agent"])
            deployment.start_node(name, site, key=deployment.register(name))
        deployment.wait_for_nodes()

        def table(**config: Any) -> dict[str, Any]:
            run = deployment.submit(ROOT, {**shared, **config})
            verdict = run.wait()
            assert verdict.completed, verdict.details
            found = json.loads((tmp_path / "runs" / run.run_id / "table.json").read_text())
            assert found["complete"]
            assert found["site_names"] == ["hill", "north", "south", "west"]
            return dict(found)

        cox = {ties: table(algorithm="cox", ties=ties, **formula) for ties in ("efron", "breslow")}
        pooled = table(algorithm="cox", baseline="pooled", **formula)
        curves = table(algorithm="kaplan-meier", **{"group-column": "sex"})
    for ties, found in cox.items():
        require_worked(found, ties)
    right = WORKED["kaplan_meier"]
    curve = KaplanMeierResult(curves)[""]
    np.testing.assert_allclose(curve.survival_at(right["days"]), right["survival"], atol=1e-12)
    assert curve.median_survival_time_ == right["median"]
    assert curves["logrank"]["chi2"] == pytest.approx(WORKED["logrank_sex"]["chi2"], rel=1e-12)
    patient = {"age": [50], "bmi": [25], "crp": [3], "sex": ["F"], "smoker": ["never"]}
    survival = CoxResult(pooled).predict_survival_function(patient, [0.0, 365.0])
    assert survival.iloc[0, 0] == 1.0
    assert 0.0 < survival.iloc[1, 0] < 1.0
