"""TAMUNA: local training with partial participation, the agent half.

L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, "TAMUNA: Doubly Accelerated Distributed
Optimization with Local Training, Compression, and Partial Participation" (2023), Algorithm 1: a
random number of local steps, the same for all agents of a round. Uploads are not sparsified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.kernel import stream

from ..half import Streams
from .control_variates import ControlledAgent


def local_steps(seed: int, round_: int, mean: int) -> int:
    """Return the number of local steps L of a round, geometric: P(L = l) = p (1 - p)^(l - 1).

    Algorithm 1; the paper draws it on the server.

    Parameters
    ----------
    seed : int
        The run's seed; the number is public and the same for all agents.
    round_ : int
        The round, counted from 1.
    mean : int
        1 / p, >= 1.
    """
    return int(stream(seed, "local-steps", round_=round_).geometric(1.0 / mean))


@dataclass(frozen=True)
class Agent(ControlledAgent):
    """Agent half of TAMUNA; ``step_size`` is gamma and ``local_epochs`` is 1/p."""

    name: ClassVar[str] = "tamuna"

    def steps(self, streams: Streams) -> int:
        """Return the round's draw, geometric of mean ``local_epochs``."""
        return local_steps(streams.seed, streams.round, self.local_epochs)
