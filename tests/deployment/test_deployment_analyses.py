"""Deployed nodes with tables of their own: analyses equal those of the pooled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.analysis_sites import PATIENTS, TABLES, own_tables
from support.paths import ROOT
from support.pooled import pooled
from support.processes import Deployment
from support.tls import make_certificates

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

SITES = ("hill", "north", "south", "west")
SCHEMA = PATIENTS + "days = [0, 3000]\n"


def test_deployed_analyses_are_those_of_the_pooled_rows(tmp_path: Path) -> None:
    """The worked tables, whose answers are other libraries' on the pooled rows, over TLS.

    Nodes have the rules of a table of their own but for `min-cell`: a site has one survivor among
    its former smokers, and curves are exact by days.
    """
    (tmp_path / "tls").mkdir()
    certificates = make_certificates(tmp_path / "tls")
    shared = {"num-agents": 4, "output-dir": str(tmp_path / "runs")}
    schema = {"schema": str(tmp_path / "schema.toml")}
    glm = {"algorithm": "glm", "formula": FORMULA}
    with Deployment(tmp_path, certificates) as deployment:
        deployment.start_superlink()
        for site in own_tables(tmp_path, schema=SCHEMA, name="cox-1", min_cell=1):
            name = str(site["agent"])
            deployment.start_node(name, site, key=deployment.register(name))
        deployment.wait_for_nodes()

        def table(sites: tuple[str, ...] = SITES, **config: Any) -> dict[str, Any]:
            asked = {key.replace("_", "-"): value for key, value in config.items()}
            run = deployment.submit(ROOT, {**shared, **schema, **asked})
            verdict = run.wait()
            assert verdict.completed, verdict.details
            found = json.loads((tmp_path / "runs" / run.run_id / "table.json").read_text())
            assert found["complete"]
            assert found["site_names"] == list(sites)
            return found

        clear, masked = table(**glm), table(**glm, secure_sum=True)
        times = {"time_column": "days", "event_column": "died"}
        cox = table(algorithm="cox", formula="age + bmi + crp + sex + smoker", **times)
        described = table(algorithm="describe")
        described_masked = table(algorithm="describe", secure_sum=True)
        deployment.kill_node("west")
        three = table(SITES[:3], algorithm="describe", secure_sum=True, num_agents=3)
    known = json.loads((TABLES / "cox-1.json").read_text())
    require_fitted(clear)
    require_fitted(masked)
    efron = known["efron"]
    names = [cox["short_terms"].index(term) for term in known["terms"]]
    near = 1e-8 * np.maximum(np.abs(efron["coef"]), efron["se"])
    assert (abs(np.array(cox["coef"])[names] - efron["coef"]) <= near).all()
    rows = pd.read_csv(TABLES / "cox-1.csv")
    require_described(described, rows, 1e-12)
    require_described(described_masked, rows, 1e-9)
    require_described(three, rows[rows["site"] != "west"], 1e-9)


def test_a_site_that_goes_and_comes_back_is_in_the_table(tmp_path: Path) -> None:
    """Killed after round 1 and started again once the others have played a round without it."""
    (tmp_path / "tls").mkdir()
    with Deployment(tmp_path, make_certificates(tmp_path / "tls")) as deployment:
        deployment.start_superlink()
        for site in own_tables(tmp_path, schema=SCHEMA, name="cox-1", min_cell=1):
            name = str(site["agent"])
            deployment.start_node(name, site, key=deployment.register(name))
        deployment.wait_for_nodes()
        asked: dict[str, Any] = {"algorithm": "glm", "formula": FORMULA, "num-agents": 4}
        asked |= {"schema": str(tmp_path / "schema.toml"), "output-dir": str(tmp_path / "runs")}
        run = deployment.submit(ROOT, {**asked, "round-timeout": 120.0})
        run.wait_for_line(r"round 1/\d+ \| 4 agents")
        deployment.kill_node("west")
        run.wait_for_line(r"round \d+/\d+ \| 3 agents")
        deployment.restart_node("west")
        verdict = run.wait()
    assert verdict.completed, verdict.details
    found = json.loads((tmp_path / "runs" / run.run_id / "table.json").read_text())
    assert found["complete"]
    assert found["site_names"] == list(SITES)
    require_fitted(found)


FORMULA = "died ~ age + sex + bmi + crp + smoker"
TERMS = ("Intercept", "sex[T.M]", "smoker[T.former]", "smoker[T.never]", "age", "bmi", "crp")


def require_fitted(found: dict[str, Any]) -> None:
    """Compare a regression with the fit of the pooled rows."""
    coef, errors = _logistic(TABLES / "cox-1.csv")
    places = [found["terms"].index(term) for term in TERMS]
    near = 1e-8 * np.maximum(abs(coef), errors)
    assert (abs(np.array(found["coef"])[places] - coef) <= near).all()
    own = np.array(found["se"]["nonrobust"])[places]
    np.testing.assert_allclose(own, errors, rtol=1e-6)


def require_described(found: dict[str, Any], rows: pd.DataFrame, tolerance: float) -> None:
    """Compare a description with pandas on the pooled rows."""
    assert found["rows"] == len(rows)
    for name in ("age", "bmi", "crp"):
        column = found["columns"][name]
        assert (column["n"], column["missing"]) == (rows[name].count(), rows[name].isna().sum())
        assert column["mean"] == pytest.approx(rows[name].mean(), rel=tolerance)
        assert column["sd"] == pytest.approx(rows[name].std(), rel=tolerance)
    assert found["columns"]["smoker"]["categories"] == rows["smoker"].value_counts().to_dict()


def _logistic(path: Path) -> tuple[Any, Any]:
    """Return coefficients and errors of the pooled rows, in extended precision, by `TERMS`."""
    rows = pd.read_csv(path)
    columns = [
        np.ones(len(rows)),
        rows["sex"] == "M",
        rows["smoker"] == "former",
        rows["smoker"] == "never",
        *(rows[name] for name in ("age", "bmi", "crp")),
    ]
    design = np.column_stack([np.asarray(column, float) for column in columns])
    fit = pooled("binomial", design, rows["died"].to_numpy(float), rows["site"].to_numpy())
    return fit.coef.astype(float), fit.errors("nonrobust")
