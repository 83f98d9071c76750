"""Analyses by real messages: engines, masks, sites that are away, resumed runs, nodes' rules."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from privet.core import RunError
from privet.kernel import LedgerFile, Told
from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, run_inline
from privet.wire import ENROL
from support.analysis_sites import PATIENTS, TABLES, own_tables
from support.told import refused

SITES = ("hill", "north", "south", "west")
BINOMIAL = json.loads((TABLES / "glm-binomial-1.json").read_text())
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "describe": ("glm-binomial-1", {"by": "sex"}),
    "glm": ("glm-binomial-1", {"formula": BINOMIAL["formula"], "family": "binomial"}),
    "cox": ("cox-1", {"time-column": "days", "event-column": "died"}),
    "kaplan-meier": (
        "cox-1",
        {"time-column": "days", "event-column": "died", "group-column": "sex"},
    ),
}


def config(folder: Path, kind: str, **more: Any) -> dict[str, Any]:
    table, keys = KINDS[kind]
    return {
        "algorithm": kind,
        "data-path": str(TABLES / f"{table}.csv"),
        "id-column": "site",
        "output-dir": str(folder / "runs"),
        **keys,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


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


class Away(InlineGrid):
    """Nodes of which one does not answer from its n-th message of training on, until another."""

    def __init__(
        self, nodes: list[dict[str, Any]], config: Mapping[str, Any], first: int, last: int
    ) -> None:
        super().__init__(configured_app(), nodes, config)
        self.first, self.last, self.asked = first, last, 0
        self.node = list(self.node_configs)[2]

    def deliver(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id == self.node and message.metadata.message_type != ENROL:
            self.asked += 1
            if self.first <= self.asked <= self.last:
                return self.not_connected(message)
        return super().deliver(message)


def analysed(
    folder: Path, nodes: list[dict[str, Any]], kind: str = "glm", *, run: str = "run", **more: Any
) -> dict[str, Any]:
    """The table of an analysis of nodes' own tables."""
    away = more.pop("away", None)
    keys = {"num_agents": len(nodes), "schema": str(folder / "schema.toml"), **more}
    if not (folder / "schema.toml").exists():
        del keys["schema"]
    raw = config(folder, kind, **keys)
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Away(nodes, settled, *away) if away else InlineGrid(configured_app(), nodes, settled)
    return dict(execute_analysis(grid, settled, run).result.table)


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
    nodes = own_tables(tmp_path, schema=PATIENTS + times, name=name)
    table = analysed(tmp_path, nodes, kind, away=(1, 10**6), num_server_rounds=14, **horizon)
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


def test_a_node_with_other_categories_is_turned_away_by_name(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    other = PATIENTS.replace('["F", "M"]', '["F", "M", "X"]')
    (tmp_path / "other.toml").write_text(other)
    nodes[3]["schema"] = str(tmp_path / "other.toml")
    with pytest.raises(Exception, match=r"west|sex"):
        analysed(tmp_path, nodes, num_server_rounds=2)


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
