"""Processes killed with -9 in a real deployment: nothing is lost, and the bits are the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import Chaos

from privet.agents.unsigned import UNSIGNED
from privet.sim.inline import run_inline
from support.paths import ROOT
from support.processes import LONG, Deployment, Run
from support.run_files import history_so_far
from support.tls import make_certificates

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

CONFIG: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 6,
    "local-solver": "sgd",
    "batch-size": 8,
    "round-timeout": 20.0,
    "recover-by-name": "yes",  # the nodes have no keys
}


def start(deployment: Deployment, count: int = 3, **extra: Any) -> None:
    deployment.start_superlink()
    for number in range(count):
        config = {"partition-id": number, "num-partitions": count, **extra}
        deployment.start_node(str(number), config)
    deployment.wait_for_nodes()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def model(folder: Path) -> bytes:
    with np.load(folder / "model.npz") as file:
        vector: bytes = file["x"].tobytes()
        return vector


def submitted(deployment: Deployment, output: Path, **config: Any) -> tuple[Run, Path]:
    run = deployment.submit(ROOT, {**CONFIG, **config, "output-dir": str(output)})
    return run, output / run.run_id


def same_as_absence(folder: Path, output: Path, **config: Any) -> bool:
    """Whether the model is that of an inline run in which the missing agents were not asked."""
    schedule = ";".join(",".join(done["participants"]) for done in history_so_far(folder))
    absent = {
        **CONFIG,
        **config,
        "participation": "schedule",
        "schedule": schedule,
        "output-dir": str(output),
    }
    return model(folder) == model(run_inline(absent, "absent").folder)


def test_killed_supernode_comes_back_and_lost_nothing(tmp_path: Path) -> None:
    with Deployment(tmp_path) as deployment:
        start(deployment)
        run, folder = submitted(deployment, tmp_path)
        wait_until(lambda: len(history_so_far(folder)) >= 1, "round 1 never ended")
        deployment.kill_node("1")
        wait_until(lambda: len(history_so_far(folder)) >= 3, "the run stopped with its node")
        deployment.restart_node("1")
        assert run.wait().completed
    participants = [done["participants"] for done in history_so_far(folder)]
    assert participants[0] == ["0", "1", "2"]
    assert ["0", "2"] in participants
    assert participants[-1] == ["0", "1", "2"]
    notes = [note for done in history_so_far(folder) for note in done["notes"]]
    assert any(note.startswith("agent 1 was sent its state of round ") for note in notes)
    assert same_as_absence(folder, tmp_path)


def test_a_node_that_sleeps_costs_its_own_rounds_only(tmp_path: Path) -> None:
    """A third of the time, as a minute in every three, on a smaller scale."""
    with Deployment(tmp_path) as deployment:
        start(deployment)
        chaos = Chaos(deployment, {}, tmp_path, 0.0)
        with chaos.sleeping("1", 2.0, 6.0):
            run, folder = submitted(deployment, tmp_path, **{"round-timeout": 120.0})
            assert run.wait().completed
    rounds = history_so_far(folder)
    assert len(rounds) == CONFIG["num-server-rounds"]
    assert set().union(*(done["failures"] for done in rounds)) <= {"1"}
    assert all({"0", "2"} <= set(done["participants"]) for done in rounds)
    assert same_as_absence(folder, tmp_path)


@pytest.mark.parametrize("victim", ["server-app", "superlink"])
def test_run_goes_on_after_its_server_was_killed(tmp_path: Path, victim: str) -> None:
    with Deployment(tmp_path) as deployment:
        start(deployment)
        _, folder = submitted(deployment, tmp_path)
        wait_until(lambda: len(history_so_far(folder)) >= 3, "round 3 never ended")
        if victim == "superlink":
            deployment.kill_superlink()
            deployment.start_superlink()
            deployment.wait_for_nodes()
        else:
            deployment.kill(*(process.pid for process in deployment.server_apps()))
        run, resumed = submitted(deployment, tmp_path, resume=str(folder))
        assert run.wait().completed
    assert [done["round"] for done in history_so_far(resumed)] == [1, 2, 3, 4, 5, 6]
    assert same_as_absence(resumed, tmp_path)


def test_killed_between_ledger_and_reply_the_round_is_paid_for(tmp_path: Path) -> None:
    """The charge is on the disk before the work begins; a killed process does not undo it."""
    ledger = tmp_path / "ledger.jsonl"
    config = {
        "num-agents": 1,
        "num-server-rounds": 2,
        "min-agents": 1,
        "patience": 0.0,
        "local-solver": "noisy-gd",
        "batch-size": 32,  # the default: these steps take no batches
        "local-epochs": 100_000,  # the most that is allowed: seconds of work after the charge
        "clip": 0.5,
        "row-norm": 4.0,
        "noise-variance": 1.0,
    }
    with Deployment(tmp_path) as deployment:
        budget = {"max-epsilon": 1e6, "delta": 1e-5, "ledger-path": str(ledger)}
        start(deployment, 1, **budget, **{"max-steps": config["local-epochs"]})
        run, folder = submitted(deployment, tmp_path, **config)
        wait_until(lambda: ledger.exists() and bool(ledger.read_text()), "never charged")
        # With limits, and started without --trusted-entities.
        assert deployment.nodes["0"].log.read_text().count(UNSIGNED) == 1
        deployment.kill(*(process.pid for process in deployment.client_apps("0")))
        verdict = run.wait()
        assert not verdict.completed  # its only agent is gone: one line says so
        assert "below min-agents" in run.log()
        assert len(ledger.read_text().splitlines()) == 1
        again, folder = submitted(deployment, tmp_path, **{**config, "local-epochs": 2})
        assert again.wait().completed
    assert len(ledger.read_text().splitlines()) == 3
    assert history_so_far(folder)[-1]["participants"] == ["0"]


def test_tls_and_node_authentication(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with Deployment(tmp_path, certificates) as deployment:
        deployment.start_superlink()
        for number in range(2):
            node = {"partition-id": number, "num-partitions": 2}
            deployment.start_node(str(number), node, key=deployment.register(str(number)))
        deployment.wait_for_nodes()
        config = {"num-agents": 2, "num-server-rounds": 2}
        run, folder = submitted(deployment, tmp_path, **config)
        assert run.wait().completed
    inline = run_inline({**CONFIG, **config, "output-dir": str(tmp_path)}, "inline").folder
    assert model(folder) == model(inline)
