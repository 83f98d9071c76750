"""Survival analyses by real messages: the worked table, pooled baselines, noised curves."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.analyses import CoxResult, Factor, Frame, KaplanMeierResult
from privet.core import ConfigError, RunError
from privet.kernel import LedgerFile, Told
from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.sim import grid_of
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, run_inline, run_ray
from privet.strategies.analyses import Cox, KaplanMeier
from support.analysis_sites import PATIENTS, TABLES, own_tables
from support.away import Away
from support.cox_by_definition import ByDefinition
from support.paths import ROOT
from support.simulation import run_simulation
from support.told import refused

WORKED = json.loads((TABLES / "cox-1.json").read_text())
TIMES = {"time-column": "days", "event-column": "died"}
FORMULA = "age + bmi + crp + sex + smoker"
SCHEMA = PATIENTS + "days = [0, 3000]\n"


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    given = {name.replace("_", "-"): value for name, value in keys.items()}
    table = {"data-path": str(TABLES / "cox-1.csv"), "id-column": "site"}
    return {**TIMES, **table, "output-dir": str(folder / "runs"), **given}


def played(engine: str, raw: dict[str, Any]) -> dict[str, Any]:
    if engine == "ray":
        finished: Any = run_ray(raw, "run", actors=2)
    else:
        finished = run_inline(raw, "run", engine=engine)
    return dict(finished.result.table)


def of_nodes(folder: Path, nodes: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """The table of an analysis of nodes' own tables."""
    raw = config(folder, num_agents=len(nodes), schema=str(folder / "schema.toml"), **keys)
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = InlineGrid(configured_app(), nodes, settled)
    return dict(execute_analysis(grid, settled, "run").result.table)


def require_worked(table: dict[str, Any], ties: str) -> None:
    right = WORKED[ties]
    order = [table["short_terms"].index(term) for term in WORKED["terms"]]
    error = np.abs(np.array(table["coef"])[order] - right["coef"])
    assert (error <= 1e-8 * np.maximum(np.abs(right["coef"]), right["se"])).all()
    assert np.array(table["se"]["nonrobust"])[order] == pytest.approx(right["se"], rel=1e-8)


ENGINES = ["inline", "cohort", pytest.param("ray", marks=[
    pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")])]  # fmt: skip


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_worked_table_by_every_engine(tmp_path: Path, engine: str, secure: bool) -> None:
    for ties in ("efron", "breslow"):
        keys = {"algorithm": "cox", "formula": FORMULA, "ties": ties, "secure_sum": secure}
        require_worked(played(engine, config(tmp_path / ties, **keys)), ties)
    keys = {"algorithm": "kaplan-meier", "group_column": "sex", "secure_sum": secure}
    table = played(engine, config(tmp_path / "curves", **keys))
    right = WORKED["kaplan_meier"]
    curve = KaplanMeierResult(table)[""]
    assert curve.survival_at(right["days"]) == pytest.approx(right["survival"], abs=1e-12)
    assert curve.median_survival_time_ == right["median"]
    assert table["logrank"]["chi2"] == pytest.approx(WORKED["logrank_sex"]["chi2"], rel=1e-12)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_the_worked_table_by_flowers_simulation(tmp_path: Path, secure: bool) -> None:
    asked = {"num_agents": 4, "secure_sum": secure, "dataset": "csv", "partition": "natural-id"}
    for ties in ("efron", "breslow"):
        raw = config(tmp_path, algorithm="cox", formula=FORMULA, ties=ties, **asked)
        require_worked(by_flower(tmp_path, raw), ties)
    curves = {"algorithm": "kaplan-meier", "group_column": "sex"}
    table = by_flower(tmp_path, config(tmp_path, **curves, **asked))
    right = WORKED["kaplan_meier"]
    found = KaplanMeierResult(table)[""].survival_at(right["days"])
    assert found == pytest.approx(right["survival"], abs=1e-12)
    assert table["logrank"]["chi2"] == pytest.approx(WORKED["logrank_sex"]["chi2"], rel=1e-12)


def by_flower(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    outcome = run_simulation(ROOT, num_supernodes=4, run_config=raw, on_line=lambda line: None)
    assert outcome.completed, outcome.details
    table = json.loads((folder / "runs" / outcome.run_id / "table.json").read_text())
    return dict(table)


# ------------------------------------------------------------------ a pooled baseline


def test_the_size_of_pooled_sums_is_said_before_they_are_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flwr.privet"):
        raw = config(tmp_path, algorithm="cox", formula=FORMULA, baseline="pooled")
        finished: Any = run_inline(raw, "run")
    table = finished.result.table
    times, width = len(table["baseline"]["times"]), len(table["terms"])
    said = 8 * (2 * times * (1 + width + width * (width + 1) // 2) + width + 1)
    (line,) = (one.getMessage() for one in caplog.records if "bytes in each" in one.getMessage())
    assert line.startswith(f"each site sends {said:,} bytes in each of the next rounds")
    sent = finished.summary["bytes-up"] / 4
    assert sent > said * (table["rounds"] - 3)  # two rounds before it, and the last


def allowed(folder: Path, **keys: Any) -> list[dict[str, Any]]:
    return own_tables(folder, schema=SCHEMA, name="cox-1", **keys)


@pytest.mark.parametrize("secure", [False, True])
def test_a_node_keeps_its_baseline_unless_its_operator_lets_it_out(
    tmp_path: Path, secure: bool
) -> None:
    keys = {"algorithm": "cox", "formula": FORMULA, "baseline": "pooled", "secure_sum": secure}
    with refused(Told.POOLED_BASELINE, "pooled-baseline"):
        of_nodes(tmp_path, allowed(tmp_path, min_cell=1), **keys, num_server_rounds=2)
    least = {} if secure else {"min_cell": 1}
    table = of_nodes(tmp_path, allowed(tmp_path, pooled_baseline=True, **least), **keys)
    assert table["complete"]
    survival = CoxResult(table).predict_survival_function(
        {"age": [50], "bmi": [25], "crp": [3], "sex": ["F"], "smoker": ["never"]}, [365.0]
    )
    assert 0.0 < survival.iloc[0, 0] < 1.0


def test_in_the_clear_the_least_cell_holds_for_a_pooled_baseline_as_well(tmp_path: Path) -> None:
    keys = {"algorithm": "cox", "formula": FORMULA, "baseline": "pooled"}
    with refused(Told.SMALL_CELL, "min-cell"):
        of_nodes(tmp_path, allowed(tmp_path, pooled_baseline=True), **keys, num_server_rounds=2)


# ------------------------------------------------------------------ noise


def test_noised_curves_are_charged_under_the_nodes_budget(tmp_path: Path) -> None:
    nodes = allowed(tmp_path, relation="replace-one", max_epsilon=1.2, delta=1e-5)
    for node in nodes:
        node["ledger-path"] = str(tmp_path / f"{node['agent']}.ledger")
    keys = {"algorithm": "kaplan-meier", "horizon": 1000.0, "time_unit": 100.0}
    keys |= {"relation": "replace-one", "target_epsilon": 1.0, "group_column": "sex"}
    table = of_nodes(tmp_path, nodes, **keys)
    assert (table["noised"], table["complete"], table["kind"]) == (True, True, "kaplan-meier")
    for node in nodes:  # what the account says is what the node has written down
        assert 0.9 <= LedgerFile(Path(node["ledger-path"])).spent(1e-5).epsilon <= 1.0
    assert "noised counts of survival curves" in Path(nodes[0]["ledger-path"]).read_text()
    rows = pd.read_csv(TABLES / "cox-1.csv")
    error = table["count_error"] * np.sqrt(2 * 20)
    assert abs(table["n"] - len(rows)) < 6 * error
    exact = WORKED["kaplan_meier"]
    curve = KaplanMeierResult(table)[""]
    noise = curve.columns["se_noise"][0]
    assert curve.columns["times"][0] == 100.0
    assert abs(curve.survival_at([100.0])[0] - exact["survival"][0]) < 6 * noise
    assert {"report.html", "table.csv"} <= {
        one.name for one in (tmp_path / "runs" / "run").iterdir()
    }
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "no log-rank tests of noised counts" in page
    with refused(Told.BUDGET, "max-epsilon"):
        more = {**keys, "output_dir": str(tmp_path / "again"), "num_server_rounds": 1}
        of_nodes(tmp_path, nodes, **more)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("algorithm", ["kaplan-meier", "describe"])
def test_noised_sums_are_played_under_each_relation(
    tmp_path: Path, algorithm: str, relation: str
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    keys: dict[str, Any] = {"algorithm": algorithm, "schema": str(tmp_path / "schema.toml")}
    if algorithm == "kaplan-meier":
        keys |= {"horizon": 1000.0, "time_unit": 100.0}
    raw = config(tmp_path, **keys, target_epsilon=1.0, relation=relation)
    if algorithm == "describe":
        del raw["time-column"], raw["event-column"]
    finished: Any = run_inline(raw, "run")
    error = finished.result.table["count_error"]
    assert finished.result.privacy.relation == relation
    assert 0.9 < finished.result.history[-1].epsilon <= 1.0
    # sites add noise of their own; exchanging a record moves a sum by the root of 2
    scale = 5.277 * 2.0
    share = 1.0 if algorithm == "kaplan-meier" else np.sqrt(2 + 3 * 5)
    moved = 1.0 if relation == "replace-one" else np.sqrt(0.5)
    assert error == pytest.approx(scale * share * moved, rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"horizon": 0.0}, "public grid"),
        ({"secure_sum": True}, "sent in the clear"),
        ({"strata_column": "smoker"}, "no log-rank test to stratify"),
        (
            {"group_column": "age"},
            "column age is used as categories, and the schema states a range",
        ),
    ],
)
def test_noised_curves_without_public_inputs_are_refused(
    tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    asked = {"algorithm": "kaplan-meier", "horizon": 1000.0, "time_unit": 100.0}
    asked |= {"target_epsilon": 1.0, "relation": "replace-one", **keys}
    with pytest.raises(Exception, match=words):
        of_nodes(tmp_path, allowed(tmp_path), **asked, num_server_rounds=1)


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "kaplan-meier", "group_column": "age", "horizon": 3000.0},
        {"algorithm": "cox", "formula": "bmi + C(age)"},
    ],
)
def test_numbers_with_a_range_are_no_categories_of_deployed_nodes(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="column age is used as categories") as caught:
        of_nodes(tmp_path, allowed(tmp_path), **keys, num_server_rounds=1)
    assert "\n" not in str(caught.value)
    schema = SCHEMA.replace("died = [0, 1]", 'died = ["0", "1"]')
    nodes = own_tables(tmp_path, schema=schema, name="cox-1", min_cell=1)
    curves = {"algorithm": "kaplan-meier", "group_column": "died", "horizon": 3000.0}
    assert of_nodes(tmp_path, nodes, **curves)["groups"] == ["", "0", "1"]


def test_noised_curves_without_a_schema_are_refused(tmp_path: Path) -> None:
    keys = {"algorithm": "kaplan-meier", "horizon": 1000.0, "time_unit": 100.0}
    raw = config(tmp_path, **keys, noise_scale=5.0, num_server_rounds=1)
    with pytest.raises(Exception, match="schema"):
        run_inline(raw, "run")


# ------------------------------------------------------------------ sites that have little


def uneven() -> list[dict[str, Any]]:
    """Columns of four sites: two are usual, at one nobody dies, one has a single row."""
    rng = np.random.default_rng(8)

    def site(rows: int, dying: float) -> dict[str, Any]:
        return {
            "days": rng.integers(1, 90, rows).astype(float),
            "died": (rng.random(rows) < dying).astype(float),
            "age": rng.integers(30, 80, rows).astype(float),
            "arm": rng.choice(["a", "b"], rows) if rows > 1 else np.array(["b"]),
        }

    return [site(60, 0.6), site(50, 0.0), site(1, 1.0), site(40, 0.7)]


def frames(tables: list[dict[str, Any]]) -> list[Frame]:
    """Tables with the categories of all sites, which a schema states where a site lacks one."""
    arms = ("a", "b")
    return [
        Frame(
            len(one["days"]),
            {name: one[name] for name in ("days", "died", "age")},
            {"arm": Factor(np.searchsorted(arms, one["arm"]).astype(np.int32), arms)},
        )
        for one in tables
    ]


def everybody() -> dict[str, Any]:
    tables = uneven()
    whole = {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
    whole["site"] = np.repeat(np.arange(4), [len(one["days"]) for one in tables])
    return whole


ASKED = {"time_column": "days", "event_column": "died"}


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("baseline", ["site", "pooled"])
def test_a_site_without_events_and_one_of_one_row_are_right(baseline: str, secure: bool) -> None:
    every = {"arm": ["a", "b"], "days": [1.0, 2.0], "died": [0.0, 1.0], "age": [1.0, 2.0]}
    keys: dict[str, Any] = {**ASKED, "formula": "age + arm", "baseline": baseline}
    result = Cox(**keys, secure_sum=secure, table=every).start(grid_of("cox", frames(uneven())))
    whole = everybody()
    x = np.column_stack([whole["age"], whole["arm"] == "b"]).astype(float)
    strata = whole["site"] if baseline == "site" else None
    pooled = ByDefinition(x, whole["days"], whole["died"], strata=strata)
    b = pooled.fit()
    se = np.sqrt(np.diag(np.linalg.inv(pooled.information(b))))
    order = [result.table["terms"].index(term) for term in ("age", "arm[T.b]")]
    error = np.abs(np.array(result.table["coef"])[order] - b)
    assert (error <= 1e-8 * np.maximum(np.abs(b), se)).all()
    assert np.array(result.table["se"]["nonrobust"])[order] == pytest.approx(se, rel=1e-7)
    assert result.complete
    assert result.table["events"] == whole["died"].sum()
    assert "\n" in str(CoxResult(result.table))  # it prints


@pytest.mark.parametrize("secure", [False, True])
def test_curves_of_such_sites_are_those_of_the_pooled_rows(secure: bool) -> None:
    every = {"arm": ["a", "b"], "days": [1.0, 2.0], "died": [0.0, 1.0]}
    curves = KaplanMeier(**ASKED, group_column="arm", secure_sum=secure, table=every)
    table = curves.start(grid_of("kaplan-meier", frames(uneven()))).table
    whole = everybody()
    share, died = 1.0, whole["died"] == 1.0
    for at in sorted(set(whole["days"][died])):
        share *= 1.0 - (died & (whole["days"] == at)).sum() / (whole["days"] >= at).sum()
    assert table["survival"][0][-1] == pytest.approx(share, abs=1e-12)
    assert table["logrank_by_site"]["df"] == 1


@pytest.mark.parametrize("baseline", ["site", "pooled"])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("table", ["events", "rows"])
def test_nothing_to_estimate_is_one_line(baseline: str, secure: bool, table: str) -> None:
    tables = uneven()
    for one in tables:
        one["died"][:] = 0.0
        if table == "rows":
            one["days"][:] = np.nan
    every = {"arm": ["a", "b"], "days": [1.0, 2.0], "died": [0.0, 1.0], "age": [1.0, 2.0]}
    keys: dict[str, Any] = {**ASKED, "formula": "age", "baseline": baseline, "table": every}
    words = "the event occurs at no site|min-records"
    with pytest.raises(RunError, match=words) as caught:
        Cox(**keys, secure_sum=secure).start(grid_of("cox", frames(tables)), num_rounds=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("baseline", ["site", "pooled"])
def test_a_site_that_is_away_and_back_is_in_the_table(tmp_path: Path, baseline: str) -> None:
    nodes = allowed(tmp_path, pooled_baseline=True, min_cell=1)
    raw = config(tmp_path, algorithm="cox", formula=FORMULA, num_agents=4, baseline=baseline)
    raw |= {"schema": str(tmp_path / "schema.toml")}
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Away(nodes, settled, 3, 5)
    table = dict(execute_analysis(grid, settled, "run").result.table)
    assert (table["complete"], table["sites_away"]) == (True, [])
    if baseline == "site":
        require_worked(table, "efron")
        return
    whole = of_nodes(tmp_path / "whole", allowed_in(tmp_path / "whole"), algorithm="cox",
                     formula=FORMULA, baseline=baseline)  # fmt: skip
    np.testing.assert_allclose(table["coef"], whole["coef"], rtol=1e-8)


def allowed_in(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    return allowed(folder, pooled_baseline=True, min_cell=1)
