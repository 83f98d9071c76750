"""A private night over real nodes: faults by a seeded plan, and nobody to help.

    PYTHONPATH=tests .venv/bin/python -m night --rounds 30 --seed 5

One SuperLink with TLS and five SuperNodes with keys, each with its own ledger and limits, play
DP-FedSGD towards a target epsilon. The ServerApp is killed twice, the second time with a damaged
newest checkpoint, the SuperLink is killed once, and one node is away at each of these restarts
until the run has gone on without it. One SuperNode's TLS handshake is cut. Supervisors start what
has ended, as systemd would: the run with ``resume = "auto"``, the nodes with the same command. In
the end every ledger is compared with the account of the run and the report.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import Chaos, Event, say
from redteam.harness import spent

from support.paths import ROOT
from support.processes import Deployment, DeploymentError
from support.proxy import CuttableProxy
from support.tls import make_certificates

AGENTS = 5
WATCHED = (sys.executable, str(ROOT / "examples" / "operate" / "supernode.py"))
DELTA, TARGET, LIMIT = 1e-5, 4.0, 8.0
WITHOUT = 2
"""Rounds that the run plays after a restart of the server before the node comes back."""


def plan_of(rounds: int, rng: random.Random) -> list[Event]:
    """Return what happens: three restarts of the server, each without a node, and a cut link."""
    kinds = ["server-app", "superlink", "damaged checkpoint", "handshake"]
    rng.shuffle(kinds)
    length = (rounds - 4) // len(kinds)
    places = [2 + length * number + rng.randrange(length // 2) for number in range(len(kinds))]
    nodes = ["0" if kind == "handshake" else str(rng.randrange(1, AGENTS)) for kind in kinds]
    return [Event(*each) for each in zip(places, kinds, nodes, strict=True)]


@dataclass
class Night(Chaos):
    """The run, with supervisors of its nodes."""

    proxy: CuttableProxy | None = None
    away: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def happen(self, event: Event) -> None:
        """Let a fault happen; a node that goes away stays so until the run goes on without it."""
        if event.kind == "handshake":
            assert self.proxy is not None
            self.proxy.cut_handshakes()
            self.later(self._mend)
            return
        self.away.add(event.node)
        self.deployment.kill_node(event.node)
        submitted = self.submitted
        if event.kind == "superlink":
            super().happen(event)
        else:
            super().happen(Event(event.round, "server-app"))
        if event.kind == "damaged checkpoint":
            time.sleep(2.0)  # of the process that has just been killed
            self.damage()
        self.later(lambda: self._come_back(event, submitted))

    def _come_back(self, event: Event, submitted: int) -> None:
        last = self.config["num-server-rounds"]
        while self.submitted == submitted or len(self.history()) < event.round + WITHOUT:
            if self.over.wait(1.0) or len(self.history()) >= last:
                break
        self.away.discard(event.node)

    def damage(self) -> None:
        """Overwrite the middle of the newest checkpoint."""
        folder = self.folder()
        assert folder is not None
        path = folder / "checkpoint.npz"
        data = bytearray(path.read_bytes())
        middle = slice(len(data) // 2, len(data) // 2 + 64)
        data[middle] = bytes(255 - each for each in data[middle])
        path.write_bytes(data)

    def _mend(self) -> None:
        assert self.proxy is not None
        deadline = time.monotonic() + 90.0
        while self.deployment.nodes["0"].process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        say(f"{self.proxy.handshakes} handshakes were cut")
        self.proxy.mend()

    def supervise_nodes(self) -> None:
        """Start every node again whose process has ended, unless it is to stay away."""
        while not self.over.wait(5.0):
            for name, node in list(self.deployment.nodes.items()):
                if node.process.poll() is None or name in self.away:
                    continue
                say(f"node {name} is started again")
                with suppress(DeploymentError):
                    self.deployment.restart_node(name, 300.0)


def compared(folder: Path, ledgers: list[Path]) -> tuple[list[str], bool]:
    """Return a line for each agent, and whether ledgers, run and report agree."""
    said = json.loads((folder / "privacy.json").read_text())["agents"]
    summary = json.loads((folder / "summary.json").read_text())
    report = (folder / "report.html").read_text()
    lines, right = [], summary["status"] == "completed"
    for number, ledger in enumerate(ledgers):
        agent = said[str(number)]
        charged = sum(line.startswith("{") for line in ledger.read_text().splitlines())
        counted = sum(release["times"] for release in agent["releases"])
        own = spent(ledger)
        agrees = own <= agent["epsilon"] <= TARGET * (1 + 1e-9) and charged <= counted
        lines.append(
            f"| {number} | {charged} | {counted} | {own:.6f} | {agent['epsilon']:.6f} | "
            f"{'yes' if agrees else 'NO'} |"
        )
        right &= agrees
    most = max(agent["epsilon"] for agent in said.values())
    shown = " ".join(re.sub(r"<[^>]+>", " ", report).split())
    right &= f"\N{GREEK SMALL LETTER EPSILON} = {most:.3g} at" in shown
    last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    right &= last["epsilon"] == most
    return lines, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--round-timeout", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="folder for the run and its logs; else none")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as where:
        home = given.keep or Path(where)
        with Deployment(home, make_certificates(home)) as deployment:
            deployment.start_superlink()
            with CuttableProxy(deployment.port) as proxy:
                ledgers = [home / f"ledger-{number}.jsonl" for number in range(AGENTS)]
                for number, ledger in enumerate(ledgers):
                    key = deployment.register(str(number))
                    config: dict[str, Any] = {
                        "partition-id": number, "num-partitions": AGENTS,
                        "max-epsilon": LIMIT, "delta": DELTA, "ledger-path": str(ledger),
                        "state-path": str(home / f"state-{number}.npz"),
                    }  # fmt: skip
                    port = proxy.port if number == 0 else None
                    deployment.start_node(
                        str(number), config, superlink_port=port, key=key, program=WATCHED
                    )
                deployment.wait_for_nodes(180.0)
                settings = {
                    "algorithm": "dp-fedsgd", "clip": 1.0, "target-epsilon": TARGET,
                    "partition": "iid", "num-agents": AGENTS, "min-agents": 3,
                    "num-server-rounds": given.rounds, "seed": given.seed, "resume": "auto",
                    "round-timeout": given.round_timeout, "wait-timeout": 30.0,
                    "patience": 600.0, "recover-by-name": "node-key",
                    "output-dir": str(home / "runs"),
                }  # fmt: skip
                night = Night(deployment, settings, home / "runs", 0.0, proxy=proxy)
                supervisor = threading.Thread(target=night.supervise_nodes)
                supervisor.start()
                plan = plan_of(given.rounds, random.Random(given.seed))
                try:
                    night.play(plan)
                finally:
                    night.over.set()
                    supervisor.join()
                folder = night.folder()
                assert folder is not None
                history = night.history()
                lines, right = compared(folder, ledgers)
                logs = "".join(log.read_text() for log in home.glob("run-*.log"))
                right &= logs.count("goes on from the one before") >= 1 and proxy.handshakes > 0
        left = deployment.processes.alive()
    took = time.monotonic() - begun
    for event in plan:
        print(f"after round {event.round}: {event.kind}, node {event.node}")
    missed = sum(AGENTS - len(done["participants"]) for done in history)
    print(
        f"{len(history)} rounds, {night.submitted - 1} resumes, {missed} of "
        f"{AGENTS * len(history)} agent-rounds missed, processes left: {len(left)}; {took:.0f} s"
    )
    print("| agent | ledger's lines | run's uploads | ledger's epsilon | run's epsilon | agree |")
    print("| --- " * 6 + "|")
    print("\n".join(lines))
    return int(bool(left) or not right or len(history) != given.rounds)


if __name__ == "__main__":
    sys.exit(main())
