"""A training loop of one's own against Flower's FedAvg with the same loop, and peers'.

Everything runs in one process and one thread, in turn; times are CPU seconds. Peaks of memory are
those of a process of their own each, and peers play in one each.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPLT, Scaffold

from .figure import Figure, Show
from .fold import bench_fold
from .peer_rows import Peers, show_difference
from .peers.torch_model import network, parts, vector
from .peers.work import Work

AGENTS, STEPS, BATCH, STEP = 4, 10, 32, 0.05
GOAL, MEMORY_GOAL = 1.05, 1.3
HELD = {"fed-plt": 4, "fed-dyn": 3, "scaffold": 3}
"""Vectors of the model's length that an agent costs a method, where FedAvg keeps none: the agent's
dual after this round and the one before, the server's copy; for Fed-PLT the server's x_i."""
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
        costs: dict[str, float] = dict.fromkeys(STRATEGIES, float("inf"))
        for _ in range(1 if quick else {"CNN 20k": 20}.get(case, 4)):
            for name in STRATEGIES:
                costs[name] = min(costs[name], play(torch, name, case))
        show(Figure("torch", case, "CPU seconds a round, fed-avg", costs["fed-avg"]))
        for name in list(STRATEGIES)[1:]:
            ratio = costs[name] / costs["fed-avg"]
            show(Figure("torch", case, f"{name} / fed-avg", ratio, goal, at_least=False))
    _bench_peers(torch, show, quick, peers)
    # A server and its agents in one process, which keeps what each of them would keep for itself.
    size = 4 / 1024 * sum(each.numel() for each in network(torch, "CNN 8M").parameters())
    for agents in (1, AGENTS):
        peaks = {name: _peak(name, agents) for name in STRATEGIES}
        for name in list(STRATEGIES)[1:]:
            ratio = peaks[name] / peaks["fed-avg"]
            case, figure = f"CNN 8M, agents: {agents}", f"peak memory, {name} / fed-avg"
            show(Figure("torch", case, figure, ratio, MEMORY_GOAL, at_least=False))
            more = (peaks[name] - peaks["fed-avg"]) / (size * agents)
            figure = f"{name}, vectors an agent (keeps {HELD[name]})"
            show(Figure("torch", case, figure, more))
    bench_fold(show, quick=quick)


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

    strategy = STRATEGIES[name](agents)
    configure, begins = strategy.configure_train, []

    def configured(*asked: Any) -> Any:
        begins.append(time.process_time())
        return configure(*asked)

    strategy.configure_train = configured
    strategy.start(InlineGrid(app, agents), start, num_rounds=rounds)
    return min(end - begin for begin, end in itertools.pairwise([*begins, time.process_time()]))


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
