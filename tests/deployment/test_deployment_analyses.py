"""Deployed nodes with tables of their own: analyses equal those of the pooled rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.paths import ROOT
from support.processes import Deployment

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

WORKED = ROOT / "tests" / "data" / "inference"
SCHEMA = """
[columns]
age = [0, 120]
bmi = [5, 100]
crp = [0, 1000]
sex = ["F", "M"]
smoker = ["current", "former", "never"]
died = [0, 1]
"""


def dealt(folder: Path, name: str) -> list[dict[str, Any]]:
    """Write the rows of each site of a worked table to a file of its own; return node configs."""
    with (WORKED / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    (folder / "schema.toml").write_text(SCHEMA)
    nodes = []
    for number, site in enumerate(sorted({row["site"] for row in rows})):
        path = folder / f"{site}.csv"
        own = [{k: v for k, v in row.items() if k != "site"} for row in rows if row["site"] == site]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, own[0].keys())
            writer.writeheader()
            writer.writerows(own)
        nodes.append(
            {
                "partition-id": number,
                "agent": site,
                "dataset": "csv",
                "data-path": str(path),
                "schema": str(folder / "schema.toml"),
            }
        )
    return nodes


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "secure-sum"])
def test_a_deployed_regression_is_that_of_the_pooled_rows(tmp_path: Path, secure: bool) -> None:
    """The worked table, whose answers are another library's on the pooled rows."""
    known = json.loads((WORKED / "glm-binomial-1.json").read_text())
    config: dict[str, Any] = {
        "algorithm": "glm",
        "family": "binomial",
        "formula": known["formula"],
        "num-agents": 4,
        "secure-sum": secure,
        "schema": str(tmp_path / "schema.toml"),
        "output-dir": str(tmp_path / "runs"),
    }
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        for site in dealt(tmp_path, "glm-binomial-1"):
            deployment.start_node(str(site["agent"]), site)
        deployment.wait_for_nodes()
        run = deployment.submit(ROOT, config)
        verdict = run.wait()
        assert verdict.completed, verdict.details
    table = json.loads((tmp_path / "runs" / run.run_id / "table.json").read_text())
    places = [table["terms"].index(term) for term in known["terms"]]
    errors = np.array(known["se"]["nonrobust"])
    coef = np.array(table["coef"])[places]
    assert table["complete"]
    assert table["site_names"] == ["hill", "north", "south", "west"]
    assert (abs(coef - known["coef"]) <= 1e-8 * np.maximum(abs(coef), errors)).all()
    for kind, expected in known["se"].items():
        np.testing.assert_allclose(np.array(table["se"][kind])[places], expected, rtol=1e-6)
