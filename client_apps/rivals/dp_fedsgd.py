"""DP-FedSGD with server momentum, the agent half: one gradient a round, and no state.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.privacy import Perturber
from privet.problems import Problem
from privet.wire import ConfigError

from ..gradients import NoisyStepsAgent
from ..half import Arrays, Local, Streams


@dataclass(frozen=True)
class Agent(NoisyStepsAgent):
    """Agent half of DP-FedSGD."""

    name: ClassVar[str] = "dp-fedsgd"

    max_local_steps: int = 1

    def __post_init__(self) -> None:
        if self.max_local_steps != 1:
            raise ConfigError("max-local-steps: dp-fedsgd takes one gradient a round")

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Return the clipped gradient at x with its noise."""
        rows = self.batches(problem, streams).draw()
        g = self.noised(problem, broadcast["x"], rows, noise)
        return Local({}, {"g": g}, g)
