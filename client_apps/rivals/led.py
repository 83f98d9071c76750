"""LED: local exact diffusion, the agent half.

S. A. Alghunaim, "Local Exact-Diffusion for Decentralized Optimization and Learning" (2023),
Algorithm 1, on the star, with h_i = -(beta / alpha) y_i: N_e steps in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Streams

from .control_variates import ControlledAgent


@dataclass(frozen=True)
class Agent(ControlledAgent):
    """Agent half of LED; ``step_size`` is alpha."""

    name: ClassVar[str] = "led"

    def steps(self, streams: Streams) -> int:
        return self.local_epochs
