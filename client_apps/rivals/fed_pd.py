"""FedPD: federated primal-dual algorithm, the agent half.

X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu, "FedPD: A Federated Learning Framework with Adaptivity
to Non-IID Data" (2021), Algorithm 1, Oracle I. The agent keeps x_i and lam_i; f_i plus the terms of
the augmented Lagrangian is, up to a constant, f_i(w) + ||w - (x0 - eta lam_i)||^2 / (2 eta), on
which it takes N_e steps from x_i; then lam_i <- lam_i + (x_i - x0) / eta. It sends x_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.privacy import Perturber
from privet.problems import Problem
from privet.wire.agreement import ascend

from ..half import Arrays, Local, Streams
from .base import ProximalAgent


@dataclass(frozen=True)
class Agent(ProximalAgent):
    """Agent half of FedPD; ``rho`` is the paper's eta."""

    name: ClassVar[str] = "fed-pd"

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return x_i = x0, lam_i = 0; only for servers that did not send the state."""
        return {"x": broadcast["x"], "lam": np.zeros(problem.dim, problem.dtype)}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Do one round: local steps from x_i, then the dual step."""
        x0, lam = broadcast["x"], state["lam"]
        center = x0 - x0.dtype.type(self.rho) * lam
        x = self.towards(center, state["x"], problem, streams, noise)
        new = ascend(lam, x, x0, 1.0 / self.rho)
        return Local({"x": x, "lam": new}, {"x": x}, new)
