"""SCAFFOLD: stochastic controlled averaging, the agent half.

S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020), Algorithm 1, option II: K steps y <- y - eta (g(y) - c_i + c) from y = x, then
c_i <- c_i - c + (x - y) / (K eta), which is the mean u_i of the K gradients. It sends u_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Streams, Vector
from privet.agents.upload_bounds import decay_of, is_bounded, iterate_bound, norm_of
from privet.agents.value_bits import ValueBits
from privet.kernel import Facts, Records
from privet.kernel.programs.steps import LocalTask, Need, Walk

from ..gradient_agents import SeveralStepsAgent


@dataclass(frozen=True)
class Agent(ValueBits, SeveralStepsAgent):
    """Agent half of SCAFFOLD; its state is c_i."""

    name: ClassVar[str] = "scaffold"
    needs: ClassVar[tuple[Need, ...]] = ("mean_gradient",)
    steps_bind: ClassVar[bool] = True  # the server multiplies u_i by them

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"c": np.zeros(facts.dim, facts.dtype)}

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) + <c - c_i, w>, from x."""
        return self.local_task(broadcast["x"], streams, shift=broadcast["c"] - state["c"])

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return c_i, the u_i that was sent last."""
        return {"u": state["c"]}

    def gradient_told(
        self, state: Arrays, broadcast: Arrays, upload: Arrays
    ) -> tuple[Vector, Vector]:
        """Return x and u_i, as if the path were short."""
        return broadcast["x"], upload["u"]

    def noise_gain(self, round_: int) -> float:
        """Return 1 / sqrt(K): u_i is the mean of as many noised gradients."""
        return 1.0 / math.sqrt(self.steps)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of a noised gradient, and beta ||w|| along the corrected path."""
        if not is_bounded(facts):
            return math.inf
        slope, step = self.slope_bound(facts, round_), self.step_size(round_)
        decay = decay_of(facts)
        moved = step * (slope + norm_of(broadcast["c"] - state["c"]))
        start = norm_of(broadcast["x"])
        return slope + decay * iterate_bound(start, 1.0, step * decay, moved, self.steps)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return u_i, the mean of the local gradients along the corrected path."""
        return {"u": walk.supplied("mean_gradient")}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return c_i, which is u_i."""
        return {"c": upload["u"]}
