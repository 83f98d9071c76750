"""FedBuff: asynchronous averaging with a buffer, the agent half.

J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022), Algorithm 2:
local steps on f_i from the model w that the agent was sent. The paper sends how far it came; here
the end w_i travels, one vector as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Arrays, Streams
from privet.agents.value_bits import ValueBits
from privet.core.key import LARGEST, SMALLEST, setting
from privet.kernel import Records
from privet.kernel.programs.steps import LocalTask, Walk

from ..solver_agents import SolverAgent


@dataclass(frozen=True)
class Agent(ValueBits, SolverAgent):
    """Agent half of FedBuff; it keeps no state. Privacy: none."""

    name: ClassVar[str] = "fed-buff"

    step_size: float = setting(0.1, "local step size", low=SMALLEST, high=LARGEST)

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i, from w."""
        return self.local_task(broadcast["x"], records, streams)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return w_i, the end."""
        return {"x": walk.end}
