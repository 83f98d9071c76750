"""Opacus's per-example clipping inside Flower's FedAvg, for comparison: nothing of ours is charged.

Every round an agent loads the model, takes some steps of Opacus's ``DPOptimizer`` on its own
examples, and sends the model; the coordinator averages. The noise is that of Opacus.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import gaussian_scale, stream
from privet.sim.engine import InlineGrid
from results.network_tasks import Tensors, loss_of

DELTA = 1e-5


def opacus(module: str) -> Any:
    """Return a module of Opacus (raises ``ConfigError`` where it is not installed)."""
    try:
        return import_module(f"opacus.{module}")
    except ImportError:
        raise ConfigError("Opacus in FedAvg needs Opacus: pip install 'opacus>=1.5,<2'") from None


@cache
def multiplier(epsilon: float, rate: float, steps: int) -> float:
    """Return Opacus's noise over the clip.

    With all examples in every step it follows from this library's account of as many Gaussian
    releases of sensitivity 2 C (replace-one); with sampled batches it is what Opacus's own
    accountant, by privacy random variables, finds for add-remove.
    """
    if rate == 1.0:
        return 2.0 * math.sqrt(steps) * gaussian_scale(epsilon, DELTA)
    find = opacus("accountants.utils").get_noise_multiplier
    with warnings.catch_warnings():
        # Of the orders of its other accountant, by which this one is bracketed.
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        found = find(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps,
            accountant="prv",
        )  # fmt: skip
    return float(found)


def trained(
    make: Any,
    agents: Sequence[Tensors],
    seed: int,
    *,
    epsilon: float,
    rate: float,
    rounds: int,
    steps: int,
    clip: float,
    step: float,
) -> tuple[Mapping[str, torch.Tensor], float]:
    """Return the model after ``rounds`` of ``steps`` steps of Opacus, and noise over clip."""
    noise = multiplier(epsilon, rate, rounds * steps)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        own = int(context.node_config["partition-id"])
        number = int(content["config"]["server-round"])
        model = make()
        model.load_state_dict(content["arrays"].to_torch_state_dict())
        names = _in_its_own_form(model)
        draw = stream(seed, "opacus", str(own), round_=number)
        _steps(model, agents[own], draw, noise, rate, steps, clip, step)
        moved = {name: model.get_parameter(place).detach() for name, place in names.items()}
        arrays = ArrayRecord(moved)
        metrics = MetricRecord({"num-examples": len(agents[own][1])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    start = initial_arrays(make())
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(InlineGrid(app, len(agents)), start, num_rounds=rounds)
    found = result.arrays.to_torch_state_dict()
    if not found:  # Flower's FedAvg goes on when all agents fail
        raise RunError("Opacus in FedAvg: no agent replied; the log says why")
    return found, noise


def _in_its_own_form(model: Any) -> dict[str, str]:
    """Replace a GRU by Opacus's with the same weights; return its names of the parameters."""
    names = {name: name for name, _ in model.named_parameters()}
    for layer, gru in model.named_children():
        if isinstance(gru, torch.nn.GRU):
            made = opacus("layers").DPGRU(gru.input_size, gru.hidden_size, batch_first=True)
            with torch.no_grad():
                for name, held in gru.named_parameters():
                    kind, side, _ = name.split("_")
                    made.get_parameter(f"l0.{side}.{kind}").copy_(held)
                    names[f"{layer}.{name}"] = f"{layer}.l0.{side}.{kind}"
            setattr(model, layer, made)
    return names


def _steps(
    model: Any, part: Tensors, draw: np.random.Generator, noise: float, rate: float, steps: int,
    clip: float, step: float,
) -> None:  # fmt: skip
    warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
    inputs, labels = part
    module = opacus("grad_sample").GradSampleModule(model)
    optimizer = opacus("optimizers").DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=step),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=int(rate * len(labels)),
        generator=torch.Generator().manual_seed(int(draw.integers(2**62))),
    )
    for _ in range(steps):
        rows = torch.from_numpy(draw.random(len(labels)) < rate)
        optimizer.zero_grad()
        loss_of(module, inputs[rows], labels[rows]).backward()
        optimizer.step()
    module.remove_hooks()
