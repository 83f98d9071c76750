"""FedAsync: asynchronous federated optimisation, the agent half.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization" (2019), Algorithm 1: local steps
on f_i(v) + (rho/2) ||v - w||^2 from the model w that the agent was sent. It sends the end w_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Arrays, Streams
from privet.core.key import LARGEST, setting
from privet.kernel import Records
from privet.kernel.programs.steps import LocalTask

from .fed_buff import Agent as AveragedAgent


@dataclass(frozen=True)
class Agent(AveragedAgent):
    """Agent half of FedAsync; it keeps no state. Privacy: none."""

    name: ClassVar[str] = "fed-async"

    fed_async_rho: float = setting(
        0.0, "weight of the proximal term", low=0, high=LARGEST, words={"none": 0}
    )

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(v) + (rho/2) ||v - w||^2, from w."""
        x = broadcast["x"]
        if not self.fed_async_rho:
            return self.local_task(x, records, streams)
        return self.local_task(x, records, streams, center=x, rho=1.0 / self.fed_async_rho)
