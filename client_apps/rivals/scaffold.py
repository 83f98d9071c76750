"""SCAFFOLD: stochastic controlled averaging, the agent half.

S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020), Algorithm 1, option II: K steps y <- y - eta (g(y) - c_i + c) from y = x, then
c_i <- c_i - c + (x - y) / (K eta), which is the mean u_i of the K gradients. It sends u_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.privacy import Perturber
from privet.problems import Problem

from ..gradients import NoisyStepsAgent
from ..half import Arrays, Local, Streams


@dataclass(frozen=True)
class Agent(NoisyStepsAgent):
    """Agent half of SCAFFOLD; its state is c_i."""

    name: ClassVar[str] = "scaffold"

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return c_i = 0."""
        return {"c": np.zeros(problem.dim, problem.dtype)}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Return the mean of the local gradients along the corrected path."""
        y = broadcast["x"]
        step = y.dtype.type(self.step_size(streams.round))
        correction = broadcast["c"] - state["c"]
        batches = self.batches(problem, streams)
        total = np.zeros_like(y)
        for _ in range(self.max_local_steps):
            slope = self.noised(problem, y, batches.draw(), noise)
            total += slope
            y = y - step * (slope + correction)
        total /= y.dtype.type(self.max_local_steps)
        return Local({"c": total}, {"u": total}, total)
