"""Scaffnew, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.rounds import HalfState, ServerHalf
from privet.strategies import PrimalDualStrategy, PrivacyTerms, SearchAxis

from .agent import Agent


@dataclass(slots=True)
class State(HalfState):
    """x, and of every agent h_i and the end of its last steps."""

    x: np.ndarray
    h: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """It mirrors what the agents hold."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start):
        return {"h": np.zeros_like(start), "end": start}

    def admit(self, state, position, start):
        state = super().admit(state, position, start)
        state.end[position] = state.x
        return state

    def renew(self, state, position, start):
        state = super().renew(state, position, start)
        state.end[position] = state.x
        return state

    def summands(self, state):
        return {"end": state.x.shape}

    def fold_sums(self, state, sums, turn):
        if sums.positions:
            state.residual = sums.gap("end", state.x)
            state.x = sums.mean("end", state.x)
        return state


class Scaffnew(PrimalDualStrategy):
    """Scaffnew as a Flower Strategy."""

    algorithm = "scaffnew"
    settings = (Agent, PrivacyTerms)
    server_half = Server
    local_steps = ""
    search = (SearchAxis("gamma", 0.05, 3.0, "smoothness"),)
