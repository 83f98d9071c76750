"""A long run over real nodes that are killed, stopped and restarted by a seeded plan.

    PYTHONPATH=tests .venv/bin/python -m chaos --rounds 60 --agents 6 --seed 11

One SuperLink with TLS, SuperNodes with keys, Fed-PLT, DP-IADMM and sparse FedPDM in turn, each for
its share of the rounds. Nodes are killed, and stopped for longer than a round; once per algorithm
the SuperLink is killed and restarted, the ServerApp is killed, and a ServerApp's disk is full until
it ends. A supervisor submits the run again with ``resume = "auto"`` whenever it ends. Every model
is compared with that of an undisturbed run in process with the same participation. With ``--sleep
60 180`` nothing happens but that node 0 is stopped for a minute in every three.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privet.sim.inline import run_inline
from support.paths import ROOT
from support.processes import Deployment, DeploymentError, Run
from support.tls import make_certificates

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fed-plt": {"algorithm": "fed-plt", "local-solver": "sgd", "batch-size": 8},
    "dp-iadmm": {"algorithm": "dp-iadmm", "perturbation": "none", "rho": 2.0},
    "fed-pdm, top-k 0.3, public dual": {
        "algorithm": "fed-pdm", "sparsifier": "top-k", "alpha-u": 0.3, "dual": "public",
        "aggregation": "table",
    },
}  # fmt: skip


@dataclass
class Event:
    """Something that happens once a round has ended."""

    round: int
    kind: str
    node: str = ""


def plan_of(rounds: int, agents: int, rng: random.Random) -> list[Event]:
    """Return what happens in a run: a node every fourth round, and three faults of the server."""
    events = [
        Event(number, rng.choice(["kill", "stop"]), str(rng.randrange(agents)))
        for number in range(2, rounds - 2, 4)
    ]
    servers = ["superlink", "server-app", "full-disk"]
    places = rng.sample([n for n in range(3, rounds - 3) if n % 4 != 2], len(servers))
    events += [Event(number, kind) for number, kind in zip(sorted(places), servers, strict=True)]
    return sorted(events, key=lambda event: event.round)


@dataclass
class Chaos:
    """One algorithm's run on a deployment, with its supervisor and its faults."""

    deployment: Deployment
    config: dict[str, Any]
    output: Path
    pause: float
    """Seconds that a stopped node sleeps: longer than a round."""
    threads: list[threading.Thread] = field(default_factory=list)
    submitted: int = 0

    def play(self, plan: list[Event]) -> None:
        run, waiting = self.submit(), list(plan)
        looked = time.monotonic()
        while True:
            time.sleep(2.0)
            done = len(self.history())
            while waiting and done >= waiting[0].round:
                event = waiting.pop(0)
                say(f"after round {done}: {event.kind} {event.node}")
                self.happen(event)
            if time.monotonic() - looked < 20.0:  # asking takes seconds of processor time
                continue
            looked, status = time.monotonic(), self.status(run)
            if status == "finished:completed":
                break
            if status.startswith("finished"):
                say(f"run {run.run_id} is {status}: submitted again")
                run = self.submit()
        for thread in self.threads:
            thread.join()

    @contextmanager
    def sleeping(self, name: str, nap: float, period: float) -> Iterator[None]:
        """Stop a node for ``nap`` seconds in every ``period``."""
        over = threading.Event()

        def sleep() -> None:
            while not over.wait(period - nap):
                pids = self.deployment.tree(self.deployment.nodes[name].process.pid)
                tell(pids, signal.SIGSTOP)
                over.wait(nap)
                tell(pids, signal.SIGCONT)

        thread = threading.Thread(target=sleep)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def submit(self) -> Run:
        """Submit the run: it goes on where the last one was."""
        self.submitted += 1
        while True:
            run = self.deployment.submit(ROOT, self.config)
            with suppress(DeploymentError):
                say(f"run {run.run_id}")
                return run
            time.sleep(5.0)

    def status(self, run: Run) -> str:
        with suppress(Exception):  # a SuperLink that is just being restarted
            (entry,) = self.deployment.flwr("ls", "--run-id", run.run_id)["runs"]
            return str(entry["status"])
        return "unknown"

    def happen(self, event: Event) -> None:
        match event.kind:
            case "kill":
                self.deployment.kill_node(event.node)
                self.later(lambda: self.deployment.restart_node(event.node, 300.0))
            case "stop":
                pids = self.deployment.tree(self.deployment.nodes[event.node].process.pid)
                tell(pids, signal.SIGSTOP)
                self.later(lambda: (time.sleep(self.pause), tell(pids, signal.SIGCONT)))
            case "superlink":
                self.deployment.kill_superlink()
                self.deployment.start_superlink()
            case "server-app":
                self.deployment.kill(*(app.pid for app in self.deployment.server_apps()))
            case "full-disk":
                self.fill_disk()

    def fill_disk(self) -> None:
        """Let no file of the ServerApp grow any more, to its end."""
        for app in self.deployment.server_apps():
            with suppress(OSError):
                resource.prlimit(app.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    def later(self, action: Any) -> None:
        thread = threading.Thread(target=action)
        thread.start()
        self.threads.append(thread)

    def folder(self) -> Path | None:
        return next(iter(sorted(self.output.glob("*/"))), None)

    def history(self) -> list[dict[str, Any]]:
        folder = self.folder()
        file = folder / "history.jsonl" if folder else None
        if file is None or not file.exists():
            return []
        lines = file.read_text().splitlines()
        with suppress(ValueError):
            return [json.loads(line) for line in lines]
        return [json.loads(line) for line in lines[:-1]]


class Memory:
    """The resident memory of the processes of a deployment, by kind, over time."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.samples = deployment, dict[str, list[int]]()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.over.wait(10.0):
            for process in self.deployment.processes.alive():
                for kind in ("superlink", "supernode", "serverapp"):
                    if f"bin/flower-{kind}" in process.command or f"flwr-{kind}" in process.command:
                        self.samples.setdefault(kind, []).append(resident(process.pid))

    def line(self) -> str:
        """Return the median of the first and of the last fifth, by kind."""
        self.over.set()
        self.thread.join()
        parts = []
        for kind, sizes in self.samples.items():
            fifth = max(1, len(sizes) // 5)
            first, last = (int(np.median(part)) for part in (sizes[:fifth], sizes[-fifth:]))
            parts.append(f"{kind} {first} -> {last} MB")
        return ", ".join(parts)


def resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 // 2**20
    return 0


def tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def model_of(folder: Path) -> Any:
    with np.load(folder / "model.npz") as file:
        return file["x"]


def row_of(
    name: str, chaos: Chaos, faults: str, hit: set[str], agents: int, home: Path
) -> list[str]:
    """Return a row of the table: what happened, what it cost, and whether the bits are right."""
    history, folder = chaos.history(), chaos.folder()
    assert folder is not None
    missed = {str(agent): 0 for agent in range(agents)}
    for done in history:
        for agent in missed.keys() - set(done["participants"]):
            missed[agent] += 1
    schedule = ";".join(",".join(done["participants"]) for done in history)
    absent = {**chaos.config, "participation": "schedule", "schedule": schedule, "resume": ""}
    reference = run_inline({**absent, "output-dir": str(home / "reference")}, folder.name)
    ours, theirs = model_of(folder), model_of(reference.folder)
    same = "yes" if np.array_equal(ours, theirs) else f"no, {np.abs(ours - theirs).max():.1e}"
    notes = [note for done in history for note in done["notes"]]
    return [
        name,
        str(len(history)),
        faults,
        str(chaos.submitted - 1),
        str(sum(note.startswith("tried ") for note in notes)),
        str(sum("not written" in note for note in notes)),
        f"{sum(missed.values())} of {agents * len(history)}",
        str(sum(count for agent, count in missed.items() if agent not in hit)),
        same,
    ]


COLUMNS = (
    "algorithm", "rounds", "faults", "resumes", "rounds tried again", "checkpoints not written",
    "agent-rounds missed", "by agents without a fault", "bits of the undisturbed run",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="of all algorithms together")
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--round-timeout", type=float, default=40.0)
    parser.add_argument("--sleep", type=float, nargs=2, metavar=("NAP", "PERIOD"))
    parser.add_argument("--algorithms", nargs="+", default=["fed-plt", "dp-iadmm", "fed-pdm"])
    given = parser.parse_args()
    played = {n: s for n, s in ALGORITHMS.items() if s["algorithm"] in given.algorithms}
    rng, rounds = random.Random(given.seed), given.rounds // len(played)
    rows, begun = [], time.monotonic()
    with tempfile.TemporaryDirectory() as where:
        home = Path(where)
        with Deployment(home, make_certificates(home)) as deployment:
            deployment.start_superlink()
            for number in range(given.agents):
                config = {"partition-id": number, "num-partitions": given.agents}
                deployment.start_node(str(number), config, key=deployment.register(str(number)))
            deployment.wait_for_nodes(180.0)
            memory = Memory(deployment)
            for number, (name, settings) in enumerate(played.items()):
                say(f"{name}: {rounds} rounds")
                output = home / f"run-{number}"
                common = {
                    "num-agents": given.agents, "num-server-rounds": rounds, "seed": given.seed,
                    "round-timeout": given.round_timeout, "resume": "auto",
                    "output-dir": str(output), "wait-timeout": 300.0,
                    "recover-by-name": "node-key",
                }  # fmt: skip
                pause = 1.5 * given.round_timeout
                chaos = Chaos(deployment, {**settings, **common}, output, pause)
                if given.sleep:
                    nap, period = given.sleep
                    with chaos.sleeping("0", nap, period):
                        chaos.play([])
                    faults, hit = f"node 0 asleep {nap:g} s in {period:g} s", {"0"}
                else:
                    plan = plan_of(rounds, given.agents, rng)
                    chaos.play(plan)
                    kinds = [event.kind for event in plan]
                    named = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
                    faults, hit = ", ".join(named), {event.node for event in plan if event.node}
                rows.append(row_of(name, chaos, faults, hit, given.agents, home))
                say(" | ".join(rows[-1]))
            used = memory.line()
        left = deployment.processes.alive()
    for row in (COLUMNS, ["---"] * len(COLUMNS), *rows):
        print(f"| {' | '.join(row)} |")
    print(f"\nprocesses left: {len(left)}; memory: {used}; {time.monotonic() - begun:.0f} s")
    return int(bool(left) or any(row[-1] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
