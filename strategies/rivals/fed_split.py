"""FedSplit: operator splitting with inexact proximal steps, the server half.

R. Pathak, M. J. Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization"
(2020), Algorithm 1. With s = ``rho`` and the local solver in place of the exact proximal operator,

    server   x = mean over all agents of z_i
    agent    x_i <- N_e solver steps on  f_i(w) + ||w - (2x - z_i)||^2 / (2 s),   from w = 2x - z_i
             z_i <- z_i + 2 (x_i - x)

Fed-PLT is this with the solver started at the agent's own last x_i in place of the argument of the
prox: solved exactly, both are Peaceman-Rachford splitting and the same; with finitely many steps
FedSplit stops at a point that is not the minimiser, at a distance that shrinks with N_e. Absent
agents (not in the paper) keep and count with their old z_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from privet.wire import Settings

from ..cost import Cost
from ..fed_plt import Server as Splitting
from ..fed_plt import State
from ..half import Arrays, ServerHalf
from .base import RIVAL_KEYS, RivalStrategy


@dataclass(frozen=True)
class Server(Splitting):
    """Server half of FedSplit: that of Fed-PLT, without h."""

    name: ClassVar[str] = "fed-split"

    def recovery(self, state: State, position: int) -> Arrays:
        """Return z_i: all that an agent holds."""
        return {"z": state.z[position]}


class FedSplit(RivalStrategy):
    """FedSplit; keys: ``rho`` (s of the paper) and those of the local steps.

    ``step_size`` 0 lets every agent take 2 / (smoothness + strong convexity + 2/rho) of its own.
    """

    algorithm: ClassVar[str] = "fed-split"
    keys: ClassVar[tuple[str, ...]] = (*RIVAL_KEYS, "rho")
    cost: ClassVar[Cost] = Cost(agent=1, coordinator=2, shared=2)

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        return Server(config["rho"], agent_settings=settings)
