"""FedDyn: federated learning with dynamic regularisation, the server half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1:

    agent    x_i = K steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2
             g_i <- g_i - alpha (x_i - x)
    server   h <- h - (alpha/N) sum_S (x_i - x),    x <- mean_S x_i - h / alpha
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import ConfigError, Settings, digest
from privet.wire.agreement import dynamic_gradient

from ..configured import GRADIENT_KEYS, ConfiguredStrategy
from ..half import Arrays, Vector
from .dp_fedsgd import checked, mean_of


@dataclass(slots=True)
class State:
    """x and h (d,), and the agents' g_i (N, d)."""

    x: Vector
    h: Vector
    table: Vector
    residual: float = math.nan


@dataclass(frozen=True)
class Server:
    """Server half of FedDyn."""

    name: ClassVar[str] = "fed-dyn"
    version: ClassVar[int] = 1

    alpha: float = 0.1
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return {**self.agent_settings, "fed-dyn-alpha": self.alpha}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start, h = 0 and g_i = 0."""
        return State(start, np.zeros_like(start), np.zeros((count, start.size), start.dtype))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of g_i = 0."""
        table = np.insert(state.table, position, 0.0, axis=0)
        return State(state.x, state.h, table, state.residual)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0; h stays the mean of all."""
        h = state.h - state.table[position] / state.h.dtype.type(len(state.table))
        state.table[position] = 0.0
        return State(state.x, h, state.table, state.residual)

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x."""
        return state, {"x": state.x}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check x_i; both sides compute g_i from it."""
        x = checked(upload, "x", state.x)
        return {"x": x}, digest(dynamic_gradient(state.table[position], x, state.x, self.alpha))

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Move h, x and the participants' g_i."""
        if not uploads:
            return state
        kind = state.x.dtype.type
        mean = mean_of(uploads, "x", state.x)
        h = state.h - kind(self.alpha * len(uploads) / len(state.table)) * (mean - state.x)
        for i, arrays in uploads.items():
            state.table[i] = dynamic_gradient(state.table[i], arrays["x"], state.x, self.alpha)
        x = mean - h / kind(self.alpha)
        gap = x - state.x
        return State(x, h, state.table, float(gap @ gap))

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return g_i: all that an agent holds."""
        return {"g": state.table[position]}

    def models(self, state: State) -> Arrays:
        """Return ``last``: x."""
        return {"last": state.x}

    def residual(self, state: State) -> float:
        """Return ||x - x of the round before||^2."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return x, h, all g_i and the residual."""
        return {
            "x": state.x,
            "h": state.h,
            "table": state.table,
            "residual": np.array(state.residual),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        return State(arrays["x"], arrays["h"], arrays["table"].copy(), float(arrays["residual"]))


class FedDyn(ConfiguredStrategy):
    """FedDyn; keys: ``fed_dyn_alpha`` and those of the gradient steps.

    Privacy: with ``clip`` and ``noise_scale`` > 0 every local gradient is noised, so an upload is
    ``max_local_steps`` Gaussian releases and g_i is made of what was released.
    """

    algorithm: ClassVar[str] = "fed-dyn"
    no_secure_sum: ClassVar[str] = "its server mirrors the gradient estimate of every agent"
    keys: ClassVar[tuple[str, ...]] = (*GRADIENT_KEYS, "fed-dyn-alpha")

    @staticmethod
    def half_of(config: Mapping[str, Any], h: ProximalFunction) -> Server:
        """Return the server half."""
        if not isinstance(h, Zero):
            raise ConfigError("h: fed-dyn has no proximal step for it")
        return Server(config["fed-dyn-alpha"], {name: config[name] for name in GRADIENT_KEYS})
