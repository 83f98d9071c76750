"""The charged step of a training loop of one's own against the step of Opacus.

Both are taken in turn, in one process and one thread, on the same batch of three networks of the
suite: convolutions, embeddings beside small linear layers, and a GRU. What is shown is the middle
of the ratios of the pairs, in CPU seconds, so that a machine that slows down slows both, and the
interval that holds the median of such ratios with 95 % (order statistics). A step of ours clips,
adds noise of the operating system's generator on a grid, takes the step and looks that nothing else
moved the model; one of Opacus clips, adds noise of PyTorch's generator, and takes it.

What the gradients of single examples alone take by ``torch.func.vmap`` of ``torch.func.grad`` is
shown as well: the step had them so before linear layers, convolutions, embeddings and GRUs had
rules of their own, and still has for other layers.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flwr.app import Context, Message

from privet.agents.adapters.networks.clipping import block_rows
from privet.agents.adapters.networks.functions import ruled
from privet.agents.adapters.networks.recurrent import recurrent_rules
from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn

from .figure import Figure, Show, undisturbed

GOAL = 1.0
BATCH = 256
STEPS, QUICK = 120, 12
STEP = 0.05
WARM = 3
"""Pairs that are not counted: the first step of a round looks at the loss as well."""


def bench_private_step(show: Show, *, quick: bool = False) -> None:
    """Show the ratio of the two steps on each network, and the CPU seconds of ours."""
    torch = _torch()
    quiet()
    torch.set_num_threads(1)
    for case, (make, batch) in _cases(torch).items():
        ours, alone, theirs = _turns(torch, make, batch, QUICK if quick else STEPS)
        show(Figure("private-step", case, "CPU seconds of a step", statistics.median(ours)))
        if theirs:
            figure = "private_step / Opacus's step"
            ratio = _middle(ours, theirs)
            show(Figure("private-step", case, figure, ratio, GOAL, at_least=False))
            for end, value in zip(("from", "to"), _interval(ours, theirs), strict=True):
                show(Figure("private-step", case, f"95 % interval of its median, {end}", value))
            figure = "its gradients by vmap / Opacus's step"
            show(Figure("private-step", case, figure, _middle(alone, theirs)))


def _cases(torch: Any) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return the network and a batch of each case."""
    tasks: Any = import_module("results.network_tasks")
    torch.manual_seed(0)
    images = torch.rand(BATCH, 1, 28, 28)
    coded = [torch.randint(count, (BATCH, 1)).float() for count in tasks.SHAPES]
    rows = torch.cat([*coded, torch.randn(BATCH, len(tasks.NUMBERS))], 1)
    texts, following = torch.randint(len(tasks.ALPHABET), (2, BATCH, tasks.LENGTH))
    return {
        "CNN": (lambda: tasks.convolutions(0, "small"), (images, torch.randint(10, (BATCH,)))),
        "embeddings": (lambda: tasks.perceptron(0, "small"), (rows, torch.randint(2, (BATCH,)))),
        "GRU": (lambda: tasks.recurrent(0, "small"), (texts, following)),
    }


def _loss(model: Any, batch: Any) -> Any:
    from torch.nn.functional import cross_entropy

    inputs, targets = batch
    scores = model(inputs)
    return cross_entropy(scores.flatten(0, -2), targets.flatten())


def _middle(ones: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def _interval(ones: list[float], others: list[float]) -> tuple[float, float]:
    """Return the order statistics of the ratios that hold their median with at least 95 %.

    Each ratio is below the median with probability 1/2, so that ranks are those of a binomial law.
    """
    ratios = sorted(one / other for one, other in zip(ones, others, strict=True))
    count, outside, rank = len(ratios), 0.0, 0
    while rank < count // 2 and outside + math.comb(count, rank) / 2.0**count <= 0.025:
        outside += math.comb(count, rank) / 2.0**count
        rank += 1
    rank = max(rank - 1, 0)
    return ratios[rank], ratios[count - 1 - rank]


def _turns(
    torch: Any, make: Callable[[], Any], batch: Any, steps: int
) -> tuple[list[float], list[float], list[float]]:
    """Return the CPU seconds of the steps of one round, of their gradients, and of Opacus."""
    participant = LoopParticipant("fed-dyn", make, lambda context: BATCH)
    app, other = participant.app(), _opacus(torch, make(), batch)
    gradients = _gradients(torch, make(), batch)
    ours: list[float] = []
    alone: list[float] = []
    theirs: list[float] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        with participant.round(message, context, model) as local:
            for _ in range(local.steps):
                ours.append(_seconds(lambda: local.private_step(_loss, batch)))
                if other is not None:
                    alone.append(_seconds(gradients))
                    theirs.append(_seconds(other))
        return local.reply()

    strategy = FedDyn(
        num_agents=1, clip=1.0, noise_scale=0.01, max_local_steps=steps + WARM,
        step_size_base=STEP, step_size_rule="constant",
    )  # fmt: skip
    strategy.start(InlineGrid(app, 1), initial_arrays(make()), num_rounds=1)
    return ours[WARM:], alone[WARM:], theirs[WARM:]


def _gradients(torch: Any, model: Any, batch: Any) -> Callable[[], None]:
    """Return what takes every example's gradient in the blocks of a step, and nothing else."""
    trained = {name: value.detach() for name, value in model.named_parameters()}
    rows = block_rows(sum(value.numel() for value in trained.values()))
    blocks = list(zip(*(part.split(rows) for part in batch), strict=True))

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        scores = torch.func.functional_call(model, parameters, (inputs[None],))
        return torch.nn.functional.cross_entropy(scores.flatten(0, -2), targets[None].flatten())

    gradient = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def take() -> None:
        with ruled(recurrent_rules()):
            for inputs, targets in blocks:
                gradient(trained, inputs, targets)

    return take


def _opacus(torch: Any, model: Any, batch: Any) -> Callable[[], None] | None:
    """Return Opacus's step on a network; None without Opacus."""
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.layers import DPGRU
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    for name, layer in model.named_children():
        if isinstance(layer, torch.nn.GRU):  # which Opacus takes in its own form alone
            setattr(model, name, DPGRU(layer.input_size, layer.hidden_size, batch_first=True))
    warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
    module = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=STEP),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )

    def step() -> None:
        optimizer.zero_grad()
        _loss(module, batch).backward()
        optimizer.step()

    return step


def _seconds(action: Callable[[], Any]) -> float:
    with undisturbed():
        begin = time.process_time()
        action()
        return time.process_time() - begin


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ConfigError("bench private-step needs PyTorch: pip install torch") from None
    return torch
