"""SCAFFOLD: stochastic controlled averaging, the server half.

S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020), Algorithm 1 with option II for the control variates. With u_i the mean of agent i's
K local gradients, c_i+ = u_i and the agent's move is -eta K (u_i - c_i + c); both sides know c_i,
so u_i is all that has to travel:

    x <- x + eta_g mean_S( -eta K (u_i - c_i + c) ),    c <- c + (1/N) sum_S (u_i - c_i).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privet.agents.terms import PrivacyTerms
from privet.client_apps.rivals.scaffold import Agent
from privet.core.key import setting
from privet.rounds.half import Arrays, HalfState, ServerHalf, Turn, Vector, mean_rows
from privet.rounds.hooks import SearchAxis
from privet.rounds.uploads import ClearSums, Uploads
from privet.wire.ring import Shapes

from .constructors import ScaffoldArguments


@dataclass(slots=True)
class State(HalfState):
    """x (d,), the control variates c_i (N, d) and their mean c (d,).

    The residual is the squared last step of x.
    """

    x: Vector
    mean: Vector
    c: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of SCAFFOLD."""

    state = State
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)
    server_step_size: float = setting(
        1.0, "eta_g, step of the server along the agents' mean move", low=0, open_low=True
    )

    def rows(self, start: Vector) -> Arrays:
        return {"c": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start), **self.tables(start, count))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of control variate zero; c stays the mean of all."""
        count = state.mean.dtype.type(len(state.c))
        state.mean = state.mean * (count / (count + 1))
        return super().admit(state, position, start)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at control variate zero; c stays the mean of all."""
        state.mean = state.mean - state.c[position] / state.mean.dtype.type(len(state.c))
        return super().renew(state, position, start)

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        return state, {"x": state.x, "c": state.mean}

    def summands(self, state: State) -> Shapes:
        """Return u_i (d,)."""
        return {"u": state.x.shape}

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the participants' mean move, and that of their control variates."""
        if not uploads:
            return state
        kind = state.x.dtype.type
        moved = uploads.total("u", state.x)
        moved /= kind(len(uploads))
        moved -= mean_rows(state.c, uploads.positions)
        share = kind(len(uploads) / len(state.c))
        step = self.agent.step_size(turn.number)
        length = kind(self.server_step_size * step * self.agent.max_local_steps)
        ahead = moved + (_mean_sent(uploads, state.mean) if turn.sweep else state.mean)
        ahead *= length * share if turn.sweep else length
        moved *= share
        state.mean = np.add(state.mean, moved, out=None if turn.sweep else state.mean)
        self.mirror(state, uploads)
        x = np.subtract(state.x, ahead, out=ahead)
        return State(x, state.mean, state.c, residual=uploads.step(x, state.x, out=moved))


def _mean_sent(uploads: Uploads, like: Vector) -> Vector:
    """Return the mean of the c that the agents were sent."""
    mean: Vector = ClearSums(uploads).sent("c") / len(uploads)
    return mean.astype(like.dtype, copy=False)


class Scaffold(ScaffoldArguments):
    """SCAFFOLD as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: of the moves the participants; c keeps the absent ones.
    Asynchronously an upload counts 1/N, with the c that its agent was sent.
    Privacy: with ``clip`` and ``noise_scale`` > 0 every local gradient is noised, so an upload is
    ``max_local_steps`` Gaussian releases and the control variates are made of what was released.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server, PrivacyTerms)
    server_half = Server
    local_steps: ClassVar[str] = "max-local-steps"
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
        SearchAxis("server-step-size", 0.1, 3.0),
    )
    no_secure_sum: ClassVar[str] = "its server holds the control variate of every agent"
