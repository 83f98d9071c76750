"""DP-FedSGD with server momentum, the server half: the baseline of private learning.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016), clip and noise.
Every participant sends one (clipped, noised) gradient g_i at x, and

    m <- momentum m + mean_S g_i,    x <- prox_{eta h}(x - eta m).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Unpack

import numpy as np

from privet.client_apps.rivals.dp_fedsgd import Agent
from privet.client_apps.terms import PrivacyTerms
from privet.problems import ProximalFunction, Zero
from privet.wire.key import setting

from ..base import PrimalDualStrategy
from ..half import (
    Arrays,
    FoldingHalf,
    HalfState,
    Turn,
    Vector,
    agreed,
    checked,
    mean_of,
    squared_gap,
)
from ..search import SearchAxis
from ..shared_regularizer import RegularizerSettings
from .base import GradientArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x and the velocity m, both (d,); the residual is the squared last step of x."""

    x: Vector
    velocity: Vector


@dataclass(frozen=True)
class Server(FoldingHalf[State]):
    """Server half of DP-FedSGD; it minimises (1/N) sum_i f_i + h."""

    state = State
    stacks: ClassVar[bool] = True

    agent: Agent = field(default_factory=Agent)
    momentum: float = setting(
        0.9, "server momentum: share of the last step that is kept", low=0, high=1
    )
    h: ProximalFunction = field(default_factory=Zero)

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, np.zeros_like(start))

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        g = checked(upload, "g", state.x)
        return {"g": g}, agreed(upload, g)

    def fold(self, state: State, uploads: Mapping[int, Arrays], turn: Turn) -> State:
        if not uploads:
            return state
        kind, step = state.x.dtype.type, self.agent.step_size(turn.number)
        velocity = kind(self.momentum) * state.velocity
        velocity += mean_of(uploads, "g", state.x)
        x = self.h.prox(state.x - kind(step) * velocity, step)
        return State(x, velocity, residual=squared_gap(x, state.x))


class DPFedSGD(PrimalDualStrategy):
    """DP-FedSGD with momentum as a Flower Strategy.

    Parameters
    ----------
    h : ProximalFunction, optional
        Weighed against the mean of the f_i; none by default.

    Notes
    -----
    Who is averaged when some are absent: the participants.
    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is one Gaussian release.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent, Server, PrivacyTerms, RegularizerSettings)
    local_steps: ClassVar[str] = ""
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
        SearchAxis("momentum", 0.1, 0.99),
    )
    h_over_mean: ClassVar[bool] = True

    def __init__(
        self,
        *,
        momentum: float = Server.momentum,
        h: ProximalFunction | None = None,
        **run: Unpack[GradientArguments],
    ) -> None:
        config = self.resolved(locals())
        half = Server.from_config(Agent.from_settings(config), config, h=h or Zero())
        super().__init__(half, **self.of_run(run))
