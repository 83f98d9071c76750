"""What stands under "Deploy with TLS" is pasted into one shell; only the ports are changed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from support.keeper import Processes, free_ports
from support.paths import ROOT
from support.wheel import APP

PAGE = (ROOT / "docs" / "how-to" / "tls.md").read_text()


@pytest.mark.slow
@pytest.mark.deployment
def test_pasting_the_deployment_gives_a_private_run(tmp_path: Path) -> None:
    (body,) = re.findall(r"^## The commands\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    script = "".join(re.findall(r"^```\n(.*?)^```$", body, re.DOTALL | re.MULTILINE))
    for port, free in zip((9092, 9094, 9095), free_ports(3), strict=True):
        assert str(port) in script
        script = script.replace(str(port), str(free))
    app = tmp_path / "checkout"
    app.mkdir()
    for name in APP:
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
