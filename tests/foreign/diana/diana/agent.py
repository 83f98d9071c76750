"""DIANA, the agent half."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.client_apps import Choice, NoisyStepsAgent, ValueBits
from privet.core import setting


@dataclass(frozen=True)
class Agent(ValueBits, NoisyStepsAgent):
    """Its state is h_i.

    Privacy: with ``clip`` and ``noise_scale`` the gradient is one Gaussian release. The rest of
    what is sent is public: h_i, which the server knows, and a seed for the coordinates.
    """

    name: ClassVar[str] = "diana"
    stacks: ClassVar[bool] = False

    share: float = setting(
        0.25, "share of the coordinates that are sent (k / d)", low=0, high=1, open_low=True
    )

    def restart(self, broadcast, facts):
        return {"h": np.zeros(facts.dim, facts.dtype)}

    def local_update(self, state, broadcast, records, streams):
        x, h = broadcast["x"], state["h"]
        difference = records.gradient(self.gradients, x, streams) - h
        choice = Choice("rand-k", 0, self.share, 0.0)
        return self.conclude_sparse(state, broadcast, difference, choice, records, streams)

    def follow(self, state, broadcast, upload):
        h = state["h"].copy()
        h[upload.get("places", slice(None))] += upload["values"]
        return {"h": h}
