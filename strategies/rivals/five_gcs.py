"""5GCS: local training with client sampling, the server half.

M. Grudzien, G. Malinovsky, P. Richtarik, "Can 5th Generation Local Training Methods Support Client
Sampling? Yes!" (2023), Algorithm 1. The objective is split as mean_i F_i + (mu/2) ||x||^2 with
F_i = f_i - (mu/2) ||x||^2, and with a cohort of c of the n agents

    server   xhat = (x - gamma v) / (1 + gamma mu)
    agent    y <- N_e solver steps on  F_i(y) + ||y - (xhat + rho u_i)||^2 / (2 rho),  from xhat
             u_i <- grad F_i(y)                                  the others keep u_i
    server   v' = mean over all agents u_i,   x <- xhat - gamma (n/c) (v' - v),   v = v'

The paper divides every F_i by n and calls the penalty tau; here rho = 1 / (n tau), u_i is n times
the paper's and v a mean, which leaves x, xhat and y as they are. gamma is ``server-step-size`` and
mu is ``common-convexity``: any value that every f_i is strongly convex with, 0 included. u_i is
what travels, and costs one gradient in addition to the local steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.client_apps.rivals.five_gcs import Agent
from privet.core.key import setting
from privet.kernel import Moduli
from privet.rounds.half import Arrays, HalfState, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.uploads import Uploads
from privet.wire.ring import Shapes

from .constructors import FiveGCSArguments


@dataclass(slots=True)
class State(HalfState):
    """xhat (d,) and the agents' u_i (N, d); the residual is the squared last step of xhat."""

    x: Vector
    u: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of 5GCS; ``agent`` has rho, and mu as its common convexity."""

    state = State

    agent: Agent = field(default_factory=Agent)
    server_step_size: float = setting(1.0, "gamma of the paper", low=0, open_low=True)

    def rows(self, start: Vector) -> Arrays:
        return {"u": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start, so xhat = start / (1 + gamma mu), and u_i = 0."""
        return State(self._implicit(start, np.zeros_like(start)), **self.tables(start, count))

    def _implicit(self, x: Vector, v: Vector) -> Vector:
        kind, mu = x.dtype.type, self.agent.common_convexity
        ahead: Vector = (x - kind(self.server_step_size) * v) / kind(
            1.0 + self.server_step_size * mu
        )
        return ahead

    def summands(self, state: State) -> Shapes:
        """Return u_i (d,)."""
        return {"u": state.x.shape}

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the change of the mean u_i, and the next xhat."""
        if not uploads:
            return state
        old = mean_row(state.u)
        self.mirror(state, uploads)
        new = mean_row(state.u)
        factor = state.x.dtype.type(self.server_step_size * len(state.u) / len(uploads))
        ahead = self._implicit(state.x - factor * (new - old), new)
        state.residual = uploads.step(ahead, state.x)
        state.x = ahead
        return state


class FiveGCS(FiveGCSArguments):
    """5GCS as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: all agents, absent ones with their old u_i.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "its server step makes up for a cohort that is drawn at random, and whoever is "
        "quickest is not"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    positional = ("rho",)
    # The local step is the best fixed one: a third parameter cost more than it gained.
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("rho", 0.05, 20.0, "splitting"),
        SearchAxis("server-step-size", 0.05, 20.0, "splitting"),
    )
    cost: ClassVar[Cost] = Cost(agent=1, coordinator=1, shared=1, extra_gradients=1)
    partial: ClassVar[bool] = True

    @classmethod
    def assumed(cls, moduli: Moduli) -> Mapping[str, Any]:
        """Return mu: the paper takes it to be known."""
        return {"common-convexity": max(0.0, moduli.strong_convexity)}
