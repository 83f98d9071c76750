"""FedDyn: federated learning with dynamic regularisation, the server half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1:

    agent    x_i = K steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2
             g_i <- g_i - alpha (x_i - x)
    server   h <- h - (alpha/N) sum_S (x_i - x),    x <- mean_S x_i - h / alpha

With ``server-optimizer`` adam or yogi the server rescales another step, which is ours:

    d = mean_S (x_i - x) - c h,    c = eta / (1 + eta alpha)

with h as it was before the round. K steps on a loss of curvature l give x_i - x = s (g_i - grad
f_i(x)), s = (1 - (1 - eta (alpha + l))^K) / (alpha + l), which is about c at l = 1 / eta and larger
at any smaller one. So d is -s grad f + (s - c) h, but for which agents take part: at rest c times
the gradient, and a damped step towards it before, as h follows grad f. FedDyn's own step has
h / alpha, more than s of it: h comes too late by as many rounds as agents are away, and then the
same step overshoots. The dual stays outside of what is rescaled, the agents' steps are as before,
and a fixed point has h = 0 and g_i = grad f_i(x), which is a stationary point of f. d is made of
the uploads alone, so this costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privet.agents.terms import PrivacyTerms
from privet.client_apps.rivals.fed_dyn import Agent
from privet.rounds.half import UNSAVED, Arrays, HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import SearchAxis
from privet.rounds.uploads import Uploads

from .constructors import FedDynArguments


@dataclass(slots=True)
class State(HalfState):
    """x and h (d,), and the agents' g_i (N, d); the residual is the squared last step of x."""

    x: Vector
    h: Vector
    g: Vector
    share: float = field(default=1.0, kw_only=True, metadata=UNSAVED)
    """Of the agents whose uploads were folded last."""


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedDyn; ``agent`` has alpha."""

    state = State
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> Arrays:
        return {"g": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start), **self.tables(start, count))

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0; h stays the mean of all."""
        state.h = state.h - state.g[position] / state.h.dtype.type(len(state.g))
        return super().renew(state, position, start)

    def ascent(self, before: Vector, state: State, turn: Turn) -> Vector:
        """Return d (d,), of the step that was folded."""
        kind, alpha = state.x.dtype.type, self.agent.fed_dyn_alpha
        step = self.agent.step_size(turn.number)
        moved: Vector = state.h / kind(alpha)  # mean_S (x_i - x), by the step of Algorithm 1
        moved += state.x
        moved -= before
        dual = step / (1.0 + step * alpha)
        moved *= kind(1.0 - dual * alpha * state.share)  # h has moved by -alpha times a share of it
        moved -= state.h * kind(dual)
        return moved

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the mean of the participants' x_i, and move h by theirs."""
        if not uploads:
            return state
        kind, alpha = state.x.dtype.type, self.agent.fed_dyn_alpha
        x = uploads.total("x", state.x)
        x /= kind(len(uploads))
        moved = x - state.x
        share = len(uploads) / len(state.g)
        moved *= kind(alpha * share)
        state.h -= moved
        np.divide(state.h, kind(alpha), out=moved)
        x -= moved
        self.mirror(state, uploads)
        residual = uploads.step(x, state.x, out=moved)
        return State(x, state.h, state.g, share=share, residual=residual)


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
