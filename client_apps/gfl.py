"""Graph federated learning (GFL): local stochastic gradient steps, the agent half.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", eq. (3). Agent k of unit p
starts at its server's model w_p and takes E_k steps

    w <- w - (mu/E_k) grad Q(w; batch),

each on all its examples or on a batch drawn with replacement, and sends the last w. It keeps
nothing between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.privacy import NoiseSource, Release
from privet.problems import Problem
from privet.wire import ConfigError

from .gradients import ClippedGradients
from .half import Arrays, Local, Streams, Vector

UN_NOISED = Release("none", what="gfl local model, which the unit's own server sees as it is")


@dataclass(frozen=True)
class Agent(ClippedGradients):
    """Agent half of GFL; the fields are the run-config keys of the same names.

    Privacy: the noise of GFL is added between servers, so towards its own server an agent's upload
    is un-noised whatever the configuration is, and a node with a budget refuses. ``clip`` bounds
    what a gradient can move (B), which the accounts towards other servers rest on.
    """

    name: ClassVar[str] = "gfl"

    step_size: float = 0.1
    local_epochs: int = 10

    @property
    def private(self) -> bool:
        """Whether the upload is noised: it is not."""
        return False

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return no state."""
        return {}

    def release(self, problem: Problem, round_: int) -> Release:
        """Return the release of an upload, which has no noise of its own."""
        return UN_NOISED

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: NoiseSource,
    ) -> Local:
        """Take the round's steps from w_p."""
        start = broadcast.get("w")
        if start is None or start.shape != (problem.dim,) or start.dtype != problem.dtype:
            raise ConfigError(f"broadcast holds no model w of {problem.dim} in {problem.dtype}")
        step = start.dtype.type(self.step_size / self.local_epochs)
        w: Vector = start
        for rows in self._batches_of(problem, streams):
            slope = self.gradient(problem, w, rows)
            slope *= step
            w = w - slope
        return Local({}, {"x": w}, w)

    def _batches_of(self, problem: Problem, streams: Streams) -> list[Vector] | list[None]:
        """Return the rows of every step, None for all; a row may come twice in a batch."""
        if self.batch == "full":
            return [None] * self.local_epochs
        shape = (self.local_epochs, self.size_of_batch(problem))
        return list(streams.open("batches").integers(problem.num_examples, size=shape))
