"""DP-FedSGD with server momentum, the agent half: one gradient a round, and no state.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.core.key import same, setting
from privet.kernel import Records, shared_spacing
from privet.wire import ring

from ..gradient_agents import NoisyStepsAgent
from ..half import Arrays, Local, Streams, Vector
from ..terms import BudgetSchedule, MessageTerms
from ..value_bits import ValueBits


@dataclass(frozen=True)
class Agent(ValueBits, BudgetSchedule, NoisyStepsAgent):
    """Agent half of DP-FedSGD, which takes no local step: there is no task, only a gradient.

    Privacy: with ``noise_sharing`` an agent's own noise is too small to hide a record; what hides
    it is the noise of the masked sum. A node takes part only if its own config trusts its peers to
    add their shares (`privet.kernel.NodeRules`), and is charged for the noise of as many of them
    as its sum must have; the account then holds against so many colluders and not more.
    """

    name: ClassVar[str] = "dp-fedsgd"

    secure_sum: bool = same(MessageTerms, "secure_sum")
    noise_sharing: bool = setting(
        False,
        "agents share out the noise of their masked sum: noise-scale is one agent's share, and "
        "each node's trust-colluders say how many shares may be missing",
        needs={"secure_sum": True},
        topic="Privacy",
    )

    dropouts: int = setting(
        0,
        "agents that may drop out: target-epsilon sets the shares for sums without them, and for "
        "one repeated attempt each",
        low=0,
        needs={"noise_sharing": True},
        topic="Privacy",
    )

    def unit(self, x: Vector, round_: int) -> float:
        """Return what the numbers of an upload are multiplied with.

        With a shared noise, such that the integers of the masked sum are those of the noise's grid.
        """
        if not self.noise_sharing or self.noise_scale <= 0:
            return 1.0
        scale = self.noise_scale * self.noise_growth(round_)
        return shared_spacing(scale, x.shape[-1]) * ring.UNIT

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the clipped gradient at x with its noise."""
        x = broadcast["x"]
        g = records.gradient(self.gradients, x, streams)
        unit = self.unit(x, streams.round)
        upload = {"g": g if unit == 1.0 else g.astype(np.float64) / unit}
        return self.conclude(state, broadcast, upload, records, streams)
