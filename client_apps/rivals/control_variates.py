"""Local steps with a control variate: what the agents of LED and TAMUNA have in common.

    w <- w - gamma (grad f_i(w) - h_i)  from w = x,  x_i = w;     h_i <- h_i + rate (x' - x_i)

where x' is the model that follows. The agent keeps x_i until it sees x', with the next message; one
that has missed rounds is sent h_i in its place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from privet.privacy import Perturber
from privet.problems import Problem
from privet.wire.agreement import ascend

from ..half import Arrays, Local, Streams, Vector
from .base import RivalAgent


@dataclass(frozen=True)
class ControlledAgent(RivalAgent):
    """Agent half with a control variate; its state is h_i and, until x' is known, x_i."""

    @abstractmethod
    def steps(self, streams: Streams) -> int:
        """Return the number of local steps of a round."""

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return h_i = 0."""
        return {"h": np.zeros(problem.dim, problem.dtype)}

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Return the end of the corrected local steps."""
        x, h = broadcast["x"], self._current(state, broadcast)
        step = x.dtype.type(self.step_size)
        gradient = self.slopes(problem, streams)
        w = x
        for _ in range(self.steps(streams)):
            w = w - step * (gradient(w) - h)
        return Local({"h": h, "x": w}, {"x": w}, w - h)

    @staticmethod
    def _current(state: Arrays, broadcast: Arrays) -> Vector:
        if "h" in broadcast:
            return broadcast["h"]
        if "x" not in state:
            return state["h"]
        return ascend(state["h"], broadcast["x"], state["x"], float(broadcast["rate"][0]))
