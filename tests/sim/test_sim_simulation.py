"""A simulation from the command line: the SuperLink's verdict comes back, nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import simulation
from support.paths import ROOT
from support.simulation import SimulationError, run_simulation

APP = ROOT / "tests" / "support" / "tiny_app"

INTERRUPTED = f"""
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {str(ROOT / "tests")!r})
from support.simulation import run_simulation
run_simulation({str(APP)!r}, num_supernodes=2, run_config={{"rounds": 100000}},
               on_line=lambda line: print(line, flush=True))
"""


OWN_LOOP = """
import os
from pathlib import Path
import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from privet.client_apps import LoopParticipant, initial_arrays
from privet.strategies import FedPLT

participant = LoopParticipant("fed-plt", {"w": np.zeros(2)}, lambda context: 1)
client = participant.app()
server = ServerApp()

@client.train()
def train(message, context):
    weights = {"w": np.zeros(2)}
    with participant.round(message, context, weights) as local:
        for _ in range(local.steps):
            gradients = {"w": weights["w"] - context.node_config["partition-id"]}
            local.correct(weights, gradients)
            weights["w"] -= local.step_size * gradients["w"]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    Path(context.run_config["message"], str(os.getpid())).write_text(seen)
    return local.reply()

@server.main()
def main(grid, context):
    strategy = FedPLT(num_agents=10, rho=1.0, step_size=0.5)
    strategy.start(grid, initial_arrays({"w": np.zeros(2)}), num_rounds=3)
"""

SERVER_ALONE = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from privet.strategies import FedPLT

server = ServerApp()

@server.main()
def main(grid, context):
    start = ArrayRecord({"coefficients": Array(np.zeros(5))})
    FedPLT(fraction_train=0.5, local_epochs=5).start(grid, start, num_rounds=20)
"""


def descendants(root: int) -> dict[int, str]:
    """Return pid -> start time and command of a process tree, by ps."""
    listing = subprocess.check_output(["ps", "-wweo", "pid=,ppid=,stat=,lstart=,args="], text=True)
    rows = [line.split(None, 3) for line in listing.splitlines()]
    living = {int(pid): (int(parent), rest) for pid, parent, stat, rest in rows if stat[0] != "Z"}
    tree = {root}
    while more := {pid for pid, (parent, _) in living.items() if parent in tree} - tree:
        tree |= more
    return {pid: living[pid][1] for pid in tree - {root} if pid in living}


def survivors(pids: dict[int, str]) -> dict[int, str]:
    """Return those of a former process tree that still run, told from pids given out again."""
    listing = subprocess.check_output(["ps", "-wweo", "pid=,stat=,lstart="], text=True)
    rows = [line.split(None, 2) for line in listing.splitlines()]
    living = {int(pid): start for pid, stat, start in rows if stat[0] != "Z"}
    return {p: c for p, c in pids.items() if p in living and c.startswith(living[p].strip())}


class Watch:
    """Collects the JSON lines of a run and every process below this one while it prints them."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.processes: dict[int, str] = {}
        self.others = descendants(os.getpid())

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        found = descendants(os.getpid())
        self.processes |= {pid: found[pid] for pid in found.keys() - self.others.keys()}
        if line.startswith("{"):
            self.records.append(json.loads(line))


@pytest.mark.ray
def test_a_completed_run_streams_its_log_and_leaves_no_process(tmp_path: Path) -> None:
    watch = Watch()
    outcome = run_simulation(
        APP, num_supernodes=3, run_config={"nodes": 3}, flwr_home=tmp_path, on_line=watch
    )
    assert outcome.completed
    assert (outcome.status, outcome.details) == ("finished:completed", "")
    assert int(outcome.run_id) > 0
    assert watch.records[0] == {"nodes": 3}
    for number, record in enumerate(watch.records[1:], start=1):
        assert record["round"] == number
        assert record["answers"] == [{"partition": p, "calls": number} for p in range(3)]
    assert len(watch.records) == 3
    assert any("raylet" in command for command in watch.processes.values())
    assert any("flower-superlink" in command for command in watch.processes.values())
    assert not survivors(watch.processes)


@pytest.mark.slow
@pytest.mark.ray
def test_a_server_that_raises_is_a_failed_run(tmp_path: Path) -> None:
    watch = Watch()
    message = 'the "model" \u2260 finite\\n'
    config = {"rounds": 0, "message": message}
    outcome = run_simulation(APP, num_supernodes=2, run_config=config, on_line=watch)
    assert not outcome.completed
    assert outcome.status == "finished:failed"
    assert message in outcome.details
    assert any("RuntimeError" in line for line in watch.lines)
    assert not any("\x1b" in line for line in watch.lines)
    assert not survivors(watch.processes)


@pytest.mark.ray
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_leaves_no_process(number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert any(line.startswith('{"round": 1,') for line in caller.stdout)
        processes = descendants(caller.pid)
        assert any("raylet" in command for command in processes.values())
        caller.send_signal(number)
        caller.wait(300.0)
    assert caller.returncode == -number
    # Whoever is killed cannot wait for the others to end; its keeper ends them.
    deadline = time.monotonic() + (0.0 if number is signal.SIGINT else 120.0)
    while (left := survivors(processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


@pytest.mark.slow
@pytest.mark.ray
def test_make_run_prints_the_rounds_and_the_figures_of_the_run(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, str(ROOT / "scripts" / "simulate.py")]
    text = subprocess.check_output(command, text=True, env=environment, cwd=tmp_path)
    assert 10 < text.count("\nround ") < 40
    assert "(stopped by tolerance)" in text
    assert "\ntest accuracy: 0.9825" in text
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"\nrun folder: {folder}\n" in text


def test_what_flower_refuses_is_reported_in_one_line(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    text = (APP / "pyproject.toml").read_text().replace("tiny_server:app", "no_such_module:app")
    (app / "pyproject.toml").write_text(text)
    watch = Watch()
    with pytest.raises(SimulationError, match="no_such_module") as caught:
        run_simulation(app, num_supernodes=2, on_line=watch)
    assert "\n" not in str(caught.value)
    assert not survivors(watch.processes)


def app_with(folder: Path, module: str, **objects: str) -> Path:
    """Return the tiny app with some of its objects, ``server`` or ``client``, of another module."""
    app = folder / "app"
    app.mkdir()
    (app / "other.py").write_text(module)
    text = (APP / "pyproject.toml").read_text()
    for kind, name in objects.items():
        text = text.replace(f"tiny_{kind}:app", f"other:{name}")
    (app / "pyproject.toml").write_text(text)
    for file in APP.glob("*.py"):
        shutil.copy(file, app)
    return app


@pytest.mark.slow
@pytest.mark.ray
def test_a_server_swapped_alone_says_what_the_client_lacks(tmp_path: Path) -> None:
    """In the line that ends the run, and once before it: nothing of Ray's and no traceback."""
    watch = Watch()
    app = app_with(tmp_path, SERVER_ALONE, server="server")
    outcome = run_simulation(app, num_supernodes=4, on_line=watch)
    assert not outcome.completed
    assert "this ClientApp is not Privet's: use client_app(...), Loop" in outcome.details
    (noted,) = (line for line in watch.lines if "turned away: nodes" in line)
    assert "and 1 more: this ClientApp is not Privet's" in noted
    before = watch.lines[: watch.lines.index(noted)]
    assert not [line for line in before if "Traceback" in line or "RayBackend" in line]
    assert not [line for line in watch.lines if "No query function" in line]
    assert not survivors(watch.processes)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("gpus", [1, 0])
def test_a_share_of_a_gpu_limits_how_many_agents_run_at_a_time(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training loops in Flower's simulation on a GPU that is declared, not there."""
    app, seen = app_with(tmp_path, OWN_LOOP, server="server", client="client"), tmp_path / "seen"
    seen.mkdir()
    usual = simulation._command

    def command(*asked: Any) -> list[str]:
        return [
            f"{word} client-resources-num-gpus=0.25 init-args-num-gpus={gpus}"
            if word.startswith("num-supernodes")
            else word
            for word in usual(*asked)
        ]

    monkeypatch.setattr(simulation, "_command", command)
    watch = Watch()
    config = {"message": str(seen)}
    outcome = run_simulation(app, num_supernodes=10, run_config=config, num_cpus=6, on_line=watch)
    assert not survivors(watch.processes)
    visible = [file.read_text() for file in seen.iterdir()]
    if gpus:
        assert outcome.completed
        assert visible == ["0"] * 4
    else:
        assert not outcome.completed
        assert not visible
        assert any("Check `num_cpus` and/or `num_gpus` passed" in line for line in watch.lines)
