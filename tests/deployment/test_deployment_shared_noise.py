"""Noise shared out on a real deployment, with a node killed between its mask and its upload."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privet.kernel import LedgerFile
from privet.sim.trusting import trusting_nodes
from support.paths import ROOT
from support.processes import Deployment

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

COUNT, ROUNDS, COLLUDERS = 5, 3, 1
VICTIM, KILLED_IN = "2", 2

CLIENT = '''
import time
from pathlib import Path

from privet.agents import masking
from privet.client_apps import client_app
from privet.data import problem_from_context

masked = masking.Masking.payload


def payload(self, upload):
    """Mask, and then hold the upload of the chosen agent and round for good."""
    words = masked(self, upload)
    if (self.agent, self.binding.round) == ({agent!r}, {round}) and self.binding.attempt == 1:
        Path({marker!r}).touch()
        time.sleep(600)
    return words


masking.Masking.payload = payload
app = client_app(None, problem_from_context)
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "held"
version = "0.1.0"
description = "Holds one upload"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "privet"

[tool.flwr.app.components]
serverapp = "held_server:app"
clientapp = "held_client:app"

[tool.flwr.app.config]
"""


def app_folder(folder: Path, marker: Path) -> Path:
    """Write a Flower app of this library whose client waits between a mask and its upload."""
    folder.mkdir()
    project = (ROOT / "pyproject.toml").read_text()
    _, _, keys = project.partition("[tool.flwr.app.config]\n")
    (folder / "pyproject.toml").write_text(PROJECT + keys.split("\n[")[0])
    (folder / "held_server.py").write_text((ROOT / "flower_server.py").read_text())
    client = CLIENT.format(agent=VICTIM, round=KILLED_IN, marker=str(marker))
    (folder / "held_client.py").write_text(client)
    return folder


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_node_killed_between_mask_and_upload_has_paid_and_so_have_the_others(
    tmp_path: Path,
) -> None:
    """Two attempts at round 2: of six agents, and of four. Nobody's account misses one."""
    marker = tmp_path / "masked"
    app = app_folder(tmp_path / "app", marker)
    keys = tmp_path / "keys"
    keys.mkdir()
    config: dict[str, Any] = {
        "algorithm": "dp-fedsgd",
        "num-agents": COUNT,
        "num-server-rounds": ROUNDS,
        "dataset": "synthetic",
        "clip": 1.0,
        "noise-scale": 0.05,
        "secure-sum": True,
        "noise-sharing": True,
        "round-timeout": 300.0,
        "output-dir": str(tmp_path),
    }
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        for own in trusting_nodes(keys, map(str, range(COUNT)), COLLUDERS):
            ledger = str(tmp_path / f"ledger-{own['agent']}.jsonl")
            limits = {"max-epsilon": 100.0, "delta": 1e-5, "ledger-path": ledger}
            deployment.start_node(own["agent"], {**own, **limits})
        deployment.wait_for_nodes()
        run = deployment.submit(app, config)
        wait_until(marker.exists, 200, f"nobody masked an upload: {run.log()[-3000:]}")
        deployment.kill_node(VICTIM)
        assert run.wait(400).completed, run.log()[-3000:]
        folder = tmp_path / run.run_id
    rounds = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert len(rounds) == ROUNDS
    # It and another one left; on a busy machine more may be late.
    assert 3 <= len(rounds[1]["participants"]) <= COUNT - 2
    assert VICTIM not in [*rounds[1]["participants"], *rounds[2]["participants"]]
    account = json.loads((folder / "privacy.json").read_text())
    assert account["private"]
    assert f"at most {COLLUDERS} other agents" in account["reason"]
    for number in range(COUNT):
        name = str(number)
        ledger = tmp_path / f"ledger-{name}.jsonl"
        totals = LedgerFile(ledger).verify().running.totals
        charged = [json.loads(line)["release"] for line in ledger.read_text().splitlines()]
        assert totals.colluders == COLLUDERS
        # All paid for the attempt that came to nothing, the dead node among them.
        used = sum(name in done["participants"] for done in rounds)
        assert len(charged) > used
        assert sum(release["agents"] == COUNT for release in charged) >= 2
        # What the run says of an agent, it has released at most; to the bit where it answered.
        said = account["agents"][name]["epsilon"]
        assert said >= totals.epsilon(1e-5)
        assert account["accounts"][0]["epsilon"] >= said
        if name in rounds[2]["participants"]:
            assert said == totals.epsilon(1e-5)
