"""The README's Python blocks run as they stand, and its shell commands exist."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.problems import minimize
from privet.server_apps.config import defaults
from privet.sim.engine import InlineGrid
from privet.sim.ports import free_ports
from privet.sim.processes import Processes
from support.paths import ROOT
from support.wheel import FILES

TEXT = (ROOT / "README.md").read_text()


def test_python_blocks_train_a_model(capsys: Any) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    grid = InlineGrid(names["app"], 4)
    context = next(iter(grid.contexts.values()))
    names["server"](grid, context)
    printed = capsys.readouterr().out
    found = np.array([float(text) for text in re.findall(r"-?\d+\.\d+", printed)])
    problems = [names["problem"](context) for context in grid.contexts.values()]
    assert np.allclose(found, minimize(problems).x, atol=0.05)


SHELL = re.sub(r"```python\n.*?```", "", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("key", sorted(set(re.findall(r"([a-z][a-z-]+)=[\w.\"]+", SHELL))))
def test_keys_in_the_commands_exist(key: str) -> None:
    of_flower = {"num-supernodes", "client-resources-num-cpus", "partition-id", "num-partitions"}
    of_nodes = {"max-epsilon", "delta", "max-clip", "ledger-path"}
    assert key in {*defaults(), *of_flower, *of_nodes}, key


def section(title: str) -> list[str]:
    """Return the shell blocks of a section, as they are copied."""
    (body,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE)
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if not language]


@pytest.mark.slow
@pytest.mark.deployment
def test_pasting_the_deployment_gives_a_private_run(tmp_path: Path) -> None:
    """What stands under "On real nodes" is pasted into one shell; only the ports are changed."""
    script = "".join(section("On real nodes, with TLS and node authentication"))
    for port, free in zip((9092, 9094, 9095), free_ports(3), strict=True):
        assert str(port) in script
        script = script.replace(str(port), str(free))
    app = tmp_path / "checkout"
    app.mkdir()
    for name in FILES:
        shutil.copy2(ROOT / name, app)
    home = {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    with Processes({**os.environ, **home, "OMP_NUM_THREADS": "1"}) as processes:
        command = ["bash", "-c", f"set -e; cd {app}\n{script}"]
        done = processes.call(command, timeout=400.0)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (summary,) = (app / "runs").glob("*/summary.json")
    found = json.loads(summary.read_text())
    assert (found["status"], found["private"]) == ("completed", True)
    assert found["rounds"] == len((app / "ledger.jsonl").read_text().splitlines()) == 3
