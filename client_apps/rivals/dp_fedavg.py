"""DP-FedAvg, the agent half: local steps whose whole difference is clipped and noised.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language
Models" (2018), Algorithm 1, with an agent for a user. Q gradient steps w <- w - eta g(w) from w = x
give u = min(1, C / ||w - x||) (w - x), which is sent with noise. The paper adds the noise to the
mean, on a trusted server; here every agent adds its own, or its share of that of the masked sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from privet.agents.half import Arrays, Local, Streams, Vector
from privet.agents.terms import BudgetSchedule
from privet.agents.value_bits import ValueBits
from privet.core.key import same
from privet.kernel import Facts, Records, Relation, Release, norm_bound
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.programs.update import ClippedUpdate

from ..gradient_agents import ClippedGradients, GradientAgent, SeveralStepsAgent
from ..shared_noise import SharedNoise
from ..step_rules import require_rounds, step_in


@dataclass(frozen=True)
class Agent(SharedNoise, ValueBits, BudgetSchedule):
    """Agent half of DP-FedAvg; it keeps no state.

    Privacy: with ``clip`` C and ``noise_scale`` > 0 a message is one Gaussian release of
    sensitivity 2 C, whatever the loss, the batches and the steps: towards a change of one record
    as well as of all records of an agent, as one record may turn the whole update
    (`privet.kernel.programs.update`). So `relation = replace-agent` costs no more. The steps may be
    those of a training loop of the user's (`privet.client_apps.LoopParticipant`). With
    ``noise_sharing`` the masked sum is the release (`SharedNoise`).
    """

    name: ClassVar[str] = "dp-fedavg"
    noise_key: ClassVar[str] = "noise-scale"
    steady: ClassVar[bool] = True
    clipping: ClassVar[Literal["update"]] = "update"
    custom_loop_ok: ClassVar[bool] = True

    batch: str = same(ClippedGradients, "batch")
    batch_size: int = same(ClippedGradients, "batch_size")
    clip: float = same(ClippedGradients, "clip")
    relation: Relation = same(ClippedGradients, "relation")
    step_size_base: float = same(GradientAgent, "step_size_base")
    step_size_rule: str = same(GradientAgent, "step_size_rule")
    step_size_rounds: int = same(GradientAgent, "step_size_rounds")
    max_local_steps: int = same(SeveralStepsAgent, "max_local_steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rounds(self.step_size_rule, self.step_size_rounds)

    @property
    def private(self) -> bool:
        """Whether noised and clipped; without a clip the noise proves nothing."""
        return self.noise_scale > 0 and self.clip > 0

    @property
    def stacks(self) -> bool:
        return True

    @property
    def update(self) -> ClippedUpdate:
        """The clip of the upload."""
        return ClippedUpdate(self.clip, self.relation)

    def step_size(self, round_: int) -> float:
        """Return eta_t of a round counted from 1 (t from 0)."""
        size: float = step_in(
            self.step_size_base, self.step_size_rule, self.step_size_rounds, round_
        )
        return size

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of one round: one use of the Gaussian mechanism."""
        what = f"{self.name} noised updates"
        return self.update.release(facts, self.noise_scale, what, shared=self.noise_sharing)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return C and the norm of the noise."""
        return norm_bound(self.release(facts, round_), facts.dim, self.clip)

    @property
    def model_step(self) -> float:
        """1, of an upload that is in no units of a shared noise."""
        return 1.0

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return the steps on f_i from x, without noise."""
        rows = Gradients(0 if self.batch == "full" else self.batch_size)
        size = self.step_size(streams.round)
        return LocalTask(broadcast["x"], size, self.max_local_steps, gradients=rows)

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the clipped difference of the local steps, with its noise."""
        task = self.task(state, broadcast, records, streams)
        u = records.update(self.update, task, streams)
        return self._sent(state, broadcast, u, records, streams)

    def finished(
        self,
        state: Arrays,
        broadcast: Arrays,
        task: LocalTask,
        walk: Walk,
        records: Records,
        streams: Streams,
    ) -> Local:
        """Return the clipped difference that a training loop made, with its noise."""
        u = records.difference(self.update, task.start, walk.end)
        return self._sent(state, broadcast, u, records, streams)

    def _sent(
        self, state: Arrays, broadcast: Arrays, u: Vector, records: Records, streams: Streams
    ) -> Local:
        upload = {"u": self.in_units(u, streams.round)}
        return self.conclude(state, broadcast, upload, records, streams)
