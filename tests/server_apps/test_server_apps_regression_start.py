"""The regression table of an exact method's run, against another library's pooled fit."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError, RunError
from privet.server_apps import execute, read_config
from privet.server_apps.analysis import execute_analysis
from privet.server_apps.model_file import load_model
from privet.server_apps.regression_start import begun_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, grid_of, run_inline
from privet.strategies.analyses import GLM
from support.analysis_sites import TABLES, dealt, table_of

COMMON = {"dataset": "csv", "num-agents": 4}
TRAINING = {
    **COMMON,
    "label-column": "died",
    "regularizer": "none",
    "baseline-seconds": 0.0,
    "evaluate-every": 1000,
    "checkpoint-every": 0,
}
KNOWN = json.loads((TABLES / "glm-binomial-1.json").read_text())
SCHEMA = """
[columns]
age = [17, 97]
bmi = [10, 50]
crp = [0, 50]
sex = ["F", "M"]
smoker = ["current", "former", "never"]
died = ["0", "1"]
"""
EXACT: dict[str, dict[str, Any]] = {
    "fed-plt": {"num-server-rounds": 120},
    "dp-iadmm": {"num-server-rounds": 100, "rho": 0.003},
    "led": {"num-server-rounds": 100, "step-size": 4.0, "local-epochs": 20},
}


def sites(folder: Path) -> list[dict[str, Any]]:
    """Nodes of as many rows each: agents count alike, and their limit is then the pooled one."""
    with (TABLES / "glm-binomial-1.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "site"} for row in csv.DictReader(file)]
    folder.mkdir(exist_ok=True)
    schema = folder / "schema.toml"
    schema.write_text(SCHEMA)
    nodes = []
    for place in range(4):
        path = folder / f"{place}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows[place::4])
        own = {"partition-id": place, "num-partitions": 4, "agent": f"site-{place}"}
        own |= {"dataset": "csv", "data-path": str(path), "schema": str(schema)}
        nodes.append({**own, "partition": "none", "label-column": "died", "regularizer": "none"})
    return nodes


def trained(folder: Path, nodes: list[dict[str, Any]], **keys: Any) -> Path:
    """The run folder of a training on the nodes' own rows, all of them."""
    schema = {"schema": str(folder / "schema.toml"), "output-dir": str(folder / "runs")}
    own = {"data-path": nodes[0]["data-path"]}  # the coordinator's, to evaluate on
    config = read_config({**TRAINING, **schema, **own, **keys})
    return execute(InlineGrid(configured_app(), nodes, config), config, "trained").folder


def table_at(folder: Path, nodes: list[dict[str, Any]], run: Path, **keys: Any) -> dict[str, Any]:
    schema = {"schema": str(folder / "schema.toml"), "output-dir": str(folder / "runs")}
    raw = {"algorithm": "glm", "start-run": str(run), **COMMON, **schema, **keys}
    config = read_config(raw)
    grid = InlineGrid(configured_app(), nodes, config)
    return dict(execute_analysis(grid, config, "table").result.table)


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_get_the_pooled_table(tmp_path: Path, name: str) -> None:
    nodes = sites(tmp_path)
    run = trained(tmp_path, nodes, algorithm=name, **EXACT[name])
    table = table_at(tmp_path, nodes, run)
    places = [table["terms"].index(term) for term in KNOWN["terms"]]
    coef, errors = np.array(table["coef"])[places], np.array(KNOWN["se"]["nonrobust"])
    known = np.array(KNOWN["coef"])
    assert (abs(coef - known) <= 1e-8 * np.maximum(abs(known), errors)).all()
    for kind in ("nonrobust", "HC0"):
        expected = KNOWN["se"][kind]
        np.testing.assert_allclose(np.array(table["se"][kind])[places], expected, rtol=1e-6)
    assert table["begun"].startswith(name)
    if name == "fed-plt":  # which has come to its limit
        assert table["begun_distance"] < 1e-8
        assert table["rounds"] == 4
    assert table["rounds"] <= 8
    assert table["notes"][-1].startswith(f"begun at {name}")


def test_of_numbers_too_and_with_any_coding_of_the_same_columns(tmp_path: Path) -> None:
    pressure = {"data-path": str(TABLES / "glm-gaussian-1.csv"), "label-column": "pressure"}
    run = run_inline({**SIMULATED, **pressure, "output-dir": str(tmp_path)}, "trained").folder
    known = json.loads((TABLES / "glm-gaussian-1.json").read_text())
    raw = {"algorithm": "glm", "family": "gaussian", "start-run": str(run), "id-column": "site"}
    raw |= {"data-path": pressure["data-path"], "output-dir": str(tmp_path)}
    larger = {"formula": known["formula"] + " + crp + C(smoker, ref='never')"}
    table = run_inline({**raw, **larger}, "table").result.table  # type: ignore[attr-defined]
    plain = run_inline({**raw, **larger, "start-run": ""}, "plain").result.table  # type: ignore[attr-defined]
    assert table["coef"] == pytest.approx(plain["coef"], rel=1e-9)
    np.testing.assert_allclose(table["cov"], plain["cov"], rtol=1e-9)
    assert "begun" not in plain


SIMULATED = {
    "algorithm": "fed-plt",
    "dataset": "csv",
    "data-path": str(TABLES / "glm-binomial-1.csv"),
    "label-column": "died",
    "id-column": "site",
    "drop-columns": "site",
    "num-agents": 4,
    "num-server-rounds": 3,
    "regularizer": "none",
    "baseline-seconds": 0.0,
}
PRIVATE = {"clip": 1.0, "noise-variance": 0.1, "local-solver": "noisy-gd", "row-norm": 2.0}


@pytest.mark.parametrize(
    ("training", "keys", "words"),
    [
        ({"regularizer": "l2"}, {}, "penalised fit .regularizer = l2., which has no standard"),
        ({"h": "l1", "h-weight": 0.1}, {}, "penalised fit .h = l1., which has no standard errors"),
        ({**PRIVATE, "schema": ""}, {}, "private run: standard errors of noised models"),
        ({"row-norm": 2.0}, {}, "scaled its rows .row-norm., which is another model"),
        ({}, {"family": "poisson"}, "minimises logistic, and family = poisson"),
        ({}, {"formula": "died ~ age + log(bmi) + crp + sex"}, "no coefficients of this formula"),
        ({}, {"formula": "died ~ age + bmi + crp + sex + smoker + site"}, "no column 'site'"),
        ({}, {"formula": "sex ~ age + bmi + crp + smoker"}, "tells 0 from 1, and sex has F, M"),
        ({}, {"algorithm": "cox"}, "start-run"),
        ({}, {"start-run": "nowhere"}, "nowhere"),
    ],
)  # fmt: skip
def test_what_has_no_regression_table_is_refused_with_the_reason(
    tmp_path: Path, training: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    config = {**SIMULATED, **training, "output-dir": str(tmp_path)}
    if "schema" in training:
        (tmp_path / "schema.toml").write_text(SCHEMA)
        config["schema"] = str(tmp_path / "schema.toml")
    run = run_inline(config, "trained").folder
    raw = {"algorithm": "glm", "data-path": config["data-path"], "id-column": "site"}
    raw |= {"start-run": str(run), "output-dir": str(tmp_path), **keys}
    with pytest.raises((ConfigError, RunError), match=words):
        run_inline(raw, "table")


def test_in_python_a_run_is_read_first(tmp_path: Path) -> None:
    run = run_inline({**SIMULATED, "output-dir": str(tmp_path)}, "trained").folder
    with pytest.raises(ConfigError, match="begin_at"):
        GLM(formula="died ~ age", start_run=str(run))
    frames = list(
        dealt(table_of("glm-binomial-1.csv"), table_of("glm-binomial-1.csv")["site"]).values()
    )
    model = GLM(formula=KNOWN["formula"])
    model.begin_at(begun_model(load_model(run), "binomial"))
    found = model.start(grid_of("glm", frames))
    assert found.table["begun"].startswith("fed-plt")
    assert found.llf == pytest.approx(KNOWN["loglik"], rel=1e-12)
