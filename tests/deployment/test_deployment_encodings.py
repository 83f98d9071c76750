"""Deployed nodes with tables of their own: what their columns mean is agreed before round 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.server_apps import execute, read_config
from privet.server_apps.model_file import load_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from support.paths import ROOT
from support.processes import Deployment, Run
from support.sites import PERMUTED as PERMUTED_SCHEMA
from support.sites import SCHEMA, nodes, rows, table

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


def started(deployment: Deployment, folder: Path, sites: list[dict[str, Any]]) -> None:
    """Start a SuperLink and a node for each site, under the site's name."""
    deployment.start_superlink()
    for site in sites:
        name = str(site["agent"])
        deployment.start_node(name, {**site, "state-path": str(folder / f"{name}.state")})
    deployment.wait_for_nodes()


def notes_of(run: Run, output: Path) -> tuple[dict[str, Any], Path]:
    """Wait for a run, and return what its history says of round 1, and its folder."""
    verdict = run.wait()
    assert verdict.completed, verdict.details
    folder = output / run.run_id
    first: dict[str, Any] = json.loads((folder / "history.jsonl").read_text().splitlines()[0])
    return first, folder


def test_labels_that_a_site_spells_otherwise_are_mended_and_read_in_the_next_run(
    tmp_path: Path,
) -> None:
    """The nodes go on: what they have read of a file counts until it changes."""
    public, output = tmp_path / "public.csv", tmp_path / "runs"
    public.write_text(table(rows(50, 4)))
    config: dict[str, Any] = {
        "num-agents": 4,
        "min-agents": 2,
        "num-server-rounds": 2,
        "round-timeout": 120.0,
        "dataset": "csv",
        "data-path": str(public),
        "label-column": "died",
        "partition": "iid",
        "output-dir": str(output),
    }
    own = [rows(count, seed) for count, seed in ((80, 1), (120, 2), (60, 3), (70, 5))]
    words = {"died=0": "nein", "died=1": "ja"}
    others = {"ward=a": "c", "ward=b": "d"}
    tables = [table(own[0]), table(own[1]), table(own[2], values=words)]
    sites = nodes(tmp_path / "sites", [*tables, table(own[3], values=others)])
    with Deployment(tmp_path) as deployment:
        started(deployment, tmp_path, sites)
        first, _ = notes_of(deployment.submit(ROOT, config), output)
        logs = {name: node.log.read_text() for name, node in deployment.nodes.items()}
        for site, columns in zip(sites, own, strict=True):
            negated = {**columns, "age": [120.0 - one for one in columns["age"]]}
            Path(site["data-path"]).write_text(table(negated))
        second, folder = notes_of(deployment.submit(ROOT, config), output)
    assert first["participants"] == ["bern", "graz"]
    lines = {
        "linz": "the classes ja, nein of died, the coordinator's data the classes 0, 1 of died",
        "nice": "ward = c, d, the coordinator's data ward = a, b",
    }
    for name, line in lines.items():
        assert any(f"agent {name}: has {line}" in one for one in first["notes"])
        ours = line.replace("the coordinator's data", "the others")
        assert f"agent {name}: this node has {ours}" in logs[name]
    assert second["participants"] == ["bern", "graz", "linz", "nice"]
    resolved = read_config({**config, "output-dir": str(tmp_path / "inline")})
    expected = execute(InlineGrid(configured_app(), sites, resolved), resolved, "inline")
    ours, theirs = load_model(folder), load_model(expected.folder)
    assert ours.arrays["x"].tobytes() == theirs.arrays["x"].tobytes()
    assert ours.encoding is not None
    ages = np.concatenate([120.0 - np.array(one["age"]) for one in own])
    assert ours.encoding.origin[0] == pytest.approx(ages.mean(), rel=1e-12)


def test_private_nodes_of_other_schemas_or_none_are_turned_away_before_a_charge(
    tmp_path: Path,
) -> None:
    public, schema, output = (tmp_path / one for one in ("public.csv", "schema.toml", "runs"))
    public.write_text(table(rows(50, 4)))
    schema.write_text(SCHEMA)
    reversed_classes = SCHEMA.replace('["0", "1"]', '["1", "0"]')
    wider = SCHEMA.replace("120", "150")
    own = [rows(count, seed) for count, seed in ((80, 1), (120, 2), (60, 3), (70, 5))]
    tables = [table(own[0]), table(own[1], PERMUTED), table(own[2]), table(own[3])]
    schemas = (SCHEMA, PERMUTED_SCHEMA, reversed_classes, wider)
    sites = nodes(tmp_path / "sites", tables, schemas)
    sites.append({**sites[3], "agent": "wien", "partition-id": 4})
    del sites[4]["schema"]
    for site in sites:
        site |= {"max-epsilon": 9.0, "delta": 1e-5, "num-partitions": 5}
        site["ledger-path"] = str(tmp_path / f"{site['agent']}.ledger")
    config: dict[str, Any] = {
        "num-agents": 5,
        "min-agents": 2,
        "num-server-rounds": 2,
        "round-timeout": 120.0,
        "target-epsilon": 8.0,
        "clip": 1.0,
        "local-solver": "noisy-gd",
        "row-norm": 3.0,
        "dataset": "csv",
        "data-path": str(public),
        "schema": str(schema),
        "label-column": "died",
        "partition": "iid",
        "output-dir": str(output),
    }
    with Deployment(tmp_path) as deployment:
        started(deployment, tmp_path, sites)
        run = deployment.submit(ROOT, config)
        first, _ = notes_of(run, output)
        logs = {name: node.log.read_text() for name, node in deployment.nodes.items()}
        superlink = (tmp_path / "superlink.log").read_text() + run.log()
    assert first["participants"] == ["bern", "graz"]
    charged = {site["agent"] for site in sites if Path(site["ledger-path"]).exists()}
    assert charged == {"bern", "graz"}
    own_lines = {
        "linz": "this node has the classes 1, 0 of died, the others the classes 0, 1 of died",
        "nice": "this node has the range [0, 150] of age, the others the range [0, 120] of age",
        "wien": "privet data FILE --schema OUT writes a first one",
    }
    for name, line in own_lines.items():
        assert line in logs[name]
    for name in ("linz", "nice"):
        assert any(f"agent {name}: has another encoding" in one for one in first["notes"])
    told = [*first["notes"], superlink]
    assert not any("classes 1, 0" in one or "[0, 150]" in one for one in told)
