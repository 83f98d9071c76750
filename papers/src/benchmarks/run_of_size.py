"""A run of size on one GPU: FedAvg, FedAdam, Fed-PLT and FedDyn on ResNet-18 and on LoRA.

    PYTHONPATH=tests:papers/src python -m benchmarks.run_of_size FOLDER --device cuda

plays 100 rounds of each method on each model, and prints seconds a round, memory, bytes a message
and accuracy. FOLDER gets a line a round and a line a message; what is there is not played again.
``--engine ray --share 0.25`` has four agents on the GPU at a time on the Ray engine, ``--engine
flower --share 0.25`` in Flower's simulation; ``inline`` plays one after the other in this process.

*resnet*: ResNet-18 (K. He et al., 2016, section 4.1 and table 1) for images of 32 x 32, whose first
convolution is 3 x 3 without pooling, and with GroupNorm in place of BatchNorm; scikit-learn's
digits, enlarged. *lora*: a transformer of 12 layers and width 1024, 101 million random numbers that
stay, LoRA's matrices of rank 16 at queries and values and the embedding; the characters of eight
files of Python's library. Settings are not tuned: one step for all, FedAdam's eta, and defaults.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from torch import nn

from privet.client_apps import LoopParticipant, initial_arrays
from privet.kernel import stream
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPLT
from privet.wire import content_bytes
from results.network_tasks import (
    Agents,
    _LowRank,
    _Transformer,
    accuracy,
    loss_of,
    split,
    texts,
)

METHODS = ("FedAvg", "FedAdam", "Fed-PLT", "FedDyn")
PROTOCOLS = {"Fed-PLT": "fed-plt", "FedDyn": "fed-dyn"}
STEP_SIZES = {"resnet": 0.05, "lora": 0.3}
LOOKS = 5
"""Every so many rounds the model is looked at."""


class _Block(nn.Module):  # type: ignore[misc]
    """Two convolutions with GroupNorm around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(min(32, outside), outside) for _ in range(2))
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            norm = nn.GroupNorm(min(32, outside), outside)
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return pictures (n, outside, h / stride, w / stride)."""
        made = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(made)) + self.short(x))


def resnet(width: int = 64) -> nn.Module:
    """Return ResNet-18 for pictures of one channel and ten classes; 64 is its width."""
    torch.manual_seed(0)
    widths = (width, 2 * width, 4 * width, 8 * width)
    pairs = zip((width, *widths), widths, strict=False)
    blocks = [
        block
        for at, (inside, outside) in enumerate(pairs)
        for block in (_Block(inside, outside, 2 if at else 1), _Block(outside, outside, 1))
    ]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.GroupNorm(min(32, width), width), nn.ReLU(),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10),
    )  # fmt: skip


def lora(width: int = 1024, layers: int = 12) -> nn.Module:
    """Return a transformer of random numbers that stay, with LoRA at queries and values."""
    torch.manual_seed(0)
    model = _Transformer(width, layers)
    model.requires_grad_(False)
    model.embedding.weight.requires_grad_(True)
    for layer in model.layers:
        for name in ("query", "value"):
            setattr(layer, name, _LowRank(getattr(layer, name), 16))
    return model


def digits() -> Agents:
    """Return scikit-learn's digits as 32 x 32 pictures, dealt to 8 agents by Dirichlet(0.3)."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(inputs / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    pictures = nn.functional.interpolate(pictures, size=(32, 32), mode="bilinear")
    targets, draw = torch.tensor(labels), stream(0, "dealt")
    test = np.arange(len(labels)) % 5 == 0
    owner = np.zeros(len(labels), int)
    for one in range(10):
        rows = np.flatnonzero((labels == one) & ~test)
        owner[rows] = draw.choice(8, len(rows), p=draw.dirichlet([0.3] * 8))
    parts = [np.flatnonzero((owner == agent) & ~test) for agent in range(8)]
    return split(
        [(pictures[rows], targets[rows]) for rows in parts if len(rows) > 1],
        (pictures[test], targets[test]),
    )


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[], Agents]]] = {
    "resnet": (resnet, digits),
    "lora": (lora, lambda: texts(Path(), 0)),
}


class Work:
    """What every process of a run makes for itself: a model on the device, data, and the steps."""

    def __init__(self, given: argparse.Namespace, model: str) -> None:
        kind, data = MODELS[model]
        self.model = kind(**({"width": given.width} if given.width else {})).to(given.device)
        self.held, self.given = data(), given
        self.step = STEP_SIZES[model]

    def train(self, agent: int, number: int, correct: Callable[[], object]) -> None:
        """Take a round's SGD steps."""
        given, (inputs, labels) = self.given, self.held.train[agent]
        draw = stream(0, "batches", str(agent), round_=number)
        optimizer = torch.optim.SGD(self.trained(), lr=self.step)
        for _ in range(given.steps):
            rows = draw.choice(len(labels), given.batch, replace=len(labels) < given.batch)
            index = torch.from_numpy(rows.astype("i8"))
            optimizer.zero_grad()
            batch = inputs[index].to(given.device), labels[index].to(given.device)
            loss_of(self.model, *batch).backward()
            correct()
            optimizer.step()

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that travel."""
        return [one for one in self.model.parameters() if one.requires_grad]

    def accuracy(self, arrays: ArrayRecord) -> float:
        """Return the share of the test's labels that a model names."""
        self.model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        device = self.given.device
        inputs, labels = self.held.test
        return accuracy(self.model, (inputs.to(device), labels.to(device)))


def make_app(given: argparse.Namespace, model: str, method: str) -> ClientApp:
    """Return a method's ClientApp, whose messages are noted in a line each."""
    work: list[Work] = []  # made by the first message of a process

    def own() -> Work:
        if not work:
            torch.set_num_threads(1)
            work.append(Work(given, model))
        return work[0]

    def agent_of(context: Context) -> int:
        return int(context.node_config["partition-id"])

    def note(message: Message, reply: Message, begun: float) -> Message:
        line = {
            "down": content_bytes(message.content), "up": content_bytes(reply.content),
            "seconds": time.monotonic() - begun, "resident MB": _resident(),
            "GPU MB": torch.cuda.max_memory_allocated() / 2**20
            if given.device.startswith("cuda") else 0.0,
        }  # fmt: skip
        with (given.folder / f"{_name(given, model, method)}.messages.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        return reply

    protocol = PROTOCOLS.get(method)
    if protocol is None:
        app = ClientApp()
    else:
        kind = MODELS[model][0]
        made = partial(kind, **({"width": given.width} if given.width else {}))
        participant = LoopParticipant(
            protocol, made, lambda context: len(own().held.train[agent_of(context)][1]),
            step_size=STEP_SIZES[model],
        )  # fmt: skip
        app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        begun, here, agent = time.monotonic(), own(), agent_of(context)
        if protocol is not None:
            with participant.round(message, context, here.model, hook=True) as local:
                here.train(agent, local.round, lambda: None)
            return note(message, local.reply(), begun)
        content: Any = message.content
        here.model.load_state_dict(content["arrays"].to_torch_state_dict(), strict=False)
        here.train(agent, int(content["config"]["server-round"]), lambda: None)
        metrics = MetricRecord({"num-examples": len(here.held.train[agent][1])})
        found = RecordDict({"arrays": initial_arrays(here.model), "metrics": metrics})
        return note(message, Message(found, reply_to=message), begun)

    return app


def strategy_of(given: argparse.Namespace, method: str) -> Any:
    """Return a method's strategy."""
    if method == "FedAvg":
        return FedAvg(fraction_evaluate=0.0)
    if method == "FedAdam":
        return FedAdam(fraction_evaluate=0.0, eta=0.03)
    if method == "Fed-PLT":
        return FedPLT(local_epochs=given.steps)
    return FedDyn(max_local_steps=given.steps)


def play(given: argparse.Namespace, model: str, method: str) -> None:
    """Play a run; a line a round."""
    quiet()
    name = _name(given, model, method)
    here = Work(given, model)
    agents, begun = len(here.held.train), [time.monotonic()]
    lines: list[dict[str, Any]] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        now = time.monotonic()
        looked = number % max(1, given.rounds // LOOKS) == 0
        found = here.accuracy(arrays) if looked else None
        if number:
            seconds = now - begun[0]
            line = {"round": number, "seconds": seconds, "accuracy": found}
            lines.append({**line, "resident MB": _resident()})
        begun[0] = time.monotonic()

    strategy, start = strategy_of(given, method), initial_arrays(here.model)
    run = partial(strategy.start, num_rounds=given.rounds, evaluate_fn=evaluate)
    app = partial(make_app, given, model, method)
    if given.engine == "flower":
        from flwr.simulation import run_simulation

        server = ServerApp()

        @server.main()
        def main(grid: Any, context: Context) -> None:
            run(grid, start)

        resources = {"num_cpus": 1, "num_gpus": given.share}
        run_simulation(server, app(), agents, backend_config={"client_resources": resources})
    else:
        if given.engine == "ray":
            from privet.sim.ray.engine import RayGrid

            actors = max(1, int(1.0 / given.share)) if given.share else 2
            grid: Any = RayGrid(app, agents, actors=actors, num_gpus=given.share)
        else:
            grid = nullcontext(InlineGrid(app(), agents))
        with grid as opened:
            run(opened, start)
    (given.folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def summary(given: argparse.Namespace, model: str, method: str) -> str:
    """Return a run's row of the table."""
    name = _name(given, model, method)
    rounds, messages = (
        [json.loads(line) for line in (given.folder / f"{name}{end}").read_text().splitlines()]
        for end in (".jsonl", ".messages.jsonl")
    )
    ends = [one["accuracy"] for one in rounds if one["accuracy"] is not None]
    cells = (
        model, method, len(rounds), f"{median(one['seconds'] for one in rounds):.2f}",
        f"{max(one['resident MB'] for one in rounds):.0f}",
        f"{max(one['resident MB'] for one in messages):.0f}",
        f"{max(one['GPU MB'] for one in messages):.0f}",
        f"{median(one['down'] for one in messages) / 1e6:.2f}",
        f"{median(one['up'] for one in messages) / 1e6:.2f}",
        f"{100 * ends[-1]:.1f}" if ends else "",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "| model | method | rounds | s a round | server, MB | agent, MB | agent's GPU, MB | down, MB | "
    "up, MB | accuracy, % |\n" + "|---" * 10 + "|"
)


def _name(given: argparse.Namespace, model: str, method: str) -> str:
    return f"{model}-{method}-{given.engine}-{given.share:g}-{given.device.partition(':')[0]}"


def _resident() -> float:
    """Return the largest resident set of this process so far, in MB."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main(words: Sequence[str] | None = None) -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description="A run of size.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", choices=("inline", "ray", "flower"), default="inline")
    parser.add_argument("--share", type=float, default=0.0, help="of the GPU, an agent")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=0, help="of a smaller model, for a try")
    given = parser.parse_args(words)
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    runs = [(model, method) for model in given.models for method in given.methods]
    print(HEAD, flush=True)
    for model, method in runs:
        if not (given.folder / f"{_name(given, model, method)}.jsonl").exists():
            (given.folder / f"{_name(given, model, method)}.messages.jsonl").unlink(missing_ok=True)
            # In a process of its own, whose memory is this run's.
            own = multiprocessing.get_context("spawn").Process(
                target=play, args=(given, model, method)
            )
            own.start()
            own.join()
            if own.exitcode:
                raise SystemExit(f"{_name(given, model, method)}: ended with {own.exitcode}")
        print(summary(given, model, method), flush=True)


if __name__ == "__main__":
    # What other processes are sent is found by this name.
    import_module("benchmarks.run_of_size").main()
