"""FedAsync: asynchronous federated optimisation, the server half.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization" (2019), Algorithm 1. An upload
w_i of an agent that was sent the model w^(t_i) is mixed into the present one,

    w <- (1 - alpha_i) w + alpha_i w_i,     alpha_i = alpha (1 + t - t_i)^(-a),

with the paper's polynomial weight. That is one upload a version, ``buffer`` = 1; of several, w
moves by the mean of alpha_i (w_i - w), and with those of all agents it is FedAvg with a step alpha.
The limit is not the minimiser of the sum: an agent counts as often as it uploads, and w keeps
moving towards whose upload was last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.fed_async import Agent
from privet.core.key import setting
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.uploads import Uploads

from .constructors import FedAsyncArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x (d,); the residual is the squared last step of x."""

    x: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedAsync."""

    state = State
    no_server_optimizer: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)
    fed_async_alpha: float = setting(
        0.6, "share of an upload in the next model", low=0, high=1, open_low=True
    )
    staleness_exponent: float = setting(
        0.5, "a of the share alpha (1 + age)^(-a) of an upload of an older model", low=0
    )

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Move the model towards the uploads, less towards old ones."""
        if not uploads:
            return state
        moved = uploads.moved("x", state.x, self._weight, state.x)
        x = state.x + moved
        return State(x, residual=uploads.step(x, state.x, out=moved))

    def _weight(self, age: int) -> float:
        """Return alpha of an upload of this age."""
        return self.fed_async_alpha * math.pow(1 + age, -self.staleness_exponent)


class FedAsync(FedAsyncArguments):
    """FedAsync as a Flower Strategy.

    Notes
    -----
    ``buffer`` = 1 in an asynchronous run is the paper's.
    Who is averaged when some are absent: nobody; the model moves towards the uploads that come, an
    agent's as often as it uploads.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    cost: ClassVar[Cost] = Cost(agent=0, coordinator=0, shared=1)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size", 0.05, 3.0, "smoothness"),
        SearchAxis("fed-async-alpha", 0.05, 1.0),
    )
    partial: ClassVar[bool] = True
