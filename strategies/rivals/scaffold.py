"""SCAFFOLD: stochastic controlled averaging, the server half.

S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020), Algorithm 1 with option II for the control variates. With u_i the mean of agent i's
K local gradients, c_i+ = u_i and the agent's move is -eta K (u_i - c_i + c); both sides know c_i,
so u_i is all that has to travel:

    x <- x + eta_g mean_S( -eta K (u_i - c_i + c) ),    c <- c + (1/N) sum_S (u_i - c_i).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import ConfigError, Settings, digest

from ..configured import GRADIENT_KEYS, ConfiguredStrategy, step_size
from ..half import Arrays, Vector
from .dp_fedsgd import checked, mean_of


@dataclass(slots=True)
class State:
    """x and c (d,), the control variates c_i (N, d), and the number of rounds done."""

    x: Vector
    c: Vector
    table: Vector
    rounds: int = 0
    residual: float = math.nan


@dataclass(frozen=True)
class Server:
    """Server half of SCAFFOLD."""

    name: ClassVar[str] = "scaffold"
    version: ClassVar[int] = 1

    server_step_size: float = 1.0
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return dict(self.agent_settings)

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start and control variates of zero."""
        return State(start, np.zeros_like(start), np.zeros((count, start.size), start.dtype))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of control variate zero; c stays the mean of all."""
        count = state.c.dtype.type(len(state.table))
        table = np.insert(state.table, position, 0.0, axis=0)
        c = state.c * (count / (count + 1))
        return State(state.x, c, table, state.rounds, state.residual)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at control variate zero; c stays the mean of all."""
        c = state.c - state.table[position] / state.c.dtype.type(len(state.table))
        state.table[position] = 0.0
        return State(state.x, c, state.table, state.rounds, state.residual)

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x and c."""
        return state, {"x": state.x, "c": state.c}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check the mean gradient."""
        u = checked(upload, "u", state.x)
        return {"u": u}, digest(u)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Move x and the control variates."""
        if not uploads:
            return state
        kind = state.x.dtype.type
        moved = mean_of(uploads, "u", state.x)
        moved -= mean_of({i: {"c": state.table[i]} for i in uploads}, "c", state.x)
        share = kind(len(uploads) / len(state.table))
        step = step_size(self.agent_settings, state.rounds + 1)
        length = kind(self.server_step_size * step * self.agent_settings["max-local-steps"])
        x = state.x - length * (moved + state.c)
        c = state.c + share * moved
        for position, arrays in uploads.items():
            state.table[position] = arrays["u"]
        gap = x - state.x
        return State(x, c, state.table, state.rounds + 1, float(gap @ gap))

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return c_i: all that an agent holds."""
        return {"c": state.table[position]}

    def models(self, state: State) -> Arrays:
        """Return ``last``: x."""
        return {"last": state.x}

    def residual(self, state: State) -> float:
        """Return ||x - x of the round before||^2."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return x, c, all c_i, the round and the residual."""
        return {
            "x": state.x,
            "c": state.c,
            "table": state.table,
            "scalars": np.array([state.rounds, state.residual]),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        rounds, residual = arrays["scalars"]
        table = arrays["table"].copy()
        return State(arrays["x"], arrays["c"], table, int(rounds), float(residual))


class Scaffold(ConfiguredStrategy):
    """SCAFFOLD; keys: ``server_step_size`` and those of the gradient steps.

    Privacy: with ``clip`` and ``noise_scale`` > 0 every local gradient is noised, so an upload is
    ``max_local_steps`` Gaussian releases and the control variates are made of what was released.
    """

    algorithm: ClassVar[str] = "scaffold"
    no_secure_sum: ClassVar[str] = "its server holds the control variate of every agent"
    keys: ClassVar[tuple[str, ...]] = (*GRADIENT_KEYS, "server-step-size")

    @staticmethod
    def half_of(config: Mapping[str, Any], h: ProximalFunction) -> Server:
        """Return the server half."""
        if not isinstance(h, Zero):
            raise ConfigError("h: scaffold has no proximal step")
        return Server(config["server-step-size"], {name: config[name] for name in GRADIENT_KEYS})
