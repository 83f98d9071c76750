"""DP-FedSGD with server momentum, the server half: the baseline of private learning.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016), clip and noise.
Every participant sends one (clipped, noised) gradient g_i at x, and

    m <- momentum m + mean_S g_i,    x <- prox_{eta h}(x - eta m).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privet.agents.terms import PrivacyTerms
from privet.client_apps.rivals.dp_fedsgd import Agent
from privet.core.key import setting
from privet.kernel import Facts, Zero
from privet.problems import ProximalFunction
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import SearchAxis
from privet.rounds.shared_regularizer import RegularizerSettings
from privet.rounds.uploads import Sums
from privet.wire.ring import Shapes

from ..shared_noise import SharesNoise
from .constructors import DPFedSGDArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x and the velocity m, both (d,); the residual is the squared last step of x."""

    x: Vector
    velocity: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of DP-FedSGD; it minimises (1/N) sum_i f_i + h, and needs the mean gradient."""

    state = State
    restarts: ClassVar[bool] = True
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)
    momentum: float = setting(
        0.9, "server momentum: share of the last step that is kept", low=0, high=1
    )
    h: ProximalFunction = field(default_factory=Zero)

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start))

    def contraction(self, facts: Facts) -> float:
        """Return the rate of heavy-ball steps along the direction of least curvature, the l2 mu.

        The larger root of z^2 - (1 + momentum - eta mu) z + momentum; eta that of round 1.
        """
        if facts.modulus <= 0:
            return 1.0
        middle = (1.0 + self.momentum - self.agent.step_size(1) * facts.modulus) / 2.0
        spread = middle * middle - self.momentum
        return math.sqrt(self.momentum) if spread <= 0 else middle + math.sqrt(spread)

    def summands(self, state: State) -> Shapes:
        """Return g_i (d,)."""
        return {"g": state.x.shape}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Take a step along the velocity."""
        if not sums.positions:
            return state
        kind, step = state.x.dtype.type, self.agent.step_size(turn.number)
        velocity = kind(self.momentum) * state.velocity
        mean = sums.mean("g", state.x)
        mean *= kind(self.agent.unit(state.x, turn.number))
        velocity += mean
        x = self.h.prox(state.x - kind(step) * velocity, step)
        return State(x, velocity, residual=sums.step(x, state.x))


class DPFedSGD(SharesNoise, DPFedSGDArguments):
    """DP-FedSGD with momentum as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: the participants.
    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is one Gaussian release; with
    ``secure_sum`` and ``noise_sharing`` the sum of the uploads is, towards a coordinator and as
    many colluding agents as each node's own config says, and no upload by itself.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "its step is the mean gradient at one model, and of uploads as they come fast agents "
        "would have more"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, Server, PrivacyTerms, RegularizerSettings)
    server_half = Server
    objects: ClassVar[Mapping[str, tuple[str, str]]] = {
        "h": ("ProximalFunction | None", "weighed against the mean of the f_i; none by default")
    }
    local_steps: ClassVar[str] = ""
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
        SearchAxis("momentum", 0.1, 0.99),
    )
    h_over_mean: ClassVar[bool] = True
