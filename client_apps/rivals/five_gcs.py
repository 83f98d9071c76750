"""5GCS: local training with client sampling, the agent half.

M. Grudzien, G. Malinovsky, P. Richtarik, "Can 5th Generation Local Training Methods Support Client
Sampling? Yes!" (2023), Algorithm 1. The agent keeps u_i. With F_i = f_i - (mu/2) ||.||^2 it takes
N_e solver steps on F_i(y) + ||y - (xhat + rho u_i)||^2 / (2 rho) from xhat and sends
u_i <- grad F_i(y).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.privacy import Perturber
from privet.problems import Moduli, Problem

from ..half import Arrays, Local, Streams, Vector
from .base import ProximalAgent


@dataclass(frozen=True)
class Reduced:
    """f - (mu/2) ||x||^2 as a problem."""

    base: Problem
    mu: float

    @property
    def num_examples(self) -> int:
        """Number of examples of f."""
        return self.base.num_examples

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        """Return grad f(x) - mu x."""
        slope: Vector = self.base.gradient(x, rows) - x.dtype.type(self.mu) * x
        return slope


@dataclass(frozen=True)
class Agent(ProximalAgent):
    """Agent half of 5GCS; ``rho`` is 1 / (n tau) and ``common_convexity`` mu of the paper."""

    name: ClassVar[str] = "five-gcs"

    common_convexity: float = 0.0

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return u_i = 0."""
        return {"u": np.zeros(problem.dim, problem.dtype)}

    def moduli(self, problem: Problem) -> Moduli:
        """Return the moduli of F_i."""
        base = problem.base if isinstance(problem, Reduced) else problem
        return super().moduli(base) + Moduli(-self.common_convexity, -self.common_convexity)

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Do one round: local steps from xhat, then the gradient where they end."""
        x = broadcast["x"]
        reduced: Any = Reduced(problem, self.common_convexity)
        center = x + x.dtype.type(self.rho) * state["u"]
        y = self.towards(center, x, reduced, streams, noise)
        u = reduced.gradient(y)
        return Local({"u": u}, {"u": u}, u)
