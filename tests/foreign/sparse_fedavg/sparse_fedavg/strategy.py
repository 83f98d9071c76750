"""DP-FedAvg with rand-k, the server half and its Strategy."""

from dataclasses import dataclass, field

import numpy as np

from privet.rounds import SPARSE, HalfState, ServerHalf
from privet.strategies import PrimalDualStrategy, PrivacyTerms, SearchAxis
from privet.wire.sparse import SparseSum

from .agent import Agent


@dataclass(slots=True)
class State(HalfState):
    """The model x."""

    x: np.ndarray


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """It moves every coordinate by the mean of what was sent of it."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def summands(self, state):
        return SPARSE

    def fold(self, state, uploads, turn):
        if not uploads:
            return state
        total = SparseSum(state.x.size, state.x.dtype)
        for _, sent in uploads.sparse(state.x):
            total.add(sent)
        x = state.x + total.mean()
        return State(x, residual=uploads.step(x, state.x))


class SparseFedAvg(PrimalDualStrategy):
    """DP-FedAvg with rand-k as a Flower Strategy."""

    algorithm = "sparse-fedavg"
    settings = (Agent, PrivacyTerms)
    server_half = Server
    local_steps = "max-local-steps"
    search = (SearchAxis("gamma", 0.05, 3.0, "smoothness"),)
