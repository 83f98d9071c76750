"""FedDyn: federated learning with dynamic regularisation, the server half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1:

    agent    x_i = K steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2
             g_i <- g_i - alpha (x_i - x)
    server   h <- h - (alpha/N) sum_S (x_i - x),    x <- mean_S x_i - h / alpha

With ``server-optimizer`` adam or yogi the server's step is, of the same h,

    x <- x - eta (h / alpha) / (sqrt(v) + tau),    v a mean of (h / alpha)^2 over the rounds

which is ours. K local steps close a share kappa of the proximal term, x_i - x is about
(kappa / alpha) (g_i - grad f_i(x)), and so h is about (1 - kappa) h + kappa grad f(x), with f the
mean of f_i: the first moment of Adam, of gradients that agents far apart do not bias. The dual
stays outside of what is rescaled, the agents' steps are as before, and a fixed point has h = 0
and g_i = grad f_i(x), which is a stationary point of f. But for tau the step does not depend on
the scale of alpha. h is made of the uploads alone, so this costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.agents.terms import PrivacyTerms
from privet.client_apps.rivals.fed_dyn import Agent
from privet.rounds.half import Arrays, HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import SearchAxis
from privet.rounds.server_steps import ADAPTIVE
from privet.rounds.uploads import Uploads

from .constructors import FedDynArguments


@dataclass(slots=True)
class State(HalfState):
    """x and h (d,), and the agents' g_i (N, d); the residual is the squared last step of x."""

    x: Vector
    h: Vector
    g: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedDyn; ``agent`` has alpha."""

    state = State
    no_server_optimizer: ClassVar[str] = ""
    keeps_momentum: ClassVar[bool] = True

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> Arrays:
        return {"g": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start), **self.tables(start, count))

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0; h stays the mean of all."""
        state.h = state.h - state.g[position] / state.h.dtype.type(len(state.g))
        return super().renew(state, position, start)

    def ascent(self, before: Vector, state: State) -> Vector:
        """Return -h / alpha, a mean of the agents' gradients over the rounds, in units of x."""
        step: Vector = state.h / state.h.dtype.type(-self.agent.fed_dyn_alpha)
        return step

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the mean of the participants' x_i, and move h by theirs."""
        if not uploads:
            return state
        kind, alpha = state.x.dtype.type, self.agent.fed_dyn_alpha
        x = uploads.total("x", state.x)
        x /= kind(len(uploads))
        moved = x - state.x
        moved *= kind(alpha * len(uploads) / len(state.g))
        state.h -= moved
        np.divide(state.h, kind(alpha), out=moved)
        x -= moved
        self.mirror(state, uploads)
        return State(x, state.h, state.g, residual=uploads.step(x, state.x, out=moved))


class FedDyn(FedDynArguments):
    """FedDyn as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: of the models the participants; h keeps the absent ones.
    Privacy: with ``clip`` and ``noise_scale`` > 0 every local gradient is noised, so an upload is
    ``max_local_steps`` Gaussian releases and g_i is made of what was released, and so is the step
    of ``server_optimizer``.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "the model is the mean of a round's x_i alone, which of one upload is that agent's own"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, PrivacyTerms)
    server_half = Server
    local_steps: ClassVar[str] = "max-local-steps"
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("fed-dyn-alpha", 0.05, 20.0, "curvature"),
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
    )
    no_secure_sum: ClassVar[str] = "its server mirrors the gradient estimate of every agent"

    @classmethod
    def unused(
        cls, given: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """As every algorithm, and the momentum of adam and yogi."""
        yield from super().unused(given, config)
        if "server-momentum" in given and config["server-optimizer"] in ADAPTIVE:
            yield "server-momentum", f"not used with {config['server-optimizer']}: h is one already"
