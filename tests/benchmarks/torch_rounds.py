"""A training loop of one's own against Flower's FedAvg with the same loop, and against Opacus.

Everything runs in one process and one thread, in turn; times are CPU seconds. Peaks of memory are
those of a process of their own each.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import LoopParticipant, TorchProblem, initial_arrays
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPLT, Scaffold
from privet.wire import ConfigError

from .figure import Figure, Show

AGENTS, STEPS, BATCH, STEP = 4, 10, 32, 0.05
GOAL, MEMORY_GOAL = 1.05, 1.3
LOCAL: Any = {"step_size_base": STEP, "step_size_rule": "constant", "max_local_steps": STEPS}
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "fed-avg": lambda agents: FedAvg(
        fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents
    ),
    "fed-plt": lambda agents: FedPLT(num_agents=agents, step_size=STEP, local_epochs=STEPS),
    "fed-dyn": lambda agents: FedDyn(num_agents=agents, **LOCAL),
    "scaffold": lambda agents: Scaffold(num_agents=agents, **LOCAL),
}


def bench_torch(show: Show, *, quick: bool = False) -> None:
    """Time rounds and clipped gradients, and measure peaks of memory."""
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
    # A server and its agents in one process, which keeps what each of them would keep for itself.
    for agents in (1, AGENTS):
        peaks = {name: _peak(name, agents) for name in STRATEGIES}
        for name in list(STRATEGIES)[1:]:
            ratio = peaks[name] / peaks["fed-avg"]
            case, figure = f"CNN 8M, agents: {agents}", f"peak memory, {name} / fed-avg"
            show(Figure("torch", case, figure, ratio, MEMORY_GOAL, at_least=False))
    clipped = _clipping(torch, 3 if quick else 10)
    if clipped is not None:
        figure = "clipped gradient / Opacus's step"
        show(Figure("torch", "CNN, batch of 256", figure, clipped, 1.0, at_least=False))


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


def network(torch: Any, case: str) -> Any:
    """Return a module for rows of 784 numbers and ten classes."""
    nn = torch.nn
    if case == "perceptron 8M":
        layers = [nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 3200), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(3200, 10))
    if case == "CNN 8M":
        wide = [(1, 64, 5, 2, 2), (64, 256, 3, 2, 1), (256, 512, 3, 2, 1)]
        shapes = [*wide, (512, 512, 3, 1, 1), (512, 512, 3, 1, 1)]
        pairs = [(nn.Conv2d(*shape), nn.ReLU()) for shape in shapes]
        layers = [*(layer for pair in pairs for layer in pair), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(2048, 950), nn.ReLU(), nn.Linear(950, 10)]
    else:
        layers = [nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *layers)


def _peak(name: str, agents: int) -> float:
    """Return the peak of memory, in kB, of a process that plays two rounds of 8M parameters."""
    command = [sys.executable, "-m", "benchmarks.torch_rounds", name, str(agents)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _clipping(torch: Any, repeats: int) -> float | None:
    """Return the time of a clipped gradient over that of a step of Opacus; None without it."""
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    loss = torch.nn.functional.cross_entropy
    inputs, targets = torch.randn(256, 784), torch.randint(10, (256,))
    problem = TorchProblem(network(torch, "CNN 20k"), loss, (inputs, targets))
    vector = problem.arrays()
    start = torch.cat([each.flatten() for each in vector.to_torch_state_dict().values()]).numpy()
    warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
    module = GradSampleModule(network(torch, "CNN 20k"))
    sgd = torch.optim.SGD(module.parameters(), lr=0.0)
    optimizer = DPOptimizer(
        sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=len(inputs)
    )

    def step() -> None:
        optimizer.zero_grad()
        loss(module(inputs), targets).backward()
        optimizer.step()

    timed = (lambda: problem.clipped_gradient(start, 1.0), step)
    best = [float("inf")] * 2
    for _ in range(repeats):
        for place, action in enumerate(timed):
            begin = time.process_time()
            action()
            best[place] = min(best[place], time.process_time() - begin)
    return best[0] / best[1]


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
