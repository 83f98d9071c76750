"""A model of two numbers, each agent's loss a quadratic of them, under loops of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.client_apps import LoopParticipant, initial_arrays
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPLT, PrimalDualStrategy, Scaffold

torch = pytest.importorskip("torch", reason="needs the group torch")

CURVATURE = torch.tensor([[1.0, 4.0], [3.0, 0.5], [2.0, 2.0]], dtype=torch.float64)
TARGET = torch.tensor([[1.0, -2.0], [5.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
OPTIMUM = ((CURVATURE * TARGET).sum(0) / CURVATURE.sum(0)).numpy()
AGENTS = len(TARGET)
STRATEGIES: dict[str, Callable[[], PrimalDualStrategy]] = {
    "fed-plt": lambda: FedPLT(num_agents=AGENTS, rho=0.5, step_size=0.05, local_epochs=4),
    "fed-dyn": lambda: FedDyn(num_agents=AGENTS, fed_dyn_alpha=1.0, step_size_base=0.05),
    "scaffold": lambda: Scaffold(num_agents=AGENTS, step_size_base=0.05, max_local_steps=4),
}


class Point(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.last = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def loss(self, agent: int) -> Any:
        (a, b), (c, d) = CURVATURE[agent], TARGET[agent]
        return (0.5 * (a * (self.first - c) ** 2 + b * (self.last - d) ** 2)).sum()


Loop = Callable[[Any, Point, int], None]


def played(
    name: str, loop: Loop, hook: bool = True, rounds: int = 4, models: Sequence[Point] = ()
) -> Any:
    """Return the model of a run whose local steps are a loop's, on modules of the agents if given.

    Without them each round has a new one.
    """
    participant = LoopParticipant(name, Point, lambda context: 5)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        agent = int(context.node_config["partition-id"])
        model = models[agent] if models else Point()
        with participant.round(message, context, model, hook=hook) as local:
            loop(local, model, agent)
        return local.reply()

    grid = InlineGrid(app, AGENTS)
    done = STRATEGIES[name]().start(grid, initial_arrays(Point()), num_rounds=rounds)
    return np.concatenate([array.numpy() for array in done.arrays.values()])


def closure_of(optimizer: Any, model: Point, agent: int) -> Callable[[], Any]:
    """Return a closure as PyTorch documents it and Lightning's own optimisation has it."""

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model.loss(agent)
        loss.backward()
        return loss.detach()

    return closure
