"""Local steps with a control variate: what the agents of LED and TAMUNA have in common.

    w <- w - gamma (grad f_i(w) - h_i)  from w = x,  x_i = w;     h_i <- h_i + rate (x' - x_i)

where x' is the model that follows. The agent keeps x_i until it sees x', with the next message; one
that has missed rounds is sent h_i in its place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Streams, Vector
from privet.agents.value_bits import ValueBits
from privet.core.key import LARGEST, SMALLEST, setting
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Walk

from ..arithmetic import ascend
from ..solver_agents import SolverAgent, StepSchedule


@dataclass(frozen=True)
class ControlledAgent(ValueBits, StepSchedule, SolverAgent):
    """Agent half with a control variate; its state is h_i and, until x' is known, x_i."""

    steps_bind: ClassVar[bool] = True

    step_size: float = setting(0.1, "local step size", low=SMALLEST, high=LARGEST)

    @abstractmethod
    def steps(self, streams: Streams) -> int:
        """Return the number of local steps of a round."""

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"h": np.zeros(facts.dim, facts.dtype)}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) - <h_i, w>, from x."""
        return self.local_task(
            broadcast["x"],
            records,
            streams,
            shift=-self.hear(state, broadcast),
            steps=self.steps(streams),
        )

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end."""
        return {"x": walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return h_i as it was in this round, and x_i, until it is known what x followed."""
        return {"h": self.hear(state, broadcast), "x": upload["x"]}

    @staticmethod
    def hear(state: Arrays, broadcast: Arrays) -> Vector:
        """Return h_i once the x that followed is known: both sides compute it from that."""
        if "h" in broadcast:
            return broadcast["h"]
        if "x" not in state:
            return state["h"]
        return ascend(state["h"], broadcast["x"], state["x"], float(broadcast["rate"].flat[0]))
