"""5GCS: local training with client sampling, the agent half.

M. Grudzien, G. Malinovsky, P. Richtarik, "Can 5th Generation Local Training Methods Support Client
Sampling? Yes!" (2023), Algorithm 1. The agent keeps u_i. With F_i = f_i - (mu/2) ||.||^2 it takes
N_e solver steps on F_i(y) + ||y - (xhat + rho u_i)||^2 / (2 rho) from xhat and sends
u_i <- grad F_i(y). The quadratic terms together are, up to a constant,

    -<xhat / rho + u_i, y> + (1/rho - mu) ||y||^2 / 2,

so the local task is that of f_i with this shift and the penalty 1 / (1/rho - mu) about the origin:
the same as about (xhat + rho u_i) / (1 - mu rho), and defined for mu rho >= 1 too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Streams
from privet.agents.value_bits import ValueBits
from privet.core.key import setting
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Need, Walk

from ..solver_agents import SolverAgent, StepSchedule, penalty, solvers


@dataclass(frozen=True)
class Agent(ValueBits, StepSchedule, SolverAgent):
    """Agent half of 5GCS; ``rho`` is 1 / (n tau) and ``common_convexity`` mu of the paper."""

    name: ClassVar[str] = "five-gcs"
    needs: ClassVar[tuple[Need, ...]] = ("end_gradient",)

    local_solver: str = solvers("gd", "agd", "sgd")
    rho: float = penalty(3.0, "1 / (agents * tau) of the paper")
    common_convexity: float = setting(
        0.0,
        "strong convexity that every f_i has (mu); none: not known",
        low=0,
        words={"none": 0},
    )

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"u": np.zeros(facts.dim, facts.dtype)}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) - <xhat / rho + u_i, w> + (1/rho - mu) ||w||^2 / 2, from xhat."""
        x = broadcast["x"]
        shift = x * x.dtype.type(-1.0 / self.rho)
        shift -= state["u"]
        weight = 1.0 / self.rho - self.common_convexity
        rho = 1.0 / weight if weight else math.inf
        return self.local_task(x, records, streams, rho=rho, shift=shift)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return u_i = grad F_i, grad f_i less mu w, where the walk ends."""
        slope = walk.supplied("end_gradient")
        return {"u": slope - slope.dtype.type(self.common_convexity) * walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return u_i."""
        return {"u": upload["u"]}

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return the u_i that was sent last."""
        return {"u": state["u"]}
