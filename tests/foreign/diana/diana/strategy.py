"""DIANA, the server half and its Strategy."""

from dataclasses import dataclass, field
from typing import Unpack

import numpy as np

from privet.client_apps.terms import PrivacyTerms
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.strategies.half import (
    FoldingHalf,
    HalfState,
    mean_of,
    mean_row,
    present_sparse,
    put,
    require_finite,
    squared_gap,
)
from privet.strategies.rivals.base import GradientArguments
from privet.wire import digest

from .agent import Agent, followed


@dataclass(slots=True)
class State(HalfState):
    """The model x, and every agent's h_i."""

    x: np.ndarray
    h: np.ndarray


@dataclass(frozen=True)
class Server(FoldingHalf[State]):
    """It mirrors what the agents hold."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start):
        return {"h": np.zeros_like(start)}

    def accept(self, state, position, upload):
        sent = present_sparse(upload, state.x)
        h = followed(state.h[position], sent)
        require_finite(h)
        q = sent.to_dense() * (sent.dim / sent.values.size)
        return {"q": q.astype(h.dtype), "h": h}, digest(h)

    def fold(self, state, uploads, turn):
        if not uploads:
            return state
        slope = mean_row(state.h) + mean_of(uploads, "q", state.x)
        put(state.h, uploads, "h")
        x = state.x - state.x.dtype.type(self.agent.step_size(turn.number)) * slope
        state.residual = squared_gap(x, state.x)
        state.x = x
        return state


class Diana(PrimalDualStrategy):
    """DIANA as a Flower Strategy."""

    algorithm = "diana"
    settings = (Agent, PrivacyTerms)
    local_steps = ""
    search = (SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),)

    def __init__(self, *, share=Agent.share, **run: Unpack[GradientArguments]):
        config = self.resolved(locals())
        half = Server.from_config(Agent.from_settings(config), config)
        super().__init__(half, **self.of_run(run))
