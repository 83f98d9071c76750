"""TAMUNA: local training with partial participation, the agent half.

L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, "TAMUNA: Doubly Accelerated Distributed
Optimization with Local Training, Compression, and Partial Participation" (2023), Algorithm 1: a
random number of local steps, the same for all agents of a round. Uploads are not sparsified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.agents.half import Streams
from privet.kernel import stream
from privet.kernel.programs.steps import MOST_STEPS

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

    Returns
    -------
    int
        At most `MOST_STEPS`, as for every algorithm.
    """
    drawn = int(stream(seed, "local-steps", round_=round_).geometric(1.0 / mean))
    return min(drawn, MOST_STEPS)


@dataclass(frozen=True)
class Agent(ControlledAgent):
    """Agent half of TAMUNA; ``step_size`` is gamma and ``local_epochs`` is 1/p."""

    name: ClassVar[str] = "tamuna"

    def steps(self, streams: Streams) -> int:
        """Return the round's draw, geometric of mean ``local_epochs``."""
        return self.steps_of_round(streams.seed, streams.round)

    def steps_of_round(self, seed: int, round_: int) -> int:
        return local_steps(seed, round_, self.local_epochs)
