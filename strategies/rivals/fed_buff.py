"""FedBuff: asynchronous averaging with a buffer, the server half.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated Learning with
Buffered Asynchronous Aggregation" (2022), Algorithm 1. With the K uploads of the buffer, each of an
agent that was sent the model w^(t_i) and has come to w_i,

    w <- w + eta_g (1/K) sum_i s(t - t_i) (w_i - w^(t_i)),     s(age) = 1 / sqrt(1 + age).

With the uploads of all agents in every version it is FedAvg. A fast agent counts as often as it
uploads, and several local steps leave each w_i on the way to its agent's own minimiser: the limit
is not the minimiser of the sum, and further from it where the slow agents hold other data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.fed_buff import Agent
from privet.core.key import setting
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.uploads import Uploads

from .constructors import FedBuffArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x (d,); the residual is the squared last step of x."""

    x: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedBuff."""

    state = State
    no_server_optimizer: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)
    server_step_size: float = setting(
        1.0, "eta_g, step of the server along the agents' mean move", low=0, open_low=True
    )

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the mean move of the buffer, old ones shortened."""
        if not uploads:
            return state
        moved = uploads.moved("x", "x", self._weight, state.x)
        x = state.x + moved
        return State(x, residual=uploads.step(x, state.x, out=moved))

    def _weight(self, age: int) -> float:
        """Return eta_g s(age)."""
        return self.server_step_size / math.sqrt(1 + age)


class FedBuff(FedBuffArguments):
    """FedBuff as a Flower Strategy.

    Notes
    -----
    The buffer is the key ``buffer`` of an asynchronous run.
    Who is averaged when some are absent: the buffer's uploads, an agent as often as it uploads.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    cost: ClassVar[Cost] = Cost(agent=0, coordinator=0, shared=1)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size", 0.05, 3.0, "smoothness"),
        SearchAxis("server-step-size", 0.1, 3.0),
    )
    partial: ClassVar[bool] = True
