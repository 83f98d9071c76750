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
what travels, and costs one gradient besides the local steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.wire import Settings, digest

from ..cost import Cost
from ..half import Arrays, ServerHalf, Vector
from .base import RIVAL_KEYS, RivalServer, RivalStrategy, State, mean_row
from .dp_fedsgd import checked


@dataclass(frozen=True)
class Server(RivalServer):
    """Server half of 5GCS; the state's x is xhat.

    Parameters
    ----------
    gamma : float
        Step size of the server.
    mu : float
        Strong convexity common to all f_i.
    """

    name: ClassVar[str] = "five-gcs"

    gamma: float = 1.0
    mu: float = 0.0

    def rows(self, start: Vector) -> Arrays:
        """Return u_i = 0."""
        return {"u": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start, so xhat = start / (1 + gamma mu), and u_i = 0."""
        state = super().initialise(start, count)
        state.x = self._implicit(start, np.zeros_like(start))
        return state

    def _implicit(self, x: Vector, v: Vector) -> Vector:
        kind = x.dtype.type
        ahead: Vector = (x - kind(self.gamma) * v) / kind(1.0 + self.gamma * self.mu)
        return ahead

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check u_i."""
        u = checked(upload, "u", state.x)
        return {"u": u}, digest(u)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Take the cohort's u_i and the next xhat."""
        if not uploads:
            return state
        table = state.own["u"]
        old = mean_row(table)
        for position, arrays in uploads.items():
            table[position] = arrays["u"]
        new = mean_row(table)
        factor = state.x.dtype.type(self.gamma * len(table) / len(uploads))
        ahead = self._implicit(state.x - factor * (new - old), new)
        gap = ahead - state.x
        state.residual = float(gap @ gap)
        state.x = ahead
        return state


class FiveGCS(RivalStrategy):
    """5GCS; keys: ``rho``, ``server_step_size`` (gamma), ``common_convexity`` (mu), local steps.

    ``step_size`` 0 lets every agent take the best fixed step of its own subproblem. Absent agents
    keep their u_i, which counts.
    """

    algorithm: ClassVar[str] = "five-gcs"
    keys: ClassVar[tuple[str, ...]] = (*RIVAL_KEYS, "rho", "server-step-size", "common-convexity")
    cost: ClassVar[Cost] = Cost(agent=1, coordinator=1, shared=1, extra_gradients=1)
    partial: ClassVar[bool] = True

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        return Server(settings, config["server-step-size"], config["common-convexity"])
