"""Deployed nodes with tables of their own: what their columns mean is agreed before round 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.server_apps import execute, read_config
from privet.server_apps.model_file import load_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from support.paths import ROOT
from support.processes import Deployment
from support.sites import nodes, rows, table

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

PERMUTED = ("died", "ward", "sodium", "age")


def test_a_permuted_table_is_put_in_order_and_another_one_turned_away(tmp_path: Path) -> None:
    """The model is bit for bit that of one process, in which the second site is in order."""
    public = tmp_path / "public.csv"
    public.write_text(table(rows(50, 4)))
    config: dict[str, Any] = {
        "num-agents": 3,
        "min-agents": 2,
        "num-server-rounds": 3,
        "round-timeout": 120.0,
        "dataset": "csv",
        "data-path": str(public),
        "label-column": "died",
        "partition": "iid",
    }
    bern, graz, linz = rows(80, 1), rows(120, 2), rows(60, 3)
    tables = [table(bern), table(graz, PERMUTED), table(linz, names={"sodium": "creatinine"})]
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        for site in nodes(tmp_path / "sites", tables):
            kept = {"state-path": str(tmp_path / f"{site['agent']}.state")}
            deployment.start_node(str(site["agent"]), {**site, **kept})
        deployment.wait_for_nodes()
        output = tmp_path / "runs"
        run = deployment.submit(ROOT, {**config, "output-dir": str(output)})
        verdict = run.wait()
        assert verdict.completed, verdict.details
        log = deployment.nodes["linz"].log.read_text()
    folder = output / run.run_id
    notes = json.loads((folder / "history.jsonl").read_text().splitlines()[0])
    assert notes["participants"] == ["bern", "graz"]
    assert "agent linz: this node has creatinine, the others sodium" in log
    line = "agent linz: has creatinine, the coordinator's data sodium"
    assert any(line in one for one in notes["notes"])
    straight = nodes(tmp_path / "straight", [table(bern), table(graz)])
    resolved = read_config({**config, "num-agents": 2, "output-dir": str(tmp_path / "inline")})
    expected = execute(InlineGrid(configured_app(), straight, resolved), resolved, "inline")
    ours, theirs = load_model(folder), load_model(expected.folder)
    assert ours.arrays["x"].tobytes() == theirs.arrays["x"].tobytes()
    assert ours.encoding is not None
    assert ours.encoding.origin.tobytes() == theirs.encoding.origin.tobytes()
