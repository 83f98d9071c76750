"""FedDyn: federated learning with dynamic regularisation, the agent half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1: K
gradient steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2 from w = x, then
g_i <- g_i - alpha (x_i - x). It sends x_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.privacy import Perturber
from privet.problems import Problem
from privet.wire.agreement import dynamic_gradient

from ..gradients import NoisyStepsAgent
from ..half import Arrays, Local, Streams


@dataclass(frozen=True)
class Agent(NoisyStepsAgent):
    """Agent half of FedDyn; its state is g_i."""

    name: ClassVar[str] = "fed-dyn"

    fed_dyn_alpha: float = 0.1

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return g_i = 0."""
        return {"g": np.zeros(problem.dim, problem.dtype)}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Return the local model after K steps."""
        x, g = broadcast["x"], state["g"]
        w = x
        kind = x.dtype.type
        step, alpha = kind(self.step_size(streams.round)), kind(self.fed_dyn_alpha)
        batches = self.batches(problem, streams)
        for _ in range(self.max_local_steps):
            slope = self.noised(problem, w, batches.draw(), noise) - g
            slope += alpha * (w - x)
            w = w - step * slope
        new = dynamic_gradient(g, w, x, self.fed_dyn_alpha)
        return Local({"g": new}, {"x": w}, new)
