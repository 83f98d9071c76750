"""A whole run in this process, from a run config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.client_apps import client_app
from privet.datasets import problem_from_context
from privet.server_apps import Finished, execute, read_config
from privet.sim.engine import InlineGrid


def run_inline(raw: Mapping[str, Any], run_id: str) -> Finished:
    """Run what a run config asks for on the in-process engine.

    Raises
    ------
    ConfigError, RunError
        As ``privet.server_apps.execute``.
    """
    config = read_config(raw)
    app = client_app(None, problem_from_context)
    grid = InlineGrid(app, int(config["num-agents"]), config)
    return execute(grid, raw, run_id)
