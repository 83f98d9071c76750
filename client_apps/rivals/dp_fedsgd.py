"""DP-FedSGD with server momentum, the agent half: one gradient a round, and no state.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.privacy import Perturber
from privet.problems import Problem

from ..gradient_agents import NoisyStepsAgent
from ..gradients import require_model
from ..half import Arrays, Local, Streams


@dataclass(frozen=True)
class Agent(NoisyStepsAgent):
    """Agent half of DP-FedSGD, which takes no local step: there is no task, only a gradient."""

    name: ClassVar[str] = "dp-fedsgd"

    def local_update(
        self, state: Arrays, broadcast: Arrays, problem: Problem, streams: Streams, noise: Perturber
    ) -> Local:
        """Return the clipped gradient at x with its noise."""
        x = broadcast["x"]
        require_model(x, problem)
        g = self.gradients.oracle(problem, streams, noise)(x)
        return Local({}, {"g": g}, g)
