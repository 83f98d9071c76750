"""FedSplit: operator splitting with inexact proximal steps, the agent half.

R. Pathak, M. J. Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization"
(2020), Algorithm 1. The agent keeps z_i. It is Fed-PLT's agent with the local solver started at
the argument of the proximal operator, 2x - z_i, in place of the agent's own last x_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from privet.privacy import Perturber
from privet.problems import Problem

from ..fed_plt import Agent as SplittingAgent
from ..half import Arrays, Local, Streams
from .base import require_solver


@dataclass(frozen=True)
class Agent(SplittingAgent):
    """Agent half of FedSplit; ``rho`` is s of the paper."""

    name: ClassVar[str] = "fed-split"
    noise_key: ClassVar[str] = ""  # its solvers add none

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        half = super().from_settings(settings)
        require_solver(cls.name, half.local_solver)
        return half

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return z_i = x; only for servers that did not send the state."""
        return {"z": broadcast["y"]}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Do one round: local solver from 2x - z_i, then reflect z_i."""
        y, z = broadcast["y"], state["z"]
        begun = {"x": y + y - z, "z": z}
        done = super().local_update(begun, broadcast, problem, streams, noise)
        return Local({"z": done.state["z"]}, done.upload, done.agreed)
