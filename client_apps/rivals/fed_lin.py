"""FedLin: gradient-corrected local steps, the agent half.

A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani, "Linear Convergence in Federated Learning: Tackling
Client Heterogeneity and Sparse Gradients" (2021), Algorithm 1 without sparsification. Where x
arrives alone (round A) the agent sends g_i = grad f_i(x) and keeps both; where the mean g arrives
(round B) it takes N_e steps w <- w - eta (grad f_i(w) - g_i + g) from x and sends w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.privacy import Perturber
from privet.problems import Problem

from ..half import Arrays, Local, Streams
from .base import RivalAgent


@dataclass(frozen=True)
class Agent(RivalAgent):
    """Agent half of FedLin; its state is x and g_i."""

    name: ClassVar[str] = "fed-lin"

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return g_i = 0; only for servers that did not send the state."""
        return {"g": np.zeros(problem.dim, problem.dtype)}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Return the gradient at x, or the end of the corrected local steps."""
        if "g" not in broadcast:
            x = broadcast["x"]
            own = problem.gradient(x)
            return Local({"x": x, "g": own}, {"g": own}, own)
        # x comes again where somebody missed it: g_i may then belong to an older one.
        again = "x" in broadcast
        x, own, mean = broadcast["x"] if again else state["x"], state["g"], broadcast["g"]
        step = x.dtype.type(self.step_size)
        correction = mean - own
        w = x if again else x - step * mean
        for _ in range(self.local_epochs - (not again)):
            w = w - step * (problem.gradient(w) + correction)
        return Local({"x": x, "g": own}, {"x": w}, w - own)
