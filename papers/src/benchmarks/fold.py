"""What a server does with the replies of a round, beside Flower's FedAvg with as many numbers.

The agents reply with their model as it was sent and a little more; they take no gradients, and only
`aggregate_train` is timed: FedAvg's, the method's and a bare loop in turns, of which the median of
the ratios counts. A round in which all agents reply must read every upload and every
agent's row of the method's tables, and write these rows: the bare loop does that and no more, in
blocks that fit into the cache, so that the rest of the fold can be seen beside it.

The goal is 1.2 times FedAvg's time, or 1.3 times the bare loop's where that is more; the loop's
ratio is printed as the floor. (A goal of 1.2 wherever the floor is lower would leave a hundredth to
a fold whose floor is 1.19, and three tenths to one whose floor is 1.21.) Why there is one can be
counted, in operations on the numbers of an agent (each reads one or two vectors and writes one at
most, from memory, or from the cache where an operation before it has just read them):

======== ================================================ =========================== ===========
method   before a reply may be folded                     once all replies are known  operations
======== ================================================ =========================== ===========
FedAvg   copy                                             scale, add                  3
SCAFFOLD square, digest                                   add, add the row, write it  5
FedPDM   CRC-32, square, digest                           add                         4
FedDyn   3 for g_i that follows, 2 squares, digest        3 for g_i, write it, add    11
Fed-PLT  3 for z_i that follows, 2 squares, digest        3 for z_i, write z_i and    15
                                                          x_i, distance (2), sum z_i,
                                                          sum x_i
======== ================================================ =========================== ===========

The squares say whether all numbers are finite, and the digest whether both sides hold the same, so
both come before anything is written: a reply that is refused must cost nothing but itself. A state
that follows is computed twice because to keep it between the two would take a vector an agent. The
CRC-32 of FedPDM's sparse format takes as long as three to four of the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.agents.inputs import PART
from privet.client_apps import LoopParticipant, initial_arrays
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPDM, FedPLT, Scaffold

from .earlier import interval
from .figure import Figure, Show

AGENTS, NUMBERS = 20, 5_000_000
GOAL, NEAR = 1.2, 1.3
"""Times FedAvg's CPU seconds, and times the floor: the larger one is the goal."""
TURNS = 12
LOCAL: Any = {"step_size_base": 0.1, "step_size_rule": "constant", "max_local_steps": 1}
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "fed-avg": lambda agents: FedAvg(
        fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents
    ),
    "fed-plt": lambda agents: FedPLT(num_agents=agents, step_size=0.1, local_epochs=1),
    "fed-dyn": lambda agents: FedDyn(num_agents=agents, **LOCAL),
    "fed-pdm": lambda agents: FedPDM(num_agents=agents, **LOCAL),
    "scaffold": lambda agents: Scaffold(num_agents=agents, **LOCAL),
}


class Server:
    """A run that plays round after round, and says what the last step of each took."""

    def __init__(self, name: str, agents: int, numbers: int) -> None:
        import torch

        quiet()
        torch.set_num_threads(1)
        model = torch.nn.Linear(numbers // 10, 10, bias=False)
        app = ClientApp() if name == "fed-avg" else None
        if app is not None:
            self.arrays = ArrayRecord(model.state_dict())

            @app.train()
            def average(message: Message, context: Context) -> Message:
                arrays: Any = message.content["arrays"]
                model.load_state_dict(arrays.to_torch_state_dict())
                content: Any = {
                    "arrays": ArrayRecord(model.state_dict()),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
                return Message(RecordDict(content), reply_to=message)
        else:
            participant = LoopParticipant(name, model, lambda context: 1)
            app, self.arrays = participant.app(), initial_arrays(model)

            @app.train()
            def correct(message: Message, context: Context) -> Message:
                with participant.round(message, context, model) as local:
                    for _ in range(local.steps):
                        for each in model.parameters():
                            each.grad = torch.zeros_like(each)
                        local.correct(model)
                        torch.optim.SGD(model.parameters(), lr=local.step_size).step()
                model.weight.grad = None
                return local.reply()

        self.grid: Any = InlineGrid(app, agents)
        self.strategy: Any = STRATEGIES[name](agents)
        self.round = 0

    def replies(self) -> list[Message]:
        """Play a round up to the replies."""
        self.round += 1
        config = ConfigRecord()
        messages = self.strategy.configure_train(self.round, self.arrays, config, self.grid)
        return list(self.grid.send_and_receive(messages))

    def fold(self, replies: list[Message]) -> float:
        """End the round, and return the CPU seconds that this took."""
        begin = time.process_time()
        self.arrays, _ = self.strategy.aggregate_train(self.round, replies)
        return time.process_time() - begin

    def peak(self, replies: list[Message]) -> int:
        """End the round, and return the most bytes that the server held meanwhile."""
        for context in self.grid.contexts.values():
            context.state.clear()
        tracemalloc.reset_peak()
        self.fold(replies)
        return tracemalloc.get_traced_memory()[1]


def bare(name: str, agents: int, numbers: int) -> Callable[[], object]:
    """Return a loop over uploads and rows that does what no fold of the method can leave out.

    An upload is read to check that it is finite, and with the agent's row to compare the digest of
    the row that follows: a reply may be refused, so nothing is written before all are checked. Then
    uploads and rows are read again, and the rows written. A row that is in use on both sides is
    that of the method's ``follow``; what is broadcast stays in the cache.
    """
    uploads = [np.full(numbers, 1.0, np.float32) for _ in range(agents)]
    model, total = np.zeros(numbers, np.float32), np.zeros(numbers, np.float32)
    row, x = (np.ones((agents, numbers), np.float32) for _ in range(2))
    parts = [slice(at, at + PART) for at in range(0, numbers, PART)]

    def followed(agent: int, part: slice) -> Any:
        new = uploads[agent][part] - model[part]
        new *= 0.5
        new += row[agent, part]
        return new

    def check(follow: bool) -> None:
        for agent in range(agents):
            for part in parts:
                new = followed(agent, part) if follow else uploads[agent][part]
                np.vdot(uploads[agent][part], uploads[agent][part])
                np.vdot(new, new)
                np.add.reduce(new.view(np.uint64))

    def write(follow: bool, copy: Any) -> None:
        for agent in range(agents):
            for part in parts:
                if follow:
                    row[agent, part] = followed(agent, part)
                if copy is not None:
                    copy[agent, part] = uploads[agent][part]

    def add() -> None:
        total[:] = 0
        for part in parts:
            for upload in uploads:
                total[part] += upload[part]

    def distances() -> None:
        gap = np.empty_like(model)
        for upload in uploads:
            np.subtract(upload, model, out=gap)
            gap.dot(gap)

    def checksums() -> None:
        for upload in uploads:
            zlib.crc32(upload.data)

    sums = partial(np.add.reduce, axis=0)
    loops: dict[str, list[Callable[[], object]]] = {
        "fed-plt": [
            partial(check, True),
            partial(write, True, x),
            distances,
            partial(sums, row),
            partial(sums, x),
        ],
        "fed-dyn": [partial(check, True), partial(write, True, None), add],
        "fed-pdm": [checksums, partial(check, False), add],
        "scaffold": [partial(check, False), partial(sums, row), add, partial(write, False, row)],
    }
    return lambda: [step() for step in loops[name]]


def bench_fold(show: Show, *, quick: bool = False) -> None:
    """Time each fold in turns with FedAvg's and its bare loop, and measure peaks of memory."""
    agents, numbers = (4, 1_000_000) if quick else (AGENTS, NUMBERS)
    case = f"fold of {agents} x {numbers / 1e6:g}M"
    turns = {
        name: _measured_apart(name, "time", agents, numbers, 3 if quick else TURNS)
        for name in list(STRATEGIES)[1:]
    }
    average = median(one for found in turns.values() for one, _, _ in found)
    show(Figure("torch", case, "CPU seconds, fed-avg", average))
    for name, found in turns.items():
        ratio, low, high = interval([[fold / average for average, fold, _ in found]])
        floor = median(loop / average for average, _, loop in found)
        figure = f"{name} / fed-avg, {low:.2f} to {high:.2f}, floor {floor:.2f}"
        goal = max(GOAL, NEAR * floor)
        show(Figure("torch", case, figure, ratio, goal, at_least=False))
    for name in STRATEGIES:
        peak = _measured_apart(name, "peak", agents, numbers) / (4 * numbers)
        show(Figure("torch", case, f"{name}, peak of the server in vectors", peak))


def _measured_apart(name: str, what: str, *numbers: int) -> Any:
    """Return what a process of its own finds."""
    command = [sys.executable, "-m", "benchmarks.fold", name, what, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _times(name: str, agents: int, numbers: int, turns: int) -> list[list[float]]:
    """Return the CPU seconds of FedAvg's fold, the method's and the bare loop, of every turn."""
    average, server = (Server(each, agents, numbers) for each in ("fed-avg", name))
    loop, found = bare(name, agents, numbers), []
    for _ in range(turns + 1):
        folds = [each.fold(each.replies()) for each in (average, server)]
        begin = time.process_time()
        loop()
        found.append([*folds, time.process_time() - begin])
    return found[1:]  # the first allocates


def _peak(name: str, agents: int, numbers: int) -> int:
    """Return the most bytes that the server held during the second fold."""
    import torch  # noqa: F401  # what it allocates is not counted

    tracemalloc.start()
    server = Server(name, agents, numbers)
    server.fold(server.replies())
    return server.peak(server.replies())


if __name__ == "__main__":
    measure: Any = _times if sys.argv[2] == "time" else _peak
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[3:]))))
