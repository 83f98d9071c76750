"""A secure sum on a real deployment that opens without the nodes that were killed in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment.test_deployment_shared_noise import PROJECT, wait_until

from privet.sim.trusting import trusting_nodes
from privet.wire.ring import UNIT
from support.paths import ROOT
from support.processes import LONG, Deployment

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

COUNT, THRESHOLD = 8, 5
BEFORE, AFTER = ("2", "5"), "6"
"""The nodes that are killed before their uploads, keys drawn, and the one that is after its own."""

SERVER = """
from privet.rounds.collect import masked, survivors
from privet.server_apps import server_app

# That all answer a short question of a sum takes a busy machine longer than a node's 30 s.
masked.ENROL_TIMEOUT = survivors.ENROL_TIMEOUT = {wait!r}
app = server_app()
"""
CLIENT = '''
from pathlib import Path
from threading import Event

import numpy as np

from privet.agents import base, masking
from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.wire import ring

FOLDER, BEFORE, AFTER = Path({folder!r}), {before!r}, {after!r}
masked, answered = masking.Masking.payload, base.answered


def payload(self, upload):
    """Write down what is uploaded, or hold it for good."""
    if self.agent in BEFORE:
        (FOLDER / f"held-{{self.agent}}").touch()
        Event().wait()
    plain = ring.encode(dict(upload), len(self.binding.roster)).words
    np.save(FOLDER / f"plain-{{self.agent}}.npy", plain)
    return masked(self, upload)


def held(context, question, agent):
    """Hold what is asked of the survivors for good."""
    if agent == AFTER and question.get("kind") in ("survivors", "shares"):
        (FOLDER / f"held-{{agent}}").touch()
        Event().wait()
    return answered(context, question, agent)


masking.Masking.payload, base.answered = payload, held
app = client_app(None, problem_from_context)
'''


def app_folder(folder: Path, before: tuple[str, ...]) -> Path:
    """Write a Flower app of this library whose clients hold what they are asked at some points."""
    app = folder / "app"
    app.mkdir()
    _, _, keys = (ROOT / "pyproject.toml").read_text().partition("[tool.flwr.app.config]\n")
    (app / "pyproject.toml").write_text(PROJECT + keys.split("\n[")[0])
    (app / "held_server.py").write_text(SERVER.format(wait=LONG))
    client = CLIENT.format(folder=str(folder), before=before, after=AFTER)
    (app / "held_client.py").write_text(client)
    return app


def run_with(
    folder: Path, before: tuple[str, ...], *, completed: bool
) -> tuple[Path, str, list[list[dict[str, Any]]]]:
    """Kill nodes in round 1; return the run's folder, its log, and what each agent was charged."""
    keys = folder / "keys"
    keys.mkdir()
    config: dict[str, Any] = {
        "algorithm": "dp-fedavg",
        "num-agents": COUNT,
        "num-server-rounds": 1,
        "dataset": "synthetic",
        "clip": 1.0,
        "noise-scale": 0.05,
        "secure-sum": True,
        "sum-threshold": THRESHOLD,
        "patience": 0.0,
        "round-timeout": 4 * LONG,  # a node that is killed is noticed by its heartbeats
        "output-dir": str(folder),
    }
    with Deployment(folder) as deployment:
        deployment.start_superlink()
        for own in trusting_nodes(keys, map(str, range(COUNT)), 1):
            pins = {key: own[key] for key in own if key not in ("trust", "trust-colluders")}
            ledger = str(folder / f"ledger-{own['agent']}.jsonl")
            limits = {"max-epsilon": 1e6, "delta": 1e-5, "ledger-path": ledger}
            deployment.start_node(own["agent"], {**pins, **limits, "least-trusted": 4})
        deployment.wait_for_nodes()
        run = deployment.submit(app_folder(folder, before), config)
        for name in before:
            held = folder / f"held-{name}"
            wait_until(held.exists, LONG, f"{name} masked no upload: {run.log()[-3000:]}")
            deployment.kill_node(name)
        if completed:
            held = folder / f"held-{AFTER}"
            wait_until(held.exists, LONG, f"no list of survivors: {run.log()[-3000:]}")
            deployment.kill_node(AFTER)
        assert run.wait().completed is completed, run.log()[-3000:]
        log = run.log()
        ledgers = [folder / f"ledger-{name}.jsonl" for name in range(COUNT)]
        charged = [[json.loads(line) for line in one.read_text().splitlines()] for one in ledgers]
        return folder / run.run_id, log, charged


def test_three_killed_of_eight_and_the_sum_of_those_who_replied_is_exact(tmp_path: Path) -> None:
    folder, log, charged = run_with(tmp_path, BEFORE, completed=True)
    (done,) = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    left = [str(name) for name in range(COUNT) if str(name) not in BEFORE]
    assert done["participants"] == left, log[-3000:]
    assert set(done["failures"]) == set(BEFORE)
    plain = [np.load(tmp_path / f"plain-{name}.npy") for name in left]
    exact = np.add.reduce(plain).view(np.int64)
    with np.load(folder / "model.npz") as saved:
        (model,) = (saved[name] for name in saved.files if saved[name].dtype.kind == "f")
    mean = (exact / UNIT / len(left)).astype(model.dtype)
    assert np.array_equal(model.reshape(-1), mean)
    assert [len(entries) for entries in charged] == [1] * COUNT  # the killed ones among them


def test_fewer_left_than_the_threshold_open_nothing(tmp_path: Path) -> None:
    _, log, charged = run_with(tmp_path, ("0", "2", "4", "5"), completed=False)
    assert f"sum-threshold = {THRESHOLD}: 4 agents are left to open the sum" in log
    assert [len(entries) for entries in charged] == [1] * COUNT
