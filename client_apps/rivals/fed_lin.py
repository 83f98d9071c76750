"""FedLin: gradient-corrected local steps, the agent half.

A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani, "Linear Convergence in Federated Learning: Tackling
Client Heterogeneity and Sparse Gradients" (2021), Algorithm 1 without sparsification. Where x
arrives alone (round A) the agent sends g_i = grad f_i(x) and keeps both; where the mean g arrives
(round B) it takes N_e steps w <- w - eta (grad f_i(w) - g_i + g) from x and sends w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Local, Streams
from privet.agents.value_bits import ValueBits
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Walk

from ..solver_agents import SolverAgent, StepSchedule, solvers


@dataclass(frozen=True)
class Agent(ValueBits, StepSchedule, SolverAgent):
    """Agent half of FedLin; its state is x and g_i. Round A is an exchange without a local task."""

    name: ClassVar[str] = "fed-lin"

    local_solver: str = solvers("gd")
    step_size: float = 0.1

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"g": np.zeros(facts.dim, facts.dtype)}

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the gradient at x in round A, the end of the corrected local steps in B."""
        if "g" in broadcast:
            return super().local_update(state, broadcast, records, streams)
        g = records.un_noised.gradient(broadcast["x"])
        return self.conclude(state, broadcast, {"g": g}, records, streams)

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return g_i as it was sent last, and x, which the agents' models are in the limit."""
        x = broadcast["x"] if "x" in broadcast else state["x"]
        return {"x": x, "g": state["g"]}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) + <g - g_i, w>, from x: N_e steps, the first of which is -eta g there."""
        x, mean = broadcast.get("x"), broadcast["g"]
        shift = mean - state["g"]
        if x is not None:  # again, as somebody missed it: g_i may belong to an older one
            return self.local_task(x, records, streams, shift=shift)
        x = state["x"]
        steps = self.local_epochs - 1
        task = self.local_task(x, records, streams, shift=shift, steps=steps)
        return task._replace(start=x - x.dtype.type(task.step_size) * mean)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end."""
        return {"x": walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return x and g_i, as they are known by now."""
        x = broadcast["x"] if "x" in broadcast else state["x"]
        return {"x": x, "g": upload.get("g", state["g"])}
