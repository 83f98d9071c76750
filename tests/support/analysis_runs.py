"""Runs of every analysis on worked tables: one table dealt by site, or each site's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app

from .analysis_sites import TABLES
from .away import Away

SITES = ("hill", "north", "south", "west")
BINOMIAL = json.loads((TABLES / "glm-binomial-1.json").read_text())
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "describe": ("glm-binomial-1", {"by": "sex"}),
    "glm": ("glm-binomial-1", {"formula": BINOMIAL["formula"], "family": "binomial"}),
    "evaluated": (
        "glm-binomial-1",
        {"algorithm": "glm", "formula": "died ~ age + sex + crp", "evaluate": True},
    ),
    "held-out": (
        "glm-binomial-1",
        {
            "algorithm": "glm",
            "formula": "died ~ age + sex + crp",
            "evaluate": True,
            "hold-out": True,
        },
    ),
    "pooled": (
        "cox-1",
        {
            "algorithm": "cox",
            "baseline": "pooled",
            "formula": "age + sex",
            "time-column": "days",
            "event-column": "died",
        },
    ),
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
