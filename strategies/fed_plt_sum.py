"""Fed-PLT with a secure sum: the server keeps the mean of the z_i and sees no x_i.

    zbar <- zbar + (2/N) ( sum_{i in S} x_i - |S| y )         S the participants

is the mean over all agents of z_i <- z_i + 2 (x_i - y), so that the iterates are those of
``fed_plt.py``. The agents round x_i to multiples of 2^-40 before they use it: what is added is
exactly what they hold, and no error builds up. The price: an agent that loses x_i and z_i cannot
go on, because nobody else has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import Settings
from privet.wire.ring import Shapes

from .half import Arrays, GroupSum, Vector


@dataclass(slots=True)
class State:
    """Server state.

    Attributes
    ----------
    total : float64 array (d,)
        Sum of z_i over all agents.
    count : int
        Their number N.
    start : array (d,)
        x_i = z_i of an agent that begins.
    y : array (d,)
        As broadcast last.
    center : array (d,)
        The next y and the last model.
    residual : float
        See ``Server.residual``.
    """

    total: Vector
    count: int
    start: Vector
    y: Vector
    center: Vector
    residual: float = math.nan


@dataclass(frozen=True)
class Server:
    """Server half of Fed-PLT for masked uploads; parameters as in ``fed_plt.Server``."""

    name: ClassVar[str] = "fed-plt"
    version: ClassVar[int] = 1
    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = False

    rho: float = 1.0
    h: ProximalFunction = field(default_factory=Zero)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return {**self.agent_settings, "rho": self.rho}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x_i = z_i = start for all agents."""
        total = count * start.astype(np.float64)
        center = self._consensus(total, count, start)
        return State(total, count, start, center, center)

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent at x_i = z_i = start more."""
        state.total = state.total + start
        state.count += 1
        state.center = self._consensus(state.total, state.count, start)
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return y = prox_{(rho/N) h}(zbar), Algorithm 1 line 2."""
        state.y = state.center
        return state, {"y": state.y}

    def _consensus(self, total: Vector, count: int, like: Vector) -> Vector:
        mean = (total / count).astype(like.dtype)
        return self.h.prox(mean, self.rho / count)

    def summands(self, state: State) -> Shapes:
        """Return x_i (d,) and ||x_i - y||."""
        return {"x": state.y.shape, "distance": ()}

    def fold_sums(self, state: State, sums: Mapping[str, GroupSum]) -> State:
        """Move zbar by the participants' sums and take the next consensus."""
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            return state
        moved = sum((found.arrays["x"] for found in sums.values()), -active * state.y.astype("f8"))
        state.total = state.total + 2.0 * moved
        state.center = self._consensus(state.total, state.count, state.y)
        apart = sum(float(found.arrays["distance"]) for found in sums.values()) / active
        state.residual = apart * apart
        return state

    def recovery(self, state: State, position: int) -> Arrays:
        """Return what an agent begins with; nothing is known of one that has begun."""
        return {"x": state.start, "z": state.start}

    def models(self, state: State) -> Arrays:
        """Return ``last``, prox of zbar; the mean of the x_i is not known."""
        return {"last": state.center}

    def residual(self, state: State) -> float:
        """Return the squared mean over the last participants of ||x_i - y||, each at most 64."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return the state as arrays."""
        return {
            "total": state.total,
            "count": np.array(state.count),
            "start": state.start,
            "y": state.y,
            "residual": np.array(state.residual),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        total, count, y = arrays["total"], int(arrays["count"]), arrays["y"]
        center = self._consensus(total, count, y)
        return State(total, count, arrays["start"], y, center, float(arrays["residual"]))
