"""DP-FedSGD with server momentum, the agent half: one gradient a round, and no state.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Arrays, Local, Streams, Vector
from privet.agents.terms import BudgetSchedule
from privet.agents.upload_bounds import decay_of, is_bounded, norm_of
from privet.agents.value_bits import ValueBits
from privet.kernel import Facts, Records, norm_bound

from ..gradient_agents import NoisyStepsAgent
from ..shared_noise import SharedNoise


@dataclass(frozen=True)
class Agent(SharedNoise, ValueBits, BudgetSchedule, NoisyStepsAgent):
    """Agent half of DP-FedSGD, which takes no local step: there is no task, only a gradient.

    Privacy: each upload is one Gaussian release, or, with ``noise_sharing``, the masked sum is.
    """

    name: ClassVar[str] = "dp-fedsgd"

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return C n / (q D), beta ||x|| of an l2 regulariser, and the norm of the noise.

        Of another regulariser, or a custom problem, only what the grid of the noise holds is known.
        """
        if not is_bounded(facts):
            return norm_bound(self.release(facts, round_), facts.dim)
        return self.slope_bound(facts, round_) + decay_of(facts) * norm_of(broadcast["x"])

    def gradient_told(
        self, state: Arrays, broadcast: Arrays, upload: Arrays
    ) -> tuple[Vector, Vector]:
        """Return x and g_i, which all agents send in the same units."""
        return broadcast["x"], upload["g"]

    @property
    def model_step(self) -> float:
        """A negative number: the model goes against the mean gradient, with momentum."""
        return -1.0

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the clipped gradient at x with its noise."""
        g = records.gradient(self.gradients, broadcast["x"], streams)
        upload = {"g": self.in_units(g, streams.round)}
        return self.conclude(state, broadcast, upload, records, streams)
