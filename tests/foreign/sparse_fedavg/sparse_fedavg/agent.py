"""DP-FedAvg with rand-k, the agent half."""

from dataclasses import dataclass
from typing import ClassVar

from privet.client_apps import (
    Choice,
    ClippedGradients,
    ClippedUpdate,
    GradientAgent,
    Half,
    LocalTask,
    SeveralStepsAgent,
    ValueBits,
)
from privet.core import same, setting


@dataclass(frozen=True)
class Agent(ValueBits, Half):
    """It has no state.

    Privacy: with ``clip`` and ``noise_scale`` the whole difference is one Gaussian release of
    sensitivity 2 ``clip`` (`privet.client_apps.ClippedUpdate`). Which coordinates of it are sent,
    and in how many bits, is post-processing: the coordinates are those of a public seed.
    Coordinator, other agents and world alike learn no more than that release.
    """

    name: ClassVar[str] = "sparse-fedavg"
    noise_key: ClassVar[str] = "noise-scale"
    steady: ClassVar[bool] = True
    clipping: ClassVar[str] = "update"

    gamma: float = setting(0.1, "step size of a local step", low=0, open_low=True)
    max_local_steps: int = same(SeveralStepsAgent, "max_local_steps")
    clip: float = setting(0.0, "norm bound of an update; 0 does not clip", low=0)
    noise_scale: float = same(GradientAgent, "noise_scale")
    relation: str = same(ClippedGradients, "relation")
    share: float = setting(
        0.25, "share of the coordinates that are sent (k / d)", low=0, high=1, open_low=True
    )

    @property
    def private(self):
        return self.clip > 0 and self.noise_scale > 0

    @property
    def update(self):
        return ClippedUpdate(self.clip, self.relation)

    def noised_release(self, facts, round_):
        return self.update.release(facts, self.noise_scale, "sparse-fedavg noised updates")

    def local_update(self, state, broadcast, records, streams):
        task = LocalTask(broadcast["x"], self.gamma, self.max_local_steps)
        u = records.update(self.update, task, streams)
        choice = Choice("rand-k", 0, self.share, 0.0)
        return self.conclude_sparse(state, broadcast, u, choice, records, streams)
