"""DP-FedAvg, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.client_apps.terms import PrivacyTerms
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.strategies.half import HalfState, ServerHalf

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
        return State(x, residual=sums.step(x, state.x))


class DPFedAvg(PrimalDualStrategy):
    """DP-FedAvg as a Flower Strategy."""

    algorithm = "dp-fedavg"
    settings = (Agent, PrivacyTerms)
    server_half = Server
    local_steps = "max-local-steps"
    search = (SearchAxis("gamma", 0.05, 3.0, "smoothness"),)
