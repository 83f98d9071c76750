"""DIANA, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.client_apps import sparse_arrays
from privet.rounds import SPARSE, HalfState, ServerHalf, mean_row
from privet.strategies import PrimalDualStrategy, PrivacyTerms, SearchAxis

from .agent import Agent


@dataclass(slots=True)
class State(HalfState):
    """The model x, and every agent's h_i."""

    x: np.ndarray
    h: np.ndarray


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """It mirrors what the agents hold."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start):
        return {"h": np.zeros_like(start)}

    def summands(self, state):
        return SPARSE

    def fold(self, state, uploads, turn):
        if not uploads:
            return state
        slope, kind = np.zeros_like(state.x), state.x.dtype.type
        for _, sent in uploads.sparse(state.x):
            slope += (sent.to_dense() * (sent.dim / sent.values.size)).astype(kind)
        slope /= kind(len(uploads))
        slope += mean_row(state.h)
        for position, sent in uploads.sparse(state.x):
            held = {"h": state.h[position]}
            state.h[position] = self.agent.follow(held, {}, sparse_arrays(sent))["h"]
        x = state.x - kind(self.agent.step_size(turn.number)) * slope
        state.residual = uploads.step(x, state.x)
        state.x = x
        return state


class Diana(PrimalDualStrategy):
    """DIANA as a Flower Strategy."""

    algorithm = "diana"
    settings = (Agent, PrivacyTerms)
    server_half = Server
    local_steps = ""
    search = (SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),)
