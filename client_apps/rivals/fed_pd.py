"""FedPD: federated primal-dual algorithm, the agent half.

X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu, "FedPD: A Federated Learning Framework with Adaptivity
to Non-IID Data" (2021), Algorithm 1, Oracle I. The agent keeps x_i and lam_i; it takes N_e steps on
its part of the augmented Lagrangian, f_i(w) + <lam_i, w - x0> + ||w - x0||^2 / (2 eta), from x_i;
then lam_i <- lam_i + (x_i - x0) / eta. It sends x_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Streams
from privet.agents.value_bits import ValueBits
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Walk

from ..arithmetic import ascend
from ..solver_agents import SolverAgent, StepSchedule, penalty


@dataclass(frozen=True)
class Agent(ValueBits, StepSchedule, SolverAgent):
    """Agent half of FedPD; ``rho`` is the paper's eta."""

    name: ClassVar[str] = "fed-pd"

    rho: float = penalty(3.0, "eta, the inverse penalty of the augmented Lagrangian")

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"x": broadcast["x"], "lam": np.zeros(facts.dim, facts.dtype)}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) + <lam_i, w> + ||w - x0||^2 / (2 eta), from x_i."""
        return self.local_task(
            state["x"],
            records,
            streams,
            center=broadcast["x"],
            rho=self.rho,
            shift=state["lam"],
        )

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end."""
        return {"x": walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return x_i and lam_i + (x_i - x0) / eta."""
        x = upload["x"]
        return {"x": x, "lam": ascend(state["lam"], x, broadcast["x"], 1.0 / self.rho)}
