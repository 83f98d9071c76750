"""Many deployed rounds: time a round, memory, open files and the disk are to stay as they are.

    PYTHONPATH=tests .venv/bin/python -m deployed_soak --rounds 500 --nodes 4 --home /srv/soak

One SuperLink with its database, SuperNodes with a state file each, Fed-PLT with default keys but
the number of rounds. With ``--home`` the folder is kept, and the same command goes on from the last
checkpoint after an interruption; what SuperLink and nodes hold in memory then begins anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from chaos import resident

from support.paths import ROOT
from support.processes import AS_INSTALLED, Deployment

COLUMNS = (
    "round", "s a round", "SuperLink", "its helper", "ServerApp", "a SuperNode", "its helper",
    "database", "checkpoint", "history",
)  # fmt: skip
LOOKS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--home", type=Path, help="folder that is kept, to go on from")
    given = parser.parse_args()
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = home.absolute()
        home.mkdir(parents=True, exist_ok=True)
        deployment = stack.enter_context(Deployment(home, environment=AS_INSTALLED))
        deployment.start_superlink()
        for number in range(given.nodes):
            state = str(home / f"state-{number}")
            keys = {"partition-id": number, "num-partitions": given.nodes, "state-path": state}
            deployment.start_node(str(number), keys)
        deployment.wait_for_nodes()
        return soak(deployment, given.rounds, given.nodes)


def soak(deployment: Deployment, rounds: int, nodes: int) -> int:
    """Play the run and print a row at each of some rounds; return 1 if it does not end well."""
    output = deployment.home / "runs"
    keys = {"num-agents": nodes, "num-server-rounds": rounds, "resume": "auto"}
    run = deployment.submit(ROOT, {**keys, "output-dir": str(output)})
    run.wait_for_line(r"round \d+/")
    begun, at = time.monotonic(), played(output)
    looks = {rounds * look // LOOKS for look in range(LOOKS + 1)} | {at}
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    seen = at - 1
    while not run.ended:
        done = played(output)
        if looks & set(range(seen + 1, done + 1)):
            each = (time.monotonic() - begun) / max(1, done - at)
            begun, at = time.monotonic(), done
            print(f"| {' | '.join(row(deployment, output, done, each))} |", flush=True)
        seen = max(seen, done)
        time.sleep(0.5)
    verdict = run.wait()
    print(f"{verdict.status} after {played(output)} rounds {verdict.details}")
    return int(not verdict.completed)


def row(deployment: Deployment, output: Path, done: int, each: float) -> list[str]:
    """Return a row: for processes their resident memory and open files, of several the most."""
    alive = deployment.processes.alive()
    superlink = deployment.superlink.pid if deployment.superlink else 0
    supernodes = {node.process.pid for node in deployment.nodes.values()}

    def helpers(roots: set[int]) -> list[int]:
        return [p.pid for p in alive if p.parent in roots and "superexec" in p.command]

    servers = [p.pid for p in deployment.server_apps()]
    (folder,) = output.glob("*/")
    return [
        str(done),
        f"{each:.1f}",
        *map(used, ([superlink], helpers({superlink}), servers, supernodes, helpers(supernodes))),
        kilobytes(deployment.home.glob("state.db*")),
        kilobytes(folder.glob("checkpoint*.npz")),
        kilobytes(folder.glob("history.jsonl")),
    ]


def used(pids: Iterable[int]) -> str:
    pids = list(pids)
    memory = max(map(resident, pids), default=0)
    return f"{memory} MB, {max(map(open_files, pids), default=0)}"


def open_files(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def kilobytes(files: Iterable[Path]) -> str:
    return f"{sum(file.stat().st_size for file in files) / 1e3:,.0f} kB"


def played(output: Path) -> int:
    """Return the rounds of the run folder's history."""
    return sum(file.read_bytes().count(b"\n") for file in output.glob("*/history.jsonl"))


if __name__ == "__main__":
    sys.exit(main())
