"""Measures one Fed-PLT coordinator: run as a process of its own, prints one JSON object.

The agents keep no state and answer y itself, so that what is measured is the coordinator.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedPLT
from privet.wire import ENROL, RECORD, Enrolment, Update, digest, pack
from privet.wire.contract import read_instruction, update_record
from privet.wire.dense import joined_digest
from privet.wire.enrolment import enrolment_record


class Parrot:
    """Answers every instruction with x = y; z then stays at zero."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._digest = digest(np.zeros(dim))  # of z

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the reply to an enrolment question or an instruction."""
        name = str(context.node_config["partition-id"])
        if message.metadata.message_type == ENROL:
            said = Enrolment(name, 1, self._dim, "float64", "fed-plt", 1, "", ())
            return Message(RecordDict({RECORD: enrolment_record(said)}), reply_to=message)
        asked = read_instruction(message.content)
        x = asked.broadcast()["y"]
        agreed = joined_digest((digest(x), self._digest))
        update = Update(name, asked.round, 1, agreed, pack({"x": x}), 0.0, 1e-5, "", "")
        return Message(RecordDict({RECORD: update_record("fed-plt", 1, update)}), reply_to=message)


def measure(agents: int, dim: int, rounds: int = 5) -> dict[str, float]:
    """Return the coordinator's milliseconds a round and its peak memory above an idle one."""
    quiet()
    grid = InlineGrid(Parrot(dim), agents)
    strategy = FedPLT(num_agents=agents, local_epochs=1)
    idle = peak_kilobytes()
    strategy.begin(grid, ArrayRecord({"x": Array(np.zeros(dim))}))
    spent = []
    for number in range(1, rounds + 1):
        begin = time.perf_counter()
        run = strategy.run
        messages = strategy.configure_train(number, run.arrays, ConfigRecord(), grid)
        configured = time.perf_counter()
        replies = run.collect(grid, messages)
        received = time.perf_counter()
        strategy.aggregate_train(number, replies)
        assert len(run.session.history[-1].participants) == agents
        spent.append(time.perf_counter() - received + configured - begin)
    return {
        "milliseconds": min(spent[1:]) * 1e3,
        "megabytes": (peak_kilobytes() - idle) / 1024,
    }


def peak_kilobytes() -> int:
    """Return this process's peak resident memory (its own, not that of the one that forked it)."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
