"""Privacy-critical: uploads whose noise hides a record only in the masked sum of many agents.

An agent's own noise is too small to hide a record; what hides it is the noise of the masked sum. A
node takes part only if its own config trusts its peers to add their shares
(`privet.kernel.NodeRules`), and is charged for the noise of as many of them as its sum must have;
the account then holds against so many colluders and not more. The proof is that of the sum
(docs/privacy-proofs.md): a half uploads its noised vector as it is, in whole steps of the noise's
grid, so that the masked sum is the sum of the vectors to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privet.agents.half import Half, Vector
from privet.agents.terms import MessageTerms
from privet.core.key import same, setting
from privet.kernel import shared_spacing
from privet.wire import ring

from .gradient_agents import GradientAgent


@dataclass(frozen=True)
class SharedNoise(Half):
    """Keys of a noise that agents may share, for halves that upload one noised vector (d,).

    The server half multiplies the mean of the uploads with ``unit``.
    """

    noise_scale: float = same(GradientAgent, "noise_scale")
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
        """Return the factor by which the server half multiplies the mean of the uploads.

        With a shared noise it is such that the integers of the masked sum are those of the noise's
        grid.
        """
        if not self.noise_sharing or self.noise_scale <= 0:
            return 1.0
        scale = self.noise_scale * self.noise_growth(round_)
        return shared_spacing(scale, x.shape[-1]) * ring.UNIT

    def in_units(self, noised: Vector, round_: int) -> Vector:
        """Return a noised vector (d,), or the rows of a stack (N, d), as it is uploaded."""
        unit = self.unit(noised, round_)
        return noised if unit == 1.0 else noised.astype(np.float64) / unit
