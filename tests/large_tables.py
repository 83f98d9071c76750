"""What a coordinator of a large model holds in memory, by number of agents.

    PYTHONPATH=tests .venv/bin/python -m large_tables --dim 1000000 --agents 25 50 100 200

Fed-PLT with a checkpoint, every size in a process of its own. The agents answer one at a time, when
they are asked for their replies, so that what is measured is the coordinator.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from benchmarks.coordinator import Parrot, peak_kilobytes
from privet.rounds import observers
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedPLT
from privet.wire import digest


class LaterGrid(InlineGrid):
    """An engine whose nodes work when their replies are pulled."""

    def dispatch(self, messages: list[Message]) -> None:
        for message in messages:
            self._replies[message.metadata.message_id] = message

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for message in super().pull_messages(message_ids):
            reply = self.deliver(message)
            assert reply is not None
            self.arrived(message, reply)
            yield self._replies.pop(message.metadata.message_id)


def measure(agents: int, dim: int, rounds: int, every: int, folder: str) -> None:
    """Print a row of the table."""
    quiet()
    parrot = Parrot(dim)
    parrot._digest = digest(np.ones(dim))
    spent, save = list[float](), observers.save

    def timed(*args: Any) -> None:
        begin = time.monotonic()
        save(*args)
        spent.append(time.monotonic() - begin)

    observers.save = timed
    idle = peak_kilobytes()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        strategy = FedPLT(num_agents=agents, local_epochs=1)
        begin = time.monotonic()
        result = strategy.start(
            LaterGrid(parrot, agents),
            ArrayRecord({"x": Array(np.ones(dim))}),
            num_rounds=rounds,
            checkpoint=Path(place) / "checkpoint.npz",
            checkpoint_every=every,
            log_rounds=False,
        )
        whole = time.monotonic() - begin
    assert [len(done.participants) for done in result.history] == [agents] * rounds
    assert result.arrays["x"].numpy()[0] == 1.0
    each = sum(done.seconds for done in result.history) / rounds
    peak, save_one = peak_kilobytes() / 1024, statistics.median(spent)
    print(
        f"| {agents:,} | {2 * agents * dim * 8 / 1e9:.1f} GB | {peak:,.0f} MB "
        f"| {idle / 1024:.0f} MB | {each:.3f} s | {save_one:.3f} s | {whole:.0f} s |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--agents", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="0: at the end")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    if len(given.agents) == 1:
        measure(given.agents[0], given.dim, given.rounds, given.checkpoint_every, given.folder)
        return
    print("| agents | tables | peak | of it idle | round | checkpoint | run |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for count in given.agents:
        same = ["--dim", given.dim, "--rounds", given.rounds, "--folder", given.folder]
        same += ["--checkpoint-every", given.checkpoint_every]
        command = [sys.executable, "-m", "large_tables", *map(str, same), "--agents", str(count)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
