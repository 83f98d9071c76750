"""Small federations for tests: problems, apps and grids that misbehave on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, PrivetResult
from privet.testing import logistic_federation

Reaction = Callable[["FaultyGrid", Message, int], Message | None]


def logistic_agents(
    count: int, *, rows: int = 20, dim: int = 4, weight: float = 0.5, seed: int = 0
) -> list[BinaryLogistic]:
    """Return the conformance kit's agents, with a regulariser of their own weight."""
    agents = logistic_federation(count, examples=rows, dim=dim, seed=seed)
    return [BinaryLogistic(a.features, a.labels, regularizer=L2(weight)) for a in agents]


def position(context: Context) -> int:
    """Return the agent's number."""
    return int(context.node_config["partition-id"])


def app_of(problems: Sequence[Any], name: str | None = "fed-plt", **options: Any) -> Any:
    """Return the ClientApp of an algorithm, or of any, that gives node i problem i."""
    return client_app(name, lambda context: problems[position(context)], **options)


def zeros(dim: int, dtype: str = "float64") -> ArrayRecord:
    """Return a starting model of zeros."""
    return ArrayRecord({"x": Array(np.zeros(dim, dtype))})


def model(result: PrivetResult) -> NDArray[Any]:
    """Return the last model as a vector."""
    return result.arrays["x"].numpy()


def bits(result: PrivetResult) -> bytes:
    """Return the bytes of the models of all rounds."""
    return b"".join(np.asarray(record["x"].numpy()).tobytes() for record in result.models.values())


def train(
    problems: list[Any],
    rounds: int,
    *,
    grid: InlineGrid | None = None,
    start: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[PrivetResult, FedPLT, InlineGrid]:
    """Run Fed-PLT in process and return the result, the strategy and the grid."""
    grid = grid or InlineGrid(app_of(problems), len(problems))
    strategy = FedPLT(**{"rho": 1.0, "local_epochs": 3, "num_agents": len(problems), **options})
    result = strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds, **(start or {}))
    return result, strategy, grid


class FaultyGrid(InlineGrid):
    """An engine in which chosen messages meet a chosen fate.

    ``faults`` maps (agent number, round) to a reaction that gets the grid, the message and the
    agent number and returns the reply, or None for one that is lost.
    """

    def __init__(self, app: Any, count: int, faults: dict[tuple[int, int], Reaction]) -> None:
        super().__init__(app, count)
        self.faults = faults

    def deliver(self, message: Message) -> Message | None:
        """Deliver, unless this message has a fate of its own."""
        agent = position(self.contexts[message.metadata.dst_node_id])
        record = message.content.get("privet")
        asks = record is not None and record.get("kind") != "roster"  # to sign is no task
        number = record.get("round", 0) if asks else 0
        reaction = self.faults.pop((agent, int(number)), None)
        if reaction is None:
            return super().deliver(message)
        return reaction(self, message, agent)

    def normally(self, message: Message) -> Message | None:
        """Deliver as if nothing were wrong."""
        return super().deliver(message)


def lose_reply(grid: FaultyGrid, message: Message, agent: int) -> None:
    """Let the agent work and lose what it answers."""
    grid.normally(message)


def lose_state(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
    """Forget the agent's state before it gets the message, as a restarted process does."""
    context = grid.contexts[message.metadata.dst_node_id]
    for key in list(context.state.keys()):
        del context.state[key]
    return grid.normally(message)
