"""Asynchronous runs on a real deployment: slow nodes, a killed one, a killed server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.data.problem import federation_from_config
from privet.kernel import LedgerFile
from privet.problems.reference import minimize
from privet.server_apps.config import read_config
from privet.sim.recorded import replay_run
from support.paths import ROOT
from support.processes import LONG, Deployment, Run
from support.run_files import history_so_far

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

FAST, SLOW = 1.0, 10.0
"""Seconds that a task takes beyond what Flower needs for it."""
CLIENT = '''
"""Computes like Privet's own ClientApp, after a pause, and counts what it computes."""

import time

from privet.agents import message_round
from privet.client_apps import client_app
from privet.data import problem_from_context

granted = message_round.MessageRound.grant


def grant(self):
    """Count the task, which has been charged by now, and take its time."""
    config = self._context.node_config
    with open(config["counts-file"], "a") as file:
        file.write(f"{self.instruction.round}\\n")
    time.sleep(config["pause"])
    return granted(self)


message_round.MessageRound.grant = grant
app = client_app(None, problem_from_context)
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "paused"
version = "0.1.0"
description = "Nodes of different speeds"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "privet"

[tool.flwr.app.components]
serverapp = "paused_server:app"
clientapp = "paused_client:app"

[tool.flwr.app.config]
"""
DATA: dict[str, Any] = {
    "dataset": "synthetic",
    "features": 5,
    "examples-per-agent": 50,
    "asynchronous": True,
    "recover-by-name": "yes",  # the nodes have no keys
    "patience": 120.0,
}
STEADY: dict[str, Any] = {
    **DATA,
    "num-agents": 6,
    "num-server-rounds": 300,
    "regularizer-weight": 2.0,
    "strong-convexity": 2.0,
    "smoothness": 4.0,
    "rho": 8.0**-0.5,
    "local-epochs": 30,
    "buffer": 2,
    "tolerance": 1e-11,
}
PRIVATE: dict[str, Any] = {
    **DATA,
    "num-agents": 3,
    "num-server-rounds": 50,
    "buffer": 1,
    "max-uploads": 3,
    "local-solver": "noisy-gd",
    "clip": 0.5,
    "row-norm": 4.0,
    "noise-variance": 0.01,
}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the folder of a Flower app whose nodes are slow by their own config."""
    folder = tmp_path / "app"
    folder.mkdir()
    _, _, keys = (ROOT / "pyproject.toml").read_text().partition("[tool.flwr.app.config]\n")
    (folder / "pyproject.toml").write_text(PROJECT + keys.split("\n[")[0])
    (folder / "paused_server.py").write_text((ROOT / "flower_server.py").read_text())
    (folder / "paused_client.py").write_text(CLIENT)
    return folder


def start(deployment: Deployment, pauses: list[float], **own: Callable[[str], Any]) -> None:
    deployment.start_superlink()
    for number, pause in enumerate(pauses):
        name = str(number)
        more = {key.replace("_", "-"): make(name) for key, make in own.items()}
        counts = str(deployment.home / f"counts-{name}")
        node = {"partition-id": number, "num-partitions": len(pauses), "pause": pause}
        deployment.start_node(name, {**node, "counts-file": counts, **more})
    deployment.wait_for_nodes()


def computed(home: Path, name: str) -> list[int]:
    """Return the versions whose tasks a node began to compute."""
    file = home / f"counts-{name}"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(condition: Callable[[], bool], run: Run) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, run.log()[-3000:]
        time.sleep(0.2)


def test_slow_and_killed_nodes_and_a_killed_server_leave_the_limit_exact(
    tmp_path: Path, app: Path
) -> None:
    """Six nodes, two of them ten times slower, one killed and brought back; the server resumed."""
    with Deployment(tmp_path) as deployment:
        start(deployment, [SLOW, SLOW, *[FAST] * 4])
        config = {**STEADY, "output-dir": str(tmp_path)}
        first = deployment.submit(app, config)
        folder = tmp_path / first.run_id
        wait_until(lambda: len(history_so_far(folder)) >= 3, first)
        before = len(computed(tmp_path, "2"))
        wait_until(lambda: len(computed(tmp_path, "2")) > before, first)
        deployment.kill_node("2")  # while it computes
        at = len(history_so_far(folder))
        wait_until(lambda: len(history_so_far(folder)) >= at + 2, first)
        deployment.restart_node("2")
        wait_until(lambda: len(history_so_far(folder)) >= at + 5, first)
        deployment.kill(*(process.pid for process in deployment.server_apps()))
        second = deployment.submit(app, {**config, "resume": str(folder)})
        verdict = second.wait()
        assert verdict.completed, verdict.log[-3000:]
        resumed = tmp_path / second.run_id
    rounds = history_so_far(resumed)
    assert [done["round"] for done in rounds] == list(range(1, len(rounds) + 1))
    assert rounds[: at + 5] == history_so_far(folder)[: at + 5]
    clocks = [done["clock"] for done in rounds]
    assert clocks == sorted(clocks)
    assert "2" in {name for done in rounds[-8:] for name in done["participants"]}
    ages = {name: [] for name in map(str, range(6))}
    for done in rounds:
        for name, version in zip(done["participants"], done["versions"], strict=True):
            ages[name].append(done["round"] - version)
    assert len(ages["0"]) < len(ages["5"])
    assert np.mean(ages["0"]) > np.mean(ages["5"])
    best = minimize(federation_from_config(read_config(config), 6).problems, tolerance=1e-12).x
    with np.load(resumed / "model.npz") as file:
        assert np.linalg.norm(file["x"] - best) < 1e-6 * np.linalg.norm(best)
    assert replay_run(resumed).max_abs_error == 0.0


def test_a_server_killed_with_tasks_out_forgets_no_charge_and_needs_nobody(
    tmp_path: Path, app: Path
) -> None:
    """What was charged and never folded counts: in the ledgers, in the account, against the cap."""
    budget = {
        "max_epsilon": lambda _: 1e6,
        "delta": lambda _: 1e-5,
        "ledger_path": lambda name: str(tmp_path / f"ledger-{name}.jsonl"),
    }
    config = {**PRIVATE, "output-dir": str(tmp_path / "runs"), "resume": "auto"}
    with Deployment(tmp_path) as deployment:
        start(deployment, [SLOW, FAST, FAST], **budget)
        first = deployment.submit(app, config)
        # Each agent has a task, the slow one in any case a task that is out.
        wait_until(lambda: all(computed(tmp_path, name) for name in "012"), first)
        deployment.kill(*(process.pid for process in deployment.server_apps()))
        assert not first.wait().completed
        verdict = deployment.submit(app, config).wait()  # as a supervisor does
        assert verdict.completed, verdict.log[-3000:]
    (folder,) = (tmp_path / "runs").glob("*/")
    rounds = history_so_far(folder)
    assert [done["round"] for done in rounds] == list(range(1, len(rounds) + 1))
    folded = [name for done in rounds for name in done["participants"]]  # some in one round
    assert folded.count("0") == 2  # and one that was lost
    account = json.loads((folder / "privacy.json").read_text())["agents"]
    for name in "012":
        ledger = tmp_path / f"ledger-{name}.jsonl"
        charged = len(ledger.read_text().splitlines())
        assert folded.count(name) <= charged == len(computed(tmp_path, name)) == 3
        spent = LedgerFile(ledger).verify().running.totals.epsilon(1e-5)
        assert account[name]["epsilon"] == pytest.approx(spent, rel=1e-12)


def test_ledgers_count_the_tasks_that_were_computed(tmp_path: Path, app: Path) -> None:
    """A node is killed while it computes: it has paid, and the run says so."""
    budget = {
        "max_epsilon": lambda _: 1e6,
        "delta": lambda _: 1e-5,
        "ledger_path": lambda name: str(tmp_path / f"ledger-{name}.jsonl"),
    }
    with Deployment(tmp_path) as deployment:
        start(deployment, [SLOW, FAST, FAST], **budget)
        run = deployment.submit(app, {**PRIVATE, "output-dir": str(tmp_path)})
        folder = tmp_path / run.run_id
        wait_until(lambda: len(computed(tmp_path, "0")) == 2, run)
        deployment.kill_node("0")
        deployment.restart_node("0")
        verdict = run.wait()
        assert verdict.completed, verdict.log[-3000:]
    account = json.loads((folder / "privacy.json").read_text())
    assert account["private"]
    folded = [name for done in history_so_far(folder) for name in done["participants"]]
    assert {name: folded.count(name) for name in "012"} == {"0": 2, "1": 3, "2": 3}
    for name in "012":
        ledger = tmp_path / f"ledger-{name}.jsonl"
        charged = ledger.read_text().splitlines()
        assert len(charged) == len(computed(tmp_path, name)) == 3
        spent = LedgerFile(ledger).verify().running.totals.epsilon(1e-5)
        assert account["agents"][name]["epsilon"] == pytest.approx(spent, rel=1e-12)
