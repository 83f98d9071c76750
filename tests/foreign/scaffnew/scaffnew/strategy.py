"""Scaffnew, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.client_apps.terms import PrivacyTerms
from privet.core.key import read
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.strategies.half import FoldingHalf, HalfState, apart, checked, mean_of
from privet.wire import digest

from .agent import Agent, settled


@dataclass(slots=True)
class State(HalfState):
    """x, and of every agent h_i, the end of its last steps, and whether there was one."""

    x: np.ndarray
    h: np.ndarray
    end: np.ndarray
    spoke: np.ndarray


@dataclass(frozen=True)
class Server(FoldingHalf[State]):
    """It mirrors what the agents hold."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start):
        return {"h": np.zeros_like(start), "end": np.zeros_like(start), "spoke": np.zeros(1, bool)}

    def recovery(self, state, position):
        held = {"h": state.h[position]}
        return {**held, "end": state.end[position]} if state.spoke[position] else held

    def accept(self, state, position, upload):
        end, h = checked(upload, "end", state.x), state.h[position]
        if state.spoke[position]:
            h = settled(h, state.end[position], state.x, self.agent.rate)
        return {"end": end, "h": h}, digest(end - h)

    def fold(self, state, uploads, turn):
        if not uploads:
            return state
        for position, arrays in uploads.items():
            state.h[position], state.end[position] = arrays["h"], arrays["end"]
            state.spoke[position] = True
        state.residual = apart(uploads, state.x, "end")
        state.x = mean_of(uploads, "end", state.x)
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
