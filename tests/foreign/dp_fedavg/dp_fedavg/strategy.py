"""DP-FedAvg, the server half and its Strategy."""

from dataclasses import dataclass, field
from typing import Unpack

import numpy as np

from privet.client_apps.terms import PrivacyTerms
from privet.core.key import read
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.strategies.configured import RunArguments
from privet.strategies.half import HalfState, ServerHalf
from privet.strategies.uploads import squared_gap

from .agent import Agent


@dataclass(slots=True)
class State(HalfState):
    """The model x."""

    x: np.ndarray


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """It moves the model by the mean update."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def summands(self, state):
        return {"u": state.x.shape}

    def fold_sums(self, state, sums, turn):
        if not sums.positions:
            return state
        x = state.x + sums.mean("u", state.x)
        return State(x, residual=squared_gap(x, state.x))


class DPFedAvg(PrimalDualStrategy):
    """DP-FedAvg as a Flower Strategy."""

    algorithm = "dp-fedavg"
    settings = (Agent, PrivacyTerms)
    local_steps = "max-local-steps"
    search = (SearchAxis("gamma", 0.05, 3.0, "smoothness"),)

    def __init__(
        self,
        gamma=Agent.gamma,
        max_local_steps=Agent.max_local_steps,
        batch=Agent.batch,
        batch_size=Agent.batch_size,
        clip=Agent.clip,
        noise_scale=Agent.noise_scale,
        noise_seed=PrivacyTerms.noise_seed,
        target_epsilon=PrivacyTerms.target_epsilon,
        delta=PrivacyTerms.delta,
        relation=Agent.relation,
        **run: Unpack[RunArguments],
    ):
        config = self.resolved(locals())
        half = Server(Agent.from_settings(config), terms=read(PrivacyTerms, config))
        super().__init__(half, **run)
