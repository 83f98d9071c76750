"""A private run over two Ray hosts that loses one of them, beside the same run undisturbed.

A host is a raylet with one CPU, all of whose processes are killed once nine rounds are done. The
account of every agent is compared with the replies that were asked of it, by the history.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from support.ray_hosts import LONG, RayHosts

from .figure import Figure, Show

ROUNDS, BEFORE, TIMEOUT = 30, 9, 60.0
SETTINGS = {
    "algorithm": "fed-plt",
    "num-agents": 6,
    "num-server-rounds": ROUNDS,
    "local-solver": "noisy-gd",
    "local-epochs": 2000,
    "clip": 1.0,
    "row-norm": 5.6,
    "noise-variance": 1.0,
    "round-timeout": TIMEOUT,
    "baseline-seconds": 0.0,
}
ASKED = ("lost", "late")
"""Failures of agents that were asked: their releases may have left."""
TIMEOUTS_GOAL = 2.0


class Played(NamedTuple):
    """A run that came to its end: its seconds, its history and its accounts."""

    seconds: float
    history: list[dict[str, Any]]
    privacy: dict[str, Any]

    @classmethod
    def of(cls, cluster: RayHosts, folder: Path, meanwhile: Callable[[], object]) -> Played:
        """Play a run; ``meanwhile`` is called when `BEFORE` rounds are done."""
        given = {**SETTINGS, "output-dir": folder}
        begun, log = time.monotonic(), folder.with_suffix(".log")
        child = cluster.run(*(f"{key}={value}" for key, value in given.items()), log=log)
        waiting = True
        while child.poll() is None:
            if (
                waiting
                and sum(len(one.read_bytes().splitlines()) for one in _lines(folder)) >= BEFORE
            ):
                waiting = False
                meanwhile()
            if time.monotonic() - begun > 4 * LONG:
                raise RuntimeError(f"the run does not end: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        seconds = time.monotonic() - begun
        if child.returncode:
            raise RuntimeError(f"the run failed: {log.read_text()[-2000:]}")
        (history,) = _lines(folder)
        lines = history.read_text().splitlines()
        privacy = json.loads(history.with_name("privacy.json").read_text())
        return cls(seconds, [json.loads(line) for line in lines], privacy)

    @property
    def absences(self) -> dict[str, list[int]]:
        """The rounds that each agent missed."""
        missed: dict[str, list[int]] = {}
        for done in self.history:
            for name in done["failures"]:
                missed.setdefault(name, []).append(done["round"])
        return missed

    def attempts(self, name: str) -> int:
        """Return the replies that were asked of an agent and may have left it."""
        return sum(
            name in done["participants"] or done["failures"].get(name, {}).get("code") in ASKED
            for done in self.history
        )

    def releases(self, name: str) -> int:
        """Return the releases in an agent's account."""
        return sum(one["times"] for one in self.privacy["agents"][name]["releases"])


def _lines(folder: Path) -> list[Path]:
    return list(folder.glob("*/history.jsonl"))


def bench_hosts(show: Show, *, quick: bool = False) -> None:
    """Compare the run that loses a host with the undisturbed one; ``quick`` changes nothing."""
    with TemporaryDirectory(prefix="privet-bench-") as scratch, RayHosts() as cluster:
        hosts = [cluster.join(), cluster.join()]
        calm = Played.of(cluster, Path(scratch, "calm"), bool)
        hit = Played.of(cluster, Path(scratch, "hit"), lambda: cluster.kill(hosts[1]))

    def figure(case: str, what: str, value: float, goal: float | None = None) -> None:
        show(Figure("hosts", case, what, value, goal, at_least=False))

    names = sorted(hit.privacy["agents"])
    missed = hit.absences
    for case, played in (("undisturbed", calm), ("a host dies", hit)):
        figure(case, "seconds of the command", played.seconds)
        figure(case, "rounds", len(played.history))
        figure(case, "epsilon", played.history[-1]["epsilon"])
    extra = (hit.seconds - calm.seconds) / TIMEOUT
    figure("a host dies", "extra time, in round-timeouts", extra, TIMEOUTS_GOAL)
    figure("a host dies", "first round with absent agents", min(map(min, missed.values())))
    figure("a host dies", "absent agents", len(missed))
    figure("a host dies", "rounds that one of them missed", max(map(len, missed.values())))
    for case, played in (("undisturbed", calm), ("a host dies", hit)):
        off = max(abs(played.releases(name) - played.attempts(name)) for name in names)
        figure(case, "releases in an account - attempts", off, 0.0)
