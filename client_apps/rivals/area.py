"""AREA: asynchronous exact averaging, the agent half.

C. Iakovidou, K. Kim, "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives
Under Arbitrary Delays" (2024, arXiv 2405.10123); K. Mishchenko, F. Iutzeler, J. Malick,
"A Distributed Flexible Delay-Tolerant Proximal Gradient Algorithm" (2020), DAve-RPG. The agent
sends its gradient g_i at the model that it was sent, and no step of it: the server takes the step,
of one length for all, without which the limit would not be the minimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Arrays, Half, Local, Streams
from privet.agents.value_bits import ValueBits
from privet.kernel import Records


@dataclass(frozen=True)
class Agent(ValueBits, Half):
    """Agent half of AREA; it keeps no state and takes no local step. Privacy: none."""

    name: ClassVar[str] = "area"

    @property
    def stacks(self) -> bool:
        return True

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the gradient of all examples at x."""
        g = records.un_noised.gradient(broadcast["x"])
        return self.conclude(state, broadcast, {"g": g}, records, streams)
