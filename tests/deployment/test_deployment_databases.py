"""Deployed nodes with a PostgreSQL each: runs go on without one whose server is away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.extras import extra
from support.paths import ROOT
from support.postgres import Postgres, postgres_server
from support.processes import Deployment
from support.proxy import RecordingProxy
from support.sites import NAMES, nodes, rows, table

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

psycopg: Any = extra("psycopg", "sql")

SITES = dict(zip(NAMES, [rows(80, 1), rows(120, 2), rows(60, 3)], strict=False))
AWAY = "linz"
COHORTS = """
url-env = "RECORDS_OF_{site}"

[cohorts.stroke]
query = "select age, sodium, ward, died from patients order by id"
label-column = "died"
"""


def filled(server: Postgres, database: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Create a database with a site's patients."""
    server.drop(database)
    server.create(database)
    server.execute(
        "create table patients (id int, age float8, sodium float8, ward text, died int)", database
    )
    with psycopg.connect(server.url(database)) as opened:
        values = zip(*columns.values(), strict=True)
        with opened.cursor().copy("copy patients from stdin") as copy:
            for number, row in enumerate(values):
                copy.write_row((number, *row))


def test_a_site_whose_database_is_away_is_absent_and_back_by_itself(
    postgres: Postgres, tmp_path: Path
) -> None:
    """A model is trained while one server is away, and comes back in mid-run; then all describe.

    No password is in what processes write, are called with, or send to the SuperLink.
    """
    public, output = tmp_path / "public.csv", tmp_path / "runs"
    public.write_text(table(rows(50, 4)))
    shared: dict[str, Any] = {"cohort": "stroke", "num-agents": 3, "round-timeout": 120.0}
    shared["output-dir"] = str(output)
    trained: dict[str, Any] = {
        **shared,
        "algorithm": "fed-plt",
        "min-agents": 2,
        "num-server-rounds": 40,
        "tolerance": "none",  # two sites may be at their optimum before the third is back
        "dataset": "csv",
        "data-path": str(public),
        "label-column": "died",
        "partition": "iid",
    }
    with ExitStack() as stack:
        own = stack.enter_context(postgres_server())
        servers = {name: own if name == AWAY else postgres for name in SITES}
        for name, columns in SITES.items():
            filled(servers[name], f"of_{name}", columns)
        urls = {f"RECORDS_OF_{one}": servers[one].url(f"of_{one}") for one in SITES}
        deployment = stack.enter_context(Deployment(tmp_path, environment=urls))
        deployment.start_superlink()
        proxy = stack.enter_context(RecordingProxy(deployment.port))
        for site in nodes(tmp_path / "sites", [""] * 3, dataset="sql"):
            name = str(site["agent"])
            file = tmp_path / f"{name}.toml"
            file.write_text(COHORTS.format(site=name))
            site |= {"data-path": str(file), "state-path": str(tmp_path / f"{name}.state")}
            del site["label-column"]
            deployment.start_node(name, site, superlink_port=proxy.port)
        deployment.wait_for_nodes()
        own.stop()
        run = deployment.submit(ROOT, trained)
        run.wait_for_line(r"round \d+/40 \| 2 agents")
        own.start()
        verdict = run.wait()
        assert verdict.completed, verdict.details
        described = deployment.submit(ROOT, {**shared, "algorithm": "describe"})
        second = described.wait()
        assert second.completed, second.details
        commands = " ".join(one.command for one in deployment.processes.alive())
        log = deployment.nodes[AWAY].log.read_text()
        secrets = [server.password.encode() for server in (postgres, own)]
        for name in SITES:
            if name != AWAY:
                postgres.drop(f"of_{name}")
    history = (output / run.run_id / "history.jsonl").read_text().splitlines()
    participants = [json.loads(line)["participants"] for line in history if "participants" in line]
    assert participants[0] == ["bern", "graz"]
    assert participants[-1] == ["bern", "graz", "linz"]
    assert "nothing is charged" in run.log()
    assert f"{tmp_path / AWAY}.toml: cohort stroke: connection" in log
    found = json.loads((output / described.run_id / "table.json").read_text())
    assert found["site_names"] == list(SITES)
    ages = np.concatenate([one["age"] for one in SITES.values()])
    assert found["columns"]["age"]["n"] == len(ages)
    assert found["columns"]["age"]["mean"] == pytest.approx(ages.mean(), rel=1e-12)
    written = [one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()]
    assert len(written) > 20
    for secret in secrets:
        assert not any(secret in text for text in [*written, commands.encode(), proxy.carried])
    assert b"privet" in proxy.carried  # what is sent can be read here: no TLS, no compression
