"""Scaffnew, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.client_apps.terms import PrivacyTerms
from privet.core.key import read
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.strategies.half import HalfState, ServerHalf

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
    local_steps = ""
    search = (SearchAxis("gamma", 0.05, 3.0, "smoothness"),)

    def __init__(
        self,
        gamma=Agent.gamma,
        communication_probability=Agent.communication_probability,
        coin_seed=Agent.coin_seed,
        clip=Agent.clip,
        noise_scale=Agent.noise_scale,
        noise_seed=PrivacyTerms.noise_seed,
        target_epsilon=PrivacyTerms.target_epsilon,
        delta=PrivacyTerms.delta,
        relation=Agent.relation,
        **run,
    ):
        config = self.resolved(locals())
        half = Server(Agent.from_settings(config), terms=read(PrivacyTerms, config))
        super().__init__(half, **run)
