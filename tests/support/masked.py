"""Small runs with a secure sum, and a grid that keeps what its agents were sent and answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from privet.client_apps import client_app
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, GFL, FedPDM, FedPLT
from privet.wire import ring
from support.federations import FaultyGrid, position

DIM, COUNT, ROUNDS = 3, 5, 12


def ridge_agents(count: int = COUNT, dtype: str = "f8") -> list[RidgeRegression]:
    rng = np.random.default_rng(5)
    return [
        RidgeRegression(
            rng.standard_normal((8, DIM)).astype(dtype),
            rng.standard_normal(8).astype(dtype),
            regularizer=L2(0.5),
        )
        for _ in range(count)
    ]


def start_at(value: float, dtype: str = "f8") -> ArrayRecord:
    return ArrayRecord({"x": Array(np.full(DIM, value, dtype))})


MAKE: dict[str, Callable[..., Any]] = {
    "fed-plt": lambda **o: FedPLT(**{"rho": 1.0, "local_epochs": 3, "step_size": 0.1, **o}),
    "dp-iadmm": lambda **o: DPIADMM(**{"rho": 2.0, "perturbation": "none", **o}),
    "fed-pdm": lambda **o: FedPDM(
        **{"max_local_steps": 3, "step_size_base": 0.1, "step_size_rule": "constant", **o}
    ),
    "gfl": lambda **o: GFL(
        **{"units": 1, "graph": "complete", "step_size": 0.1, "local_epochs": 2, **o}
    ),
}


def play(name: str, *, rounds: int = ROUNDS, grid: Any = None, **options: Any) -> Any:
    """Run an algorithm on the ridge agents; return result, strategy and grid."""
    if grid is None:
        grid = grid_for(name)
    number = len(grid.contexts)
    start = options.pop("start", {})
    strategy = MAKE[name](**{"num_agents": number, **options})
    return strategy.start(grid, start_at(0.3), num_rounds=rounds, **start), strategy, grid


def grid_for(name: str, count: int = COUNT, faults: Any = None, **options: Any) -> Any:
    problems = ridge_agents(count)
    app = client_app(name, lambda context: problems[position(context)], **options)
    return InlineGrid(app, count) if faults is None else FaultyGrid(app, count, faults)


class Recorder(FaultyGrid):
    """Keeps every training message with its reply."""

    def __init__(self, app: Any, count: int, faults: Any) -> None:
        super().__init__(app, count, faults)
        self.seen: list[tuple[int, Message, Any]] = []

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if "privet.agent" in message.content:
            agent = position(self.contexts[message.metadata.dst_node_id])
            content = reply.content if reply is not None and reply.has_content() else None
            self.seen.append((agent, message, content))
        return reply


def recorded(name: str, faults: Any = None, count: int = COUNT, **options: Any) -> Any:
    problems = ridge_agents(count)
    app = client_app(name, lambda context: problems[position(context)])
    grid = Recorder(app, count, faults or {})
    return play(name, grid=grid, secure_sum=True, **options)


def payload_of(content: Any) -> ring.Words:
    return ring.from_bytes(content["privet"]["payload"])
