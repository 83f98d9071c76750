"""The files that operators copy: they name what exists, and the supervised run gets through."""

from __future__ import annotations

import json
import re
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from prometheus_client import generate_latest

from privet.client_apps import app
from privet.server_apps import read_config
from privet.server_apps.control import Alarms
from privet.server_apps.telemetry import Metrics
from support.paths import ROOT
from support.processes import Deployment

OPERATE = ROOT / "examples" / "operate"
PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text()


def metrics() -> set[str]:
    """Return the names under which a run is seen."""
    told = generate_latest(Metrics(1.0, Alarms(1.0)).registry).decode()
    return set(re.findall(r"^# TYPE (\w+)", told, re.M))


def test_dashboard_and_page_name_metrics_that_exist() -> None:
    board = json.loads((OPERATE / "grafana.json").read_text())
    shown = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    counted = {name.removesuffix("_total") for name in metrics()}
    for text in (shown, PAGE):
        names = set(re.findall(r"privet_\w+", text))
        assert len(names) > 10
        assert {name.removesuffix("_total") for name in names} <= counted


def test_flowers_limits_are_on_the_page() -> None:
    assert f"**{HEARTBEAT_DEFAULT_INTERVAL} seconds to start a ClientApp.**" in PAGE
    assert "**80 seconds of silence of a ServerApp.**" in PAGE
    tls = (ROOT / "docs" / "how-to" / "tls.md").read_text()
    assert "(operate.md#flowers-limits)" in tls


def test_run_configs_are_read() -> None:
    compose = yaml.safe_load((OPERATE / "compose.yaml").read_text())
    (on_the_page,) = re.findall(r"run\.toml <<'END'\n(.*?)END", PAGE, re.S)
    for text in (compose["configs"]["run"]["content"], on_the_page):
        assert read_config(tomllib.loads(text))["resume"] == "auto"


@pytest.mark.parametrize("script", ["supervise.sh", "ray.sbatch"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", str(OPERATE / script)], check=True)


@pytest.mark.parametrize("unit", ["superlink", "supernode"])
def test_units_give_options_that_exist(unit: str) -> None:
    text = (OPERATE / f"{unit}.service").read_text()
    program = ROOT / ".venv" / "bin" / f"flower-{unit}"
    if not program.exists():
        pytest.skip("no environment in the checkout")
    known = subprocess.run([str(program), "--help"], capture_output=True, text=True, check=True)
    (command,) = re.findall(r"ExecStart=(.*(?:\\\n.*)*)", text)
    options = set(re.findall(r"(?<=\s)--[a-z-]+", command))
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", known.stdout))


def test_a_slow_start_is_told_in_the_nodes_log(monkeypatch: Any, caplog: Any) -> None:
    assert 0 < app.process_age() < 1e6
    monkeypatch.setattr(app, "process_age", lambda: 21.0)
    app.warn_of_slow_start()
    assert not caplog.messages  # pytest is no process that Flower started
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/flwr-clientapp"])
    app.warn_of_slow_start()
    assert "needed 21 s to start; Flower gives a process 30 s" in caplog.text


@pytest.mark.slow
@pytest.mark.deployment
def test_the_supervised_run_outlives_its_server_app(tmp_path: Path) -> None:
    """The containers' commands as processes: SuperLink, two SuperNodes, the supervised run."""
    compose = yaml.safe_load((OPERATE / "compose.yaml").read_text())
    config = tomllib.loads(compose["configs"]["run"]["content"])
    config |= {"output-dir": str(tmp_path / "runs"), "num-server-rounds": 4, "metrics-port": 0}
    del config["metrics-host"]
    toml = tmp_path / "run.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    history = "runs/*/history.jsonl"
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        for number in range(2):
            deployment.start_node(str(number), {"partition-id": number, "num-partitions": 2})
        deployment.wait_for_nodes()
        script = ["sh", str(OPERATE / "supervise.sh"), str(ROOT), "dep", str(toml)]
        killed, submitted = False, 0
        while True:
            submitted += 1
            child = deployment.processes.start(script, tmp_path / f"supervised-{submitted}.log")
            while child.poll() is None:
                time.sleep(0.5)
                rounds = sum(len(f.read_text().splitlines()) for f in tmp_path.glob(history))
                if rounds >= 2 and not killed:
                    deployment.kill(*(app.pid for app in deployment.server_apps()))
                    killed = True
            if child.returncode == 0:
                break
            assert submitted < 4
    assert (killed, submitted) == (True, 2)
    (folder,) = (tmp_path / "runs").iterdir()
    lines = (folder / "history.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    assert rounds == [1, 2, 3, 4]
