"""DP-FedAvg, the server half.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language
Models" (2018), Algorithm 1, with agents that count equally. With the participants' clipped and
noised updates u_i,

    x <- x + mean_S u_i.

With ``server_optimizer`` the mean update is the step of FedAvgM, FedAdam or FedYogi
(`privet.rounds.server_steps`), as in Flower's and TFF's central differential privacy: all
of it is post-processing of what was noised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from privet.agents.terms import PrivacyTerms
from privet.client_apps.rivals.dp_fedavg import Agent
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.hooks import SearchAxis
from privet.rounds.uploads import Sums
from privet.wire.ring import Shapes

from ..shared_noise import SharesNoise
from .constructors import DPFedAvgArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x (d,); the residual is the squared last step of x."""

    x: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of DP-FedAvg."""

    state = State
    restarts: ClassVar[bool] = True
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)

    @property
    def steps_by_mean(self) -> bool:
        """Whether x moves by the mean of the u_i: it does."""
        return True

    def summands(self, state: State) -> Shapes:
        """Return u_i (d,)."""
        return {"u": state.x.shape}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Move the model by the mean update."""
        if not sums.positions:
            return state
        mean = sums.mean("u", state.x)
        mean *= state.x.dtype.type(self.agent.unit(state.x, turn.number))
        x = state.x + mean
        return State(x, residual=sums.step(x, state.x))


class DPFedAvg(SharesNoise, DPFedAvgArguments):
    """DP-FedAvg as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: the participants.
    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is one Gaussian release of
    sensitivity 2 ``clip``, towards a record or a whole agent; no server is trusted. With
    ``secure_sum`` and ``noise_sharing`` the sum of the uploads is the release, as in `DPFedSGD`.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "its step is the mean update from one model, and of uploads as they come fast agents "
        "would have more"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, PrivacyTerms)
    server_half = Server
    local_steps: ClassVar[str] = "max-local-steps"
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
    )
