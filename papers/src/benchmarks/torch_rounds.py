"""A training loop of one's own against Flower's FedAvg with the same loop, and peers'.

Everything runs in one process and one thread; times are CPU seconds. The four runs are held side by
side and each plays a round in turn, beginning with another one every time: a figure is the median
of the ratios to FedAvg's round of the same turn, with its 95 % interval. Peaks of memory are the
medians of three processes of their own each, in turns, and peers play in one each.

The goal for memory is 1.3 times FedAvg's peak, or where the vectors that a method keeps take more,
`NEAR` times what they take: FedAvg's peak and those vectors. Counted are, of the model's length,
for each agent its state after this round and the one before (a lost reply then costs nothing) and
the server's copy of it (a lost state then costs nothing), for Fed-PLT x_i as well, whose mean is
the model; and whatever their number the sum that FedDyn's server keeps, and the control variate
that SCAFFOLD's keeps and sends.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPLT, Scaffold

from .earlier import interval
from .figure import Figure, Show
from .fold import bench_fold
from .peer_rows import Peers, show_difference
from .peers.torch_model import network, parts, vector
from .peers.work import Work

AGENTS, STEPS, BATCH, STEP = 4, 10, 32, 0.05
GOAL, MEMORY_GOAL, NEAR = 1.05, 1.3, 1.05
HELD = {"fed-plt": (4, 0), "fed-dyn": (3, 1), "scaffold": (3, 2)}
"""Vectors of the model's length that a method keeps, where FedAvg keeps none: of each agent, and
once."""
TURNS = {"CNN 20k": 60, "CNN 8M": 12, "perceptron 8M": 12}
LOCAL: Any = {"step_size_base": STEP, "step_size_rule": "constant", "max_local_steps": STEPS}
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "fed-avg": lambda agents: FedAvg(
        fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents
    ),
    "fed-plt": lambda agents: FedPLT(num_agents=agents, step_size=STEP, local_epochs=STEPS),
    "fed-dyn": lambda agents: FedDyn(num_agents=agents, **LOCAL),
    "scaffold": lambda agents: Scaffold(num_agents=agents, **LOCAL),
}


def bench_torch(show: Show, *, quick: bool = False, peers: Sequence[str] = ()) -> None:
    """Time rounds, and measure peaks of memory.

    ``peers`` are interpreters that have other libraries.
    """
    torch = _torch()
    # A perceptron does 64 multiplications a parameter and step, which copies of the model outlast.
    goals: dict[str, float | None] = {"CNN 20k": GOAL, "CNN 8M": GOAL, "perceptron 8M": None}
    for case, goal in goals.items():
        average, ratios = _turns(torch, case, 3 if quick else TURNS[case])
        show(Figure("torch", case, "CPU seconds a round, fed-avg", average))
        for name, found in ratios.items():
            middle, low, high = interval([found])
            figure = f"{name} / fed-avg, {low:.3f} to {high:.3f}"
            show(Figure("torch", case, figure, middle, goal, at_least=False))
    _bench_peers(torch, show, quick, peers)
    _bench_peaks(torch, show, quick)
    bench_fold(show, quick=quick)


def _turns(torch: Any, case: str, turns: int) -> tuple[float, dict[str, list[float]]]:
    """Return FedAvg's median CPU seconds of a round, and the ratios to it of every turn."""
    runs = {name: rounds_of(torch, name, case) for name in STRATEGIES}
    for run in runs.values():
        next(run)  # which allocates
    order, average = list(runs), []
    ratios: dict[str, list[float]] = {name: [] for name in order[1:]}
    for _ in range(turns):
        seconds = {name: next(runs[name]) for name in order}
        average.append(seconds["fed-avg"])
        for name, found in ratios.items():
            found.append(seconds[name] / average[-1])
        order = [*order[1:], order[0]]
    return median(average), ratios


def _bench_peaks(torch: Any, show: Show, quick: bool) -> None:
    """Show peaks of a server and its agents in one process, which keeps what each would keep."""
    vector = 4 / 1024 * sum(each.numel() for each in network(torch, "CNN 8M").parameters())
    for agents in (1, AGENTS):
        case = f"CNN 8M, agents: {agents}"
        tries = [
            {name: _peak(name, agents) for name in STRATEGIES} for _ in range(1 if quick else 3)
        ]
        peaks = {name: median(each[name] for each in tries) for name in STRATEGIES}
        average = peaks["fed-avg"]
        for name, (each, once) in HELD.items():
            kept = each * agents + once
            floor = (average + kept * vector) / average
            figure = f"peak memory, {name} / fed-avg, floor {floor:.2f}"
            goal = max(MEMORY_GOAL, NEAR * floor)
            show(Figure("torch", case, figure, peaks[name] / average, goal, at_least=False))
            figure = f"{name}, vectors above fed-avg (keeps {kept})"
            show(Figure("torch", case, figure, (peaks[name] - average) / vector))


def _bench_peers(torch: Any, show: Show, quick: bool, interpreters: Sequence[str]) -> None:
    """Time the peers' FedAvg with the loop of `play`, in turns with Flower's and our Fed-PLT's."""
    peers = Peers(("fluke-fl", "pfl"), interpreters)
    for case in ("CNN 20k", "CNN 8M") if peers.interpreters else ():
        work = _work(torch, case)
        costs: dict[str, float] = dict.fromkeys(("fed-avg", "fed-plt"), float("inf"))

        def turn(case: str = case, costs: dict[str, float] = costs) -> None:
            for name, least in costs.items():
                costs[name] = min(least, play(torch, name, case))

        found = peers.play(work, 1 if quick else 3, turn)
        expected = _average(torch, work)
        for name, played in found.items():
            peer = f"{name} {played.version}"
            show(Figure("torch", case, f"{peer}, CPU seconds a round", played.seconds))
            for ours, cost in costs.items():
                show(Figure("torch", case, f"{peer} / {ours}", played.seconds / cost))
            three = [_loss(torch, work, each) for each in (work.start, played.model, expected)]
            show_difference(show, "torch", case, peer, three)


def _work(torch: Any, case: str) -> Work:
    """Return the agents' examples of `play`, with classes that can be learnt."""
    torch.manual_seed(0)
    inputs = torch.randn(AGENTS, STEPS * BATCH, 784)
    labels = inputs[..., :784:80][..., :10].argmax(-1)
    start = vector(torch, network(torch, case))
    return Work(case, inputs.numpy(), labels.numpy(), start, STEP, batch=BATCH)


def _average(torch: Any, work: Work) -> Any:
    """Return FedAvg's model, by its definition."""
    module, loss, data = parts(torch, work)
    model = torch.tensor(work.start)
    for _ in range(work.rounds):
        ends = []
        for inputs, targets in data:
            torch.nn.utils.vector_to_parameters(model.clone(), module.parameters())
            optimizer = torch.optim.SGD(module.parameters(), lr=work.step_size)
            for images, labels in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
                optimizer.zero_grad()
                loss(module(images), labels).backward()
                optimizer.step()
            ends.append(torch.tensor(vector(torch, module)))
        model = torch.stack(ends).mean(0)
    return model.numpy()


def _loss(torch: Any, work: Work, model: Any) -> float:
    """Return the mean loss over all agents' examples."""
    module, loss, data = parts(torch, replace(work, start=model))
    with torch.no_grad():
        return float(sum(loss(module(images), labels) for images, labels in data) / len(data))


def play(torch: Any, name: str, case: str, agents: int = AGENTS, rounds: int = 2) -> float:
    """Return the least CPU seconds of a round of some agents, ten steps of 32 examples each."""
    strategy, grid, start = _run(torch, name, case, agents)
    configure, begins = strategy.configure_train, []

    def configured(*asked: Any) -> Any:
        begins.append(time.process_time())
        return configure(*asked)

    strategy.configure_train = configured
    strategy.start(grid, start, num_rounds=rounds)
    return min(end - begin for begin, end in itertools.pairwise([*begins, time.process_time()]))


def rounds_of(torch: Any, name: str, case: str, agents: int = AGENTS) -> Iterator[float]:
    """Yield the CPU seconds of round after round, each played when it is asked for."""
    strategy, grid, arrays = _run(torch, name, case, agents)
    for number in itertools.count(1):
        begin = time.process_time()
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, list(grid.send_and_receive(messages)))
        del messages
        yield time.process_time() - begin


def _run(torch: Any, name: str, case: str, agents: int) -> tuple[Any, InlineGrid, ArrayRecord]:
    """Return strategy, agents and start of a run."""
    quiet()
    torch.set_num_threads(1)
    model = network(torch, case)
    inputs = torch.randn(agents, STEPS * BATCH, 784)
    targets = torch.randint(10, (agents, STEPS * BATCH))

    def train(place: int, correct: Callable[[Any], None]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
        batches = zip(inputs[place].split(BATCH), targets[place].split(BATCH), strict=True)
        for images, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            correct(model)
            optimizer.step()

    if name == "fed-avg":
        app, start = ClientApp(), ArrayRecord(model.state_dict())

        @app.train()
        def average(message: Message, context: Context) -> Message:
            arrays: Any = message.content["arrays"]
            model.load_state_dict(arrays.to_torch_state_dict())
            train(int(context.node_config["partition-id"]), lambda model: None)
            metrics = MetricRecord({"num-examples": STEPS * BATCH})
            content: Any = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
            return Message(RecordDict(content), reply_to=message)
    else:
        participant = LoopParticipant(name, model, lambda context: STEPS * BATCH)
        app, start = participant.app(), initial_arrays(model)

        @app.train()
        def correct(message: Message, context: Context) -> Message:
            with participant.round(message, context, model) as local:
                train(int(context.node_config["partition-id"]), local.correct)
            return local.reply()

    return STRATEGIES[name](agents), InlineGrid(app, agents), start


def _peak(name: str, agents: int) -> float:
    """Return the peak of memory, in kB, of a process that plays two rounds of 8M parameters."""
    command = [sys.executable, "-m", "benchmarks.torch_rounds", name, str(agents)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ConfigError("bench torch needs PyTorch: pip install torch") from None
    return torch


if __name__ == "__main__":
    play(_torch(), sys.argv[1], "CNN 8M", int(sys.argv[2]), rounds=2)
    # Of this program alone: the peak of getrusage is inherited from whoever started it.
    status = Path("/proc/self/status").read_text()
    print(json.dumps(float(status.partition("VmHWM:")[2].split()[0])))
