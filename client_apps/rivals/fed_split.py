"""FedSplit: operator splitting with inexact proximal steps, the agent half.

R. Pathak, M. J. Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization"
(2020), Algorithm 1. The agent keeps z_i. It is Fed-PLT's agent with the local solver started at
the argument of the proximal operator, 2x - z_i, in place of the agent's own last x_i. The step size
is the same in all rounds: where the steps end, and with it the limit, depends on their length, and
shorter ones take it further from the minimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Arrays, Vector
from privet.kernel import Facts

from ..fed_plt import SplittingAgent
from ..solver_agents import penalty, solvers


@dataclass(frozen=True)
class Agent(SplittingAgent):
    """Agent half of FedSplit; ``rho`` is s of the paper."""

    name: ClassVar[str] = "fed-split"

    rho: float = penalty(3.0, "penalty of the splitting")
    local_solver: str = solvers("gd", "agd", "sgd")

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"z": broadcast["y"]}

    def start(self, state: Arrays, y: Vector, center: Vector) -> Vector:
        """Return where the local steps begin: at 2x - z_i."""
        return center

    def held(self, state: Arrays) -> Arrays:
        """Return what an agent holds of x_i and z_i: the latter."""
        return {"z": state["z"]}
