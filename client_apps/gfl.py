"""Privacy-critical: GFL's agent half, and what its unit's links to other servers cost.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", eq. (3). Agent k of unit p
starts at its server's model w_p and takes E_k steps

    w <- w - (mu/E_k) grad Q(w; batch),

each on all its examples or on a batch drawn with replacement, and sends the last w. It keeps
nothing between rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from privet.agents.half import Arrays, Streams
from privet.agents.upload_bounds import data_term, decay_of, is_bounded, iterate_bound, norm_of
from privet.core import ConfigError
from privet.core.key import LARGEST, SMALLEST, setting
from privet.kernel import Facts, Records, Release, gfl_sensitivity
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import MOST_STEPS, LocalTask, Walk

from .gradient_agents import ClippedGradients


@dataclass(frozen=True, slots=True)
class LinkRelease:
    """Noise on the messages between servers.

    Attributes
    ----------
    mechanism : {"gaussian", "laplace"}
    deviation : float
        Standard deviation on one coordinate.
    copies : int
        Independent noisy copies of psi_p that leave in a round: 1 with homomorphic noise, the
        unit's number of neighbours with random noise.
    """

    mechanism: str
    deviation: float
    copies: int


@dataclass(frozen=True)
class Agent(ClippedGradients):
    """Agent half of GFL; the fields are the run-config keys of the same names.

    Privacy: the noise of GFL is added between servers, so towards its own server an agent's upload
    is un-noised whatever the configuration is, and a node with a budget refuses. ``clip`` bounds
    what a gradient can move (B), which the accounts towards other servers rest on.
    """

    name: ClassVar[str] = "gfl"
    upload: ClassVar[str] = "local model, which the unit's own server sees as it is"

    step_size: float = setting(
        0.1, "mu; each of the local-epochs steps is mu / E_k", low=SMALLEST, high=LARGEST
    )
    local_epochs: int = setting(10, "local steps in a round (E_k)", low=1, high=MOST_STEPS)

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return w_p, from which the local steps begin."""
        return {"x": broadcast["w"]}

    @property
    def stacks(self) -> bool:
        return True

    @cached_property
    def gradients(self) -> Gradients:
        """The gradient of a local step; a row may come twice in a batch."""
        return self._gradients(replace=True)

    def link_release(self, facts: Facts, round_: int, noise: LinkRelease) -> Release | None:
        """Return what leaves this agent's unit for other servers in a round.

        The observer reads every message between servers and nothing inside a unit: its own server
        sees raw models, against which noise on the links does nothing. A record's influence stays
        in the unit's own model, so the sensitivity grows with the round.

        None where nothing can be certified: without noise or a clip, or with a regulariser whose
        step alone could spread two models.
        """
        if noise.deviation <= 0 or self.clip <= 0 or not self._steady(facts):
            return None
        laplace = noise.mechanism == "laplace"
        return Release(
            noise.mechanism,  # type: ignore[arg-type]
            # Var Laplace(b) = 2 b^2.
            scale=noise.deviation / math.sqrt(2.0) if laplace else noise.deviation,
            sensitivity=gfl_sensitivity(
                # Agents clip in L2, and a vector of L2 norm B has an L1 norm of at most sqrt(d) B.
                clip=self.clip * math.sqrt(facts.dim) if laplace else self.clip,
                step_size=self.step_size,
                round_number=round_,
            ),
            norm="l1" if laplace else "l2",
            count=noise.copies,
            relation=self.relation,
            what="gfl psi_p on the links to neighbouring servers",
        )

    @property
    def bounds_uploads(self) -> bool:
        """Where gradients are clipped, as in a run whose links are private."""
        return self.clip > 0

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of the iterates: E_k un-noised clipped steps from w_p."""
        if not (is_bounded(facts) and "w" in broadcast):  # one of no unit is sent no model
            return math.inf
        step, start = self.step_size / self.local_epochs, norm_of(broadcast["w"])
        moved, decay = step * data_term(facts, self.clip), step * decay_of(facts)
        return iterate_bound(start, 1.0, decay, moved, self.local_epochs)

    def _steady(self, facts: Facts) -> bool:
        """Whether a step on the regulariser alone cannot spread two models."""
        if facts.regularizer == "none":
            return True
        return facts.regularizer == "l2" and self.step_size * facts.modulus <= 2.0

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w), from w_p: E_k steps of mu / E_k."""
        start = broadcast.get("w")
        if start is None or start.shape[-1:] != (records.dim,) or start.dtype != records.dtype:
            raise ConfigError(f"broadcast holds no model w of {records.dim} in {records.dtype}")
        step = self.step_size / self.local_epochs
        return LocalTask(start, step, self.local_epochs, gradients=self.gradients)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return the last w; nothing is kept."""
        return {"x": walk.end}
