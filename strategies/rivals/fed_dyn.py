"""FedDyn: federated learning with dynamic regularisation, the server half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1:

    agent    x_i = K steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2
             g_i <- g_i - alpha (x_i - x)
    server   h <- h - (alpha/N) sum_S (x_i - x),    x <- mean_S x_i - h / alpha
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Unpack

import numpy as np

from privet.client_apps.rivals.fed_dyn import Agent, dynamic_gradient
from privet.client_apps.terms import PrivacyTerms

from ..base import PrimalDualStrategy
from ..half import (
    Arrays,
    FoldingHalf,
    HalfState,
    Turn,
    Vector,
    advance,
    mean_of,
    next_row,
    present,
    squared_gap,
)
from ..hooks import SearchAxis
from .base import SeveralStepsArguments


@dataclass(slots=True)
class State(HalfState):
    """x and h (d,), and the agents' g_i (N, d); the residual is the squared last step of x."""

    x: Vector
    h: Vector
    g: Vector


@dataclass(frozen=True)
class Server(FoldingHalf[State]):
    """Server half of FedDyn; ``agent`` has alpha."""

    state = State
    stacks: ClassVar[bool] = True

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> Arrays:
        return {"g": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start), **self.tables(start, count))

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0; h stays the mean of all."""
        state.h = state.h - state.g[position] / state.h.dtype.type(len(state.g))
        return super().renew(state, position, start)

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        x = present(upload, "x", state.x)
        g, agreed = next_row("g", upload, self._next, state.g[position], x, state.x)
        return {"x": x, **g}, agreed

    def _next(self, g: Vector, x: Vector, center: Vector) -> Vector:
        return dynamic_gradient(g, x, center, self.agent.fed_dyn_alpha)

    def fold(self, state: State, uploads: Mapping[int, Arrays], turn: Turn) -> State:
        if not uploads:
            return state
        kind, alpha = state.x.dtype.type, self.agent.fed_dyn_alpha
        x = mean_of(uploads, "x", state.x)
        moved = x - state.x
        moved *= kind(alpha * len(uploads) / len(state.g))
        state.h -= moved
        np.divide(state.h, kind(alpha), out=moved)
        x -= moved
        advance(state.g, "g", uploads, self._next, "x", state.x)
        return State(x, state.h, state.g, residual=squared_gap(x, state.x, out=moved))


class FedDyn(PrimalDualStrategy):
    """FedDyn as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: of the models the participants; h keeps the absent ones.
    Privacy: with ``clip`` and ``noise_scale`` > 0 every local gradient is noised, so an upload is
    ``max_local_steps`` Gaussian releases and g_i is made of what was released.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent, PrivacyTerms)
    local_steps: ClassVar[str] = "max-local-steps"
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("fed-dyn-alpha", 0.05, 20.0, "curvature"),
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
    )
    no_secure_sum: ClassVar[str] = "its server mirrors the gradient estimate of every agent"

    def __init__(
        self,
        *,
        fed_dyn_alpha: float = Agent.fed_dyn_alpha,
        **run: Unpack[SeveralStepsArguments],
    ) -> None:
        config = self.resolved(locals())
        half = Server.from_config(Agent.from_settings(config), config)
        super().__init__(half, **self.of_run(run))
