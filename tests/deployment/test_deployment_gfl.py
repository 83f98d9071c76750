"""GFL on three SuperLinks whose ServerApps exchange models over HTTPS with mutual TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from privet.strategies.gfl.graph import Edge
from support.graph_servers import Hosts, assert_same_trajectory, unit_config
from support.paths import ROOT
from support.processes import Deployment, Run

pytestmark = pytest.mark.deployment

COMMON: dict[str, Any] = {
    "num-server-rounds": 2,
    "num-agents": 6,
    "units": 3,
    "graph": "complete",
    "participants": 1,
    "noise-variance": 0.01,
    "noise-seed": 5,
    "seed": 7,
    "init-scale": 1.0,
    "batch": "sample",
    "batch-size": 8,
    "step-size": 0.5,
    "local-epochs": 3,
    "round-timeout": 120.0,
}
CUT: Edge = (0, 1)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: Any) -> Iterator[list[Deployment]]:
    """Three SuperLinks with two SuperNodes each, none of which knows of the others."""
    with ExitStack() as stack:
        running = []
        for unit in range(3):
            home = tmp_path_factory.mktemp(f"unit-{unit}")
            deployment = stack.enter_context(Deployment(home))
            deployment.start_superlink()
            for number in (2 * unit, 2 * unit + 1):
                config = {"partition-id": number, "num-partitions": 6, "unit": str(unit)}
                deployment.start_node(str(number), config)
            running.append(deployment)
        for deployment in running:
            deployment.wait_for_nodes()
        yield running


def submit(hospitals: list[Deployment], hosts: Hosts, output: Path, **changed: Any) -> list[Run]:
    """Start the run of every unit."""
    runs = []
    for unit, deployment in enumerate(hospitals):
        config = unit_config(hosts, str(unit), **{**COMMON, **changed})
        runs.append(deployment.submit(ROOT, {**config, "output-dir": str(output / str(unit))}))
    return runs


def finish(runs: list[Run], output: Path) -> list[Path]:
    """Wait for the runs' end and return their folders."""
    for run in runs:
        verdict = run.wait()
        assert verdict.completed, verdict.details + verdict.log[-3000:]
    return [output / str(unit) / run.run_id for unit, run in enumerate(runs)]


@pytest.mark.slow
def test_three_superlinks_follow_the_trajectory_of_the_simulation(
    hospitals: list[Deployment], tmp_path: Path
) -> None:
    with Hosts(tmp_path, 3) as hosts:
        folders = finish(submit(hospitals, hosts, tmp_path, **{"peer-timeout": 90.0}), tmp_path)
    assert_same_trajectory(folders, COMMON, {})
    for unit, folder in enumerate(folders):
        lines = (folder / "history.jsonl").read_text().splitlines()
        history = [json.loads(line) for line in lines]
        assert [len(done["participants"]) for done in history] == [1, 1]
        assert {name for done in history for name in done["participants"]} <= {
            str(2 * unit),
            str(2 * unit + 1),
        }
        assert [done["notes"] for done in history] == [[], []]


@pytest.mark.slow
def test_noise_cancels_while_a_link_between_superlinks_is_cut(
    hospitals: list[Deployment], tmp_path: Path
) -> None:
    """Rounds 2 and 3 of 5 without one edge; the simulation drops the same, its noise cancels."""
    config = {"num-server-rounds": 5, "peer-timeout": 20.0}
    with Hosts(tmp_path, 3, [CUT]) as hosts:
        runs = submit(hospitals, hosts, tmp_path, **config)
        for unit in CUT:
            runs[unit].wait_for_line(r"round 1/5 \|")
        hosts.cut(CUT)
        for unit in CUT:
            runs[unit].wait_for_line(r"round 3/5 \|")
        hosts.mend(CUT)
        folders = finish(runs, tmp_path)
    for unit, folder in enumerate(folders):
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        dropped = [
            done["round"]
            for done in history
            if any(note.startswith("edge 0-1 was dropped: ") for note in done["notes"])
        ]
        assert dropped == ([2, 3] if unit in CUT else [])
        assert [done["measures"]["centroid-noise"] for done in history] == [0.0] * 5
    assert_same_trajectory(folders, {**COMMON, **config}, {2: [CUT], 3: [CUT]})
