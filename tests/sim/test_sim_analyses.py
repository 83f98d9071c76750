"""Analyses by real messages: engines, masks, sites that are away, resumed runs, nodes' rules."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from privet.analyses import GlmResult
from privet.core import RunError
from privet.data.described_schema import schema_of
from privet.kernel import LedgerFile, Told
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, run_inline, run_ray
from support.analysis_runs import BINOMIAL, KINDS, SITES, analysed, config
from support.analysis_sites import PATIENTS, TABLES, own_tables
from support.paths import ROOT
from support.simulation import run_simulation
from support.told import refused

EVALUATED = ("evaluated", "held-out")


def numbers(table: Any) -> list[float]:
    """All numbers of a table, in order."""
    if isinstance(table, bool) or table is None or isinstance(table, str):
        return []
    if isinstance(table, int | float):
        return [float(table)]
    values = table.values() if isinstance(table, dict) else table
    return [number for one in values for number in numbers(one)]


OF_SITES = re.compile("site|heterogeneity")


def pooled_only(table: dict[str, Any]) -> dict[str, Any]:
    """The table without what is of single sites, which is not there where sums are masked."""
    if "columns" in table:
        columns = {
            name: {key: value for key, value in column.items() if key != "by_site"}
            for name, column in table["columns"].items()
        }
        return {**table, "columns": columns}
    return {key: value for key, value in table.items() if not OF_SITES.search(key)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_engines_give_the_same_bits(tmp_path: Path, kind: str) -> None:
    tables = [
        run_inline(config(tmp_path, kind), f"run-{engine}", engine=engine).result.table  # type: ignore[attr-defined]
        for engine in ("inline", "cohort")
    ]
    assert tables[0]["complete"]
    assert json.dumps(tables[0]) == json.dumps(tables[1])


@pytest.mark.ray
@pytest.mark.parametrize("secure", [False, True])
def test_a_description_on_ray_is_the_inline_one(tmp_path: Path, secure: bool) -> None:
    keys = config(tmp_path, "describe", secure_sum=secure)
    tables = [
        run_inline(keys, "inline").result.table,  # type: ignore[attr-defined]
        run_ray(keys, "ray", actors=2).result.table,  # type: ignore[attr-defined]
    ]
    assert json.dumps(tables[0]) == json.dumps(tables[1])
    assert tables[1]["complete"]


@pytest.mark.ray
def test_a_description_in_flowers_simulation_is_the_inline_one(tmp_path: Path) -> None:
    keys = config(tmp_path, "describe", num_agents=4)
    verdict = run_simulation(ROOT, num_supernodes=4, run_config=keys)
    assert verdict.completed, verdict.details
    [folder] = (tmp_path / "runs").iterdir()
    found = json.loads((folder / "table.json").read_text())
    assert found == run_inline(keys, "inline").result.table  # type: ignore[attr-defined]


def test_each_sites_own_numbers_are_in_the_clear_alone(tmp_path: Path) -> None:
    clear, masked = (
        run_inline(config(tmp_path, "describe", secure_sum=one), f"run-{one}").result.table  # type: ignore[attr-defined]
        for one in (False, True)
    )
    for name, column in clear["columns"].items():
        assert len(column["by_site"]) == 4
        assert masked["columns"][name]["by_site"] == []


def test_persons_are_counted_beside_the_rows(tmp_path: Path) -> None:
    """As many as pandas finds at each site: ids are of the sites."""
    rows = pd.read_csv(TABLES / "glm-binomial-1.csv")
    rows["patient"] = rows.index // 3
    rows.to_csv(tmp_path / "all.csv", index=False)
    keys = config(tmp_path, "describe", data_path=str(tmp_path / "all.csv"))
    table = run_inline({**keys, "person-column": "patient"}, "run").result.table  # type: ignore[attr-defined]
    assert (table["rows"], table["persons"]) == (
        len(rows),
        rows.groupby("site")["patient"].nunique().sum(),
    )
    assert "patient" not in table["columns"]


@pytest.mark.parametrize("kind", KINDS)
def test_secure_sums_agree_with_those_in_the_clear(tmp_path: Path, kind: str) -> None:
    clear, masked = (
        run_inline(config(tmp_path, kind, secure_sum=secure), f"run-{secure}").result.table  # type: ignore[attr-defined]
        for secure in (False, True)
    )
    assert masked["complete"]
    one, other = (np.array(numbers(pooled_only(table))) for table in (clear, masked))
    tolerance = 1e-9 if kind == "describe" else 1e-8
    np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.ray
def test_the_ray_engine_gives_the_same_bits(tmp_path: Path) -> None:
    tables = [
        play(config(tmp_path, "evaluated"), name).result.table  # type: ignore[attr-defined]
        for play, name in ((partial(run_ray, actors=2), "ray"), (run_inline, "inline"))
    ]
    assert json.dumps(tables[0]) == json.dumps(tables[1])


@pytest.mark.ray
def test_flowers_simulation_gives_the_same_bits(tmp_path: Path) -> None:
    asked = {**config(tmp_path, "evaluated"), "dataset": "csv", "num-agents": 4}
    verdict = run_simulation(ROOT, num_supernodes=4, run_config=asked, on_line=lambda line: None)
    assert verdict.completed, verdict.details
    found = json.loads((tmp_path / "runs" / verdict.run_id / "table.json").read_text())
    inline = run_inline(asked, "inline").result.table  # type: ignore[attr-defined]
    assert json.dumps(found) == json.dumps(inline)


def test_a_described_table_is_that_of_pandas(tmp_path: Path) -> None:
    table = run_inline(config(tmp_path, "describe"), "run").result.table  # type: ignore[attr-defined]
    pooled = pd.read_csv(TABLES / "glm-binomial-1.csv")
    assert table["rows"] == len(pooled)
    for name in ("age", "bmi", "crp"):
        found = table["columns"][name]
        assert (found["n"], found["missing"]) == (pooled[name].count(), pooled[name].isna().sum())
        assert found["mean"] == pytest.approx(pooled[name].mean(), rel=1e-12)
        assert found["sd"] == pytest.approx(pooled[name].std(), rel=1e-12)
        for sex, rows in pooled.groupby("sex"):
            own = found["groups"][sex]
            assert own["mean"] == pytest.approx(rows[name].mean(), rel=1e-12)
            assert own["sd"] == pytest.approx(rows[name].std(), rel=1e-12)
    counts = pooled["smoker"].value_counts().to_dict()
    assert table["columns"]["smoker"]["categories"] == counts


# ------------------------------------------------------------------ tables of nodes' own


def require_pooled(table: Mapping[str, Any]) -> None:
    """Compare with the answers of another library on the pooled rows."""
    places = [table["terms"].index(term) for term in BINOMIAL["terms"]]
    coef, errors = np.array(table["coef"])[places], np.array(BINOMIAL["se"]["nonrobust"])
    known = np.array(BINOMIAL["coef"])
    assert (abs(coef - known) <= 1e-8 * np.maximum(abs(known), errors)).all()


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_that_comes_back_is_in_the_result(tmp_path: Path, secure: bool) -> None:
    table = analysed(tmp_path, own_tables(tmp_path), away=(3, 4), secure_sum=secure)
    assert (table["complete"], table["sites_away"]) == (True, [])
    require_pooled(table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_that_stays_away_is_named(tmp_path: Path, kind: str) -> None:
    name = KINDS[kind][0]
    times = "days = [0, 3000]\n" if name == "cox-1" else ""
    horizon = {"horizon": 2500.0} if kind == "kaplan-meier" else {}  # a node hides its last time
    cell = {"min_cell": 1} if kind in EVALUATED else {}  # and no histogram is of large cells
    cell = {"min_cell": 1, "pooled_baseline": True} if kind == "pooled" else cell
    nodes = own_tables(tmp_path, schema=PATIENTS + times, name=name, **cell)
    table = analysed(tmp_path, nodes, kind, away=(1, 10**6), num_server_rounds=16, **horizon)
    assert (table["complete"], table["sites_away"]) == (False, ["south"])
    assert table["site_names"] == ["hill", "north", "west"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_analysis_goes_on_to_the_same_bits(tmp_path: Path, kind: str) -> None:
    whole = run_inline(config(tmp_path / "a", kind), "run").result.table  # type: ignore[attr-defined]
    first = config(tmp_path / "b", kind, num_server_rounds=2, checkpoint_every=1)
    if kind == "kaplan-meier":  # which has as many rounds
        run_inline(first, "run")
    else:
        with pytest.raises(RunError, match="no result after 2 rounds: set num-server-rounds"):
            run_inline(first, "run")
    rest = config(tmp_path / "b", kind, resume=str(tmp_path / "b" / "runs" / "run"))
    resumed = run_inline(rest, "rest").result.table  # type: ignore[attr-defined]
    assert json.dumps(resumed) == json.dumps(whole)


# ------------------------------------------------------------------ rules of nodes


@pytest.mark.parametrize(
    ("keys", "more", "told", "line"),
    [
        ({"allow_analyses": False}, {}, Told.ANALYSES, "allow-analyses"),
        ({"sums_only": True}, {}, Told.SUMS_ONLY, "sums-only"),
        ({"min_records": 10_000}, {}, Told.FEW_RECORDS, "min-records = 10000"),
        ({"min_cell": 60}, {}, Told.SMALL_CELL, "min-cell = 60"),
        ({}, {"formula": "died ~ cr(age, df=4)"}, "formula", "formula"),
    ],
)
def test_rules_of_nodes_refuse_by_fixed_texts(
    tmp_path: Path, keys: dict[str, Any], more: dict[str, Any], told: Any, line: str
) -> None:
    nodes = own_tables(tmp_path, **keys)
    if not isinstance(told, Told):
        with pytest.raises(Exception, match=told):
            analysed(tmp_path, nodes, **more)
        return
    with refused(told, line):
        analysed(tmp_path, nodes, num_server_rounds=2, **more)


def test_an_evaluation_is_of_pooled_rows_and_the_held_out_are_a_sites_own(tmp_path: Path) -> None:
    pooled = pd.read_csv(TABLES / "glm-binomial-1.csv")
    table = run_inline(config(tmp_path, "evaluated"), "run").result.table  # type: ignore[attr-defined]
    design = np.stack(
        [np.ones(len(pooled)), pooled["sex"] == "M", pooled["age"], pooled["crp"]], axis=1
    )
    eta = design.astype(float) @ table["coef"]
    found = table["evaluation"]
    auc = roc_auc_score(pooled["died"], eta)
    assert abs(found["auc"] - auc) <= found["auc_bound"] < 5e-3
    brier = brier_score_loss(pooled["died"], 1 / (1 + np.exp(-eta)))
    assert found["brier"] == pytest.approx(brier, rel=1e-12)
    assert (found["apparent"], found["n"], found["events"]) == (True, 900, pooled["died"].sum())
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "<h2>Evaluation</h2>" in page
    assert "apparent, of the rows fitted" in page

    table = run_inline(config(tmp_path, "held-out"), "other").result.table  # type: ignore[attr-defined]
    fifths = [round(len(rows) / 5) for _, rows in pooled.groupby("site")]
    assert table["evaluation"]["n"] == sum(fifths)
    assert table["n"] == 900 - sum(fifths)
    assert "Evaluation, of rows held out" in GlmResult(table).summary()
    seeded = config(tmp_path, "held-out", seed=7)  # no choice of the coordinator moves a row
    again = run_inline(seeded, "seeded").result.table  # type: ignore[attr-defined]
    assert again["evaluation"] == table["evaluation"]


def test_an_evaluation_of_nodes_is_answered_in_secure_sums_alone(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    with refused(Told.SMALL_CELL, "evaluate counts records in narrow parts"):
        analysed(tmp_path, nodes, "evaluated", num_server_rounds=2)
    table = analysed(tmp_path, nodes, "held-out", run="masked", secure_sum=True)
    assert table["complete"]
    assert table["evaluation"]["n"] == 180
    few = own_tables(tmp_path, min_records=40)  # a site of 144 rows holds out 29
    with refused(Told.FEW_RECORDS, "29 are complete, and min-records = 40"):
        analysed(tmp_path, few, "held-out", run="few", secure_sum=True, num_server_rounds=2)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"allow_analyses": False}, Told.ANALYSES),
        ({"min_records": 10_000}, Told.FEW_RECORDS),
    ],
)
def test_rules_hold_in_secure_sums(tmp_path: Path, keys: dict[str, Any], told: Told) -> None:
    with pytest.raises(RunError, match=re.escape(told)):
        analysed(tmp_path, own_tables(tmp_path, **keys), num_server_rounds=2, secure_sum=True)


def test_small_cells_are_the_coordinators_alone_in_secure_sums(tmp_path: Path) -> None:
    """As the guide says: the node's own cells are in no message, so that it does not refuse."""
    nodes = own_tables(tmp_path, min_cell=60)
    require_pooled(analysed(tmp_path, nodes, secure_sum=True))


def test_sums_only_takes_part_in_secure_sums(tmp_path: Path) -> None:
    table = analysed(tmp_path, own_tables(tmp_path, sums_only=True), secure_sum=True)
    require_pooled(table)


def test_the_most_analyses_are_counted_by_run(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    for node in nodes:
        node |= {"max-analyses": 1, "analyses-path": str(tmp_path / f"{node['agent']}.log")}
    assert analysed(tmp_path, nodes, run="first")["complete"]
    lines = (tmp_path / "hill.log").read_text().splitlines()
    assert sum("settings" in line for line in lines) == 1
    with refused(Told.MOST_ANALYSES, "max-analyses"):
        analysed(tmp_path, nodes, "describe", run="second", num_server_rounds=2)


def test_texts_without_a_schema_are_refused_with_the_line_that_makes_one(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path, schema="")
    with pytest.raises(RunError, match=r"privet describe --schema OUT"):
        analysed(tmp_path, nodes, num_server_rounds=2)


@pytest.mark.parametrize("secure", [False, True])
def test_a_node_with_other_categories_is_turned_away_by_name(tmp_path: Path, secure: bool) -> None:
    """In secure sums by the digest of its schema."""
    nodes = own_tables(tmp_path)
    other = PATIENTS.replace('["F", "M"]', '["F", "M", "X"]')
    (tmp_path / "other.toml").write_text(other)
    nodes[3]["schema"] = str(tmp_path / "other.toml")
    with pytest.raises(RunError, match=r"1 sites cannot be in the table: agent west: "):
        analysed(tmp_path, nodes, num_server_rounds=2, secure_sum=secure)


def test_a_node_without_a_column_is_named(tmp_path: Path) -> None:
    def change(site: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{k: v for k, v in row.items() if site != "west" or k != "crp"} for row in rows]

    nodes = own_tables(tmp_path, change, schema="")
    table = analysed(tmp_path, nodes, "describe")
    assert table["columns"]["crp"]["by_site"][3]["other"] > 0
    assert table["complete"]


def test_cells_below_the_least_are_in_no_table_of_nodes(tmp_path: Path) -> None:
    def change(site: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
        rare = [{**row, "smoker": "pipe"} if at < 3 else row for at, row in enumerate(rows)]
        return rare if site == "west" else rows

    table = analysed(tmp_path, own_tables(tmp_path, change, schema=""), "describe")
    assert "pipe" not in json.dumps(table)
    known = table["columns"]["smoker"]
    assert known["missing"] == 0
    assert list(known["by_site"][3]["categories"].values()).count(None) == 1


# ------------------------------------------------------------------ noise


def noised(folder: Path, nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    keys = {"target_epsilon": 1.0, "relation": "replace-one", "by": "", **more}
    return analysed(folder, nodes, "describe", **keys)


def test_a_noised_description_is_charged_under_the_nodes_budget(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    for node in nodes:
        node |= {"relation": "replace-one", "max-epsilon": 1.2, "delta": 1e-5}
        node |= {"ledger-path": str(tmp_path / f"{node['agent']}.ledger")}
    table = noised(tmp_path, nodes, run="described")
    assert table["noised"]
    assert table["complete"]
    for site in SITES:  # what the account says is what the node has written down
        assert 0.9 <= LedgerFile(tmp_path / f"{site}.ledger").spent(1e-5).epsilon <= 1.0
    lines = (tmp_path / "hill.ledger").read_text()
    assert "noised sums of a description" in lines
    pooled = pd.read_csv(TABLES / "glm-binomial-1.csv")
    error = 6 * table["count_error"]
    assert abs(table["columns"]["sex"]["categories"]["F"] - (pooled["sex"] == "F").sum()) < error
    with refused(Told.BUDGET, "max-epsilon"):
        noised(tmp_path, nodes, run="again", num_server_rounds=1)


def test_a_noised_description_without_a_schema_is_refused(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path, schema="")
    with pytest.raises(Exception, match="schema"):
        noised(tmp_path, nodes, num_server_rounds=1)


def test_a_private_run_from_a_noised_description_is_charged_beside_it(tmp_path: Path) -> None:
    """One budget holds both, and the run's account names what the description cost.

    The expected total is the closed form of Gaussian mechanisms: mu^2 adds up.
    """
    nodes = own_tables(tmp_path, max_epsilon=2.5, delta=1e-5)
    for node in nodes:
        node["ledger-path"] = str(tmp_path / f"{node['agent']}.ledger")
    table = noised(tmp_path, nodes, run="described")
    schema = tmp_path / "described.toml"
    schema.write_text(schema_of(table))
    for node in nodes:
        node |= {"schema": str(schema), "label-column": "died", "num-partitions": len(nodes)}
        node["partition"] = "none"

    def train(run: str, target: float) -> dict[str, Any]:
        keys = {"algorithm": "dp-fedsgd", "dataset": "csv", "label-column": "died"}
        keys |= {"schema": str(schema), "num-agents": 4, "num-server-rounds": 3}
        keys |= {"data-path": nodes[0]["data-path"], "partition": "iid"}  # for the measures alone
        keys |= {"clip": 1.0, "target-epsilon": target}
        settled = read_config({**keys, "output-dir": str(tmp_path / "trained")})
        execute(InlineGrid(configured_app(), nodes, settled), settled, run)
        folder = tmp_path / "trained" / run
        return {
            name: json.loads((folder / f"{name}.json").read_text())
            for name in ("privacy", "summary")
        }

    found = train("first", 1.5)
    [line] = [one for one in found["privacy"]["accounts"][0]["assumptions"] if "descript" in one]
    assert f"epsilon {table['epsilon']:.6g} at delta 1e-05" in line
    assert found["summary"]["schema"]["described"] == {
        "epsilon": table["epsilon"],
        "delta": table["delta"],
    }
    assert table["epsilon"] == pytest.approx(1.0, abs=1e-6)
    for site in SITES:
        alone = found["privacy"]["agents"][site]["epsilon"]
        both = math.hypot(gaussian_mu(1.0, 1e-5), gaussian_mu(alone, 1e-5))
        spent = LedgerFile(tmp_path / f"{site}.ledger").spent(1e-5).epsilon
        assert spent == pytest.approx(gaussian_epsilon(both, 1e-5), rel=1e-6)
        assert max(1.0, alone) < spent < 2.5
    page = (tmp_path / "trained" / "first" / "statement.html").read_text()
    assert "beside the noised description" in page
    train("second", 2.0)
    assert Told.BUDGET in (tmp_path / "trained" / "second" / "history.jsonl").read_text()
    for site in SITES:
        assert LedgerFile(tmp_path / f"{site}.ledger").spent(1e-5).epsilon <= 2.5


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism of sensitivity / deviation = mu: B. Balle and Y.-X. Wang,
    ICML 2018, theorem 8."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(epsilon: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        return float(first - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0.0, 50.0, xtol=1e-13))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Its inverse."""
    from scipy.optimize import brentq

    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.01, 5.0, xtol=1e-13))
