"""DP-FedAvg, the agent half."""

from dataclasses import dataclass
from typing import ClassVar

from privet.client_apps import Half, LocalTask
from privet.client_apps.gradient_agents import ClippedGradients, SeveralStepsAgent, noise
from privet.core.key import same, setting
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.update import Update


@dataclass(frozen=True)
class Agent(Half):
    """It has no state.

    Privacy: with ``clip`` and ``noise_scale`` a message is one Gaussian release of sensitivity
    2 ``clip``, whatever the loss and the steps (`privet.kernel.programs.update` has the proof).
    """

    name: ClassVar[str] = "dp-fedavg"
    noise_key: ClassVar[str] = "noise-scale"
    steady: ClassVar[bool] = True
    stacks: ClassVar[bool] = True
    clipping: ClassVar[str] = "update"

    gamma: float = setting(0.1, "step size of a local step", low=0, open_low=True)
    max_local_steps: int = same(SeveralStepsAgent, "max_local_steps")
    batch: str = same(ClippedGradients, "batch")
    batch_size: int = same(ClippedGradients, "batch_size")
    clip: float = setting(0.0, "norm bound of an update; 0 does not clip", low=0)
    noise_scale: float = noise(0.0, "standard deviation of the noise on an update")
    relation: str = same(ClippedGradients, "relation")

    @property
    def private(self):
        return self.clip > 0 and self.noise_scale > 0

    @property
    def update(self):
        return Update(self.clip, self.relation)

    def noised_release(self, facts, round_):
        return self.update.release(facts, self.noise_scale, "dp-fedavg noised updates")

    def local_update(self, state, broadcast, records, streams):
        gradients = Gradients(self.batch_size if self.batch == "sample" else 0)
        task = LocalTask(broadcast["x"], self.gamma, self.max_local_steps, gradients=gradients)
        u = records.update(self.update, task, streams)
        return self.conclude(state, broadcast, {"u": u}, records, streams)
