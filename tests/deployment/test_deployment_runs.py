"""Runs on a real SuperLink with SuperNodes: the same bits, and the node's own rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privet.server_apps.model_file import load_model
from privet.sim.inline import run_inline
from support.cli import privet
from support.paths import ROOT
from support.processes import Deployment, Verdict
from support.run_files import history

pytestmark = pytest.mark.deployment

COMMON: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 3,
    "participation": "fraction",
    "fraction": 0.67,
    "local-solver": "noisy-gd",
    "noise-variance": 0.001,
    "noise-seed": 3,
    "clip": 1.0,
    "row-norm": 4.0,
    "seed": 7,
    "round-timeout": 120.0,
}
IADMM: dict[str, Any] = {
    "algorithm": "dp-iadmm",
    "num-agents": 3,
    "num-server-rounds": 3,
    "participation": "fraction",
    "fraction": 0.67,
    "local-updates": 3,
    "rho": 5.0,
    "set": "l2",
    "set-radius": 3.0,
    "clip": 1.0,
    "noise-scale": 0.01,
    "noise-seed": 3,
    "seed": 7,
    "round-timeout": 120.0,
}
MASKED: dict[str, Any] = {
    "secure-sum": True,
    "num-agents": 3,
    "num-server-rounds": 3,
    "seed": 7,
    "round-timeout": 120.0,
}
CODED: dict[str, Any] = {
    "value-bits": "8",
    "num-agents": 3,
    "num-server-rounds": 3,
    "seed": 7,
    "round-timeout": 120.0,
}
PRIVATE: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 3,
    "local-solver": "noisy-gd",
    "local-epochs": 2,
    "clip": 0.5,
    "row-norm": 4.0,
    "noise-variance": 0.01,
    "round-timeout": 120.0,
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: Any) -> Iterator[Deployment]:
    """Three nodes without rules of their own."""
    home = tmp_path_factory.mktemp("deployment")
    with Deployment(home) as running:
        running.start_superlink()
        for number in range(3):
            running.start_node(str(number), {"partition-id": number, "num-partitions": 3})
        running.wait_for_nodes()
        yield running


def run(deployment: Deployment, folder: Path, **config: Any) -> tuple[Verdict, Path]:
    """Run to the end and return the SuperLink's verdict and the run folder."""
    submitted = deployment.submit(ROOT, {**config, "output-dir": str(folder)})
    verdict = submitted.wait()
    return verdict, folder / submitted.run_id


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(COMMON, id="fed-plt"),
        pytest.param(IADMM, id="dp-iadmm", marks=pytest.mark.slow),
        pytest.param(MASKED, id="secure-sum", marks=pytest.mark.slow),
        pytest.param(CODED, id="coded", marks=pytest.mark.slow),
    ],
)
def test_deployed_run_gives_the_bits_of_the_inline_one(
    deployment: Deployment, tmp_path: Path, config: dict[str, Any]
) -> None:
    verdict, folder = run(deployment, tmp_path, **config)
    assert verdict.completed, verdict.details
    inline = run_inline({**config, "output-dir": str(tmp_path)}, "inline").folder
    ours, reference = load_model(folder).arrays, load_model(inline).arrays
    assert sorted(ours) == sorted(reference)
    for name, array in reference.items():
        assert ours[name].tobytes() == array.tobytes()
    for real, simulated in zip(history(folder), history(inline), strict=True):
        for key in ("participants", "bytes-up", "bytes-down", "stationarity"):
            assert real[key] == simulated[key]


@pytest.mark.slow
def test_node_keeps_its_budget_over_two_runs_whatever_is_asked(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Node 2 starts again with a budget for a little more than four rounds of this run."""
    spent = run_inline({**PRIVATE, "num-server-rounds": 4, "output-dir": str(tmp_path)}, "one")
    ledger = tmp_path / "ledger.jsonl"
    budget = {
        "max-epsilon": float(spent.result.history[-1].epsilon) * (1 + 1e-9),
        "delta": 1e-5,
        "ledger-path": str(ledger),
    }
    deployment.kill_node("2")
    deployment.start_node("2", {"partition-id": 2, "num-partitions": 3, **budget})
    deployment.wait_for_nodes()
    first, one = run(deployment, tmp_path, **PRIVATE)
    assert first.completed, first.details
    assert [done["participants"] for done in history(one)] == [["0", "1", "2"]] * 3
    account = json.loads((one / "privacy.json").read_text())
    assert account["private"] is True
    assert account["accounts"][0]["epsilon"] < budget["max-epsilon"]
    assert account["accounts"][0]["as-printed"] > 0
    heads = json.loads((one / "summary.json").read_text())["ledger-heads"]
    assert heads == {"2": json.loads(ledger.read_text().splitlines()[-1])["chain"]}
    code, said, _ = privet("statement", one, "--verify", "--ledger", ledger)
    assert (code, "agent 2: holds the head that its node returned" in said) == (0, True), said

    second, two = run(deployment, tmp_path, **{**PRIVATE, "num-server-rounds": 2})
    assert second.completed, second.details
    rounds = history(two)
    assert [done["participants"] for done in rounds] == [["0", "1", "2"], ["0", "1"]]
    assert rounds[1]["failures"]["2"]["text"].startswith("agent 2: ")
    assert len(ledger.read_text().splitlines()) == 4

    # Neither a seed nor an open run gets anything out of the node.
    third, three = run(deployment, tmp_path, **{**PRIVATE, "noise-seed": 1, "num-server-rounds": 1})
    assert third.completed, third.details
    assert "noise-seed" in history(three)[0]["failures"]["2"]["text"]
