"""FedDyn: federated learning with dynamic regularisation, the agent half.

D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), Algorithm 1: K
gradient steps on f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2 from w = x, then
g_i <- g_i - alpha (x_i - x). It sends x_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Streams, Vector
from privet.agents.loop_defaults import Loops, alpha
from privet.agents.upload_bounds import decay_of, is_bounded, iterate_bound, norm_of
from privet.agents.value_bits import ValueBits
from privet.core.key import LARGEST, SMALLEST, Scalar, setting
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Walk

from ..gradient_agents import SeveralStepsAgent


@dataclass(frozen=True)
class Agent(ValueBits, SeveralStepsAgent):
    """Agent half of FedDyn; its state is g_i."""

    name: ClassVar[str] = "fed-dyn"

    fed_dyn_alpha: float = setting(
        0.0,
        "weight of the proximal term; auto is 0.1",
        low=SMALLEST,
        high=LARGEST,
        automatic=(0.1, 0.1),
    )

    def around_loops(self, loops: Loops) -> Mapping[str, Scalar]:
        """Return alpha of `loop_defaults` with the step, where they are open."""
        values = dict(super().around_loops(loops))
        if "fed-dyn-alpha" in values:
            values["fed-dyn-alpha"] = alpha(loops, self.steps)
        return values

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"g": np.zeros(facts.dim, facts.dtype)}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) - <g_i, w> + (alpha/2) ||w - x||^2, from x."""
        x = broadcast["x"]
        return self.local_task(
            x, streams, center=x, rho=1.0 / self.fed_dyn_alpha, shift=-state["g"]
        )

    def gradient_told(
        self, state: Arrays, broadcast: Arrays, upload: Arrays
    ) -> tuple[Vector, Vector]:
        """Return x_i, and g_i - alpha (x_i - x): there the local problem's gradient is 0."""
        return upload["x"], self.follow(state, broadcast, upload)["g"]

    def noise_gain(self, round_: int) -> float:
        """Return eta_t: the noise of the last step is in x_i whole."""
        return self.step_size(round_)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of the iterates, by that of a noised gradient."""
        if not is_bounded(facts):
            return math.inf
        start, step = norm_of(broadcast["x"]), self.step_size(round_)
        pull = self.fed_dyn_alpha * start + norm_of(state["g"])
        moved = step * (self.slope_bound(facts, round_) + pull)
        keep, decay = 1.0 - step * self.fed_dyn_alpha, step * decay_of(facts)
        return iterate_bound(start, keep, decay, moved, self.steps)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end."""
        return {"x": walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return g_i - alpha (x_i - x), Algorithm 1."""
        moved: Vector = broadcast["x"] - upload["x"]
        moved *= self.fed_dyn_alpha
        moved += state["g"]
        return {"g": moved}
