"""What the rivals of Fed-PLT have in common on the server.

The coordinator mirrors what every agent holds: an upload determines the agent's next state by
arithmetic that both sides do on the same bytes, so that a lost agent is sent its state back.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Unpack

from ..base import PrimalDualStrategy
from ..configured import RunArguments
from ..half import ServerHalf
from ..participation import All

log = logging.getLogger("flwr.privet")


class RivalStrategy(PrimalDualStrategy):
    """A rival of Fed-PLT as a Flower Strategy.

    The arguments that they share:

    - ``local_epochs``: local steps in a round.
    - ``local_solver``: ``gd``, or where the method has them ``sgd`` (mini-batches of
      ``batch_size``) and ``agd``.
    - ``step_size``: of a local step; where the method allows 0, every agent takes the best fixed
      step of its own subproblem.
    - ``strong_convexity``, ``smoothness``: of every f_i; 0 lets each agent compute its own.

    Notes
    -----
    No shared regulariser h. Privacy: none; every upload is un-noised, and an agent with a budget
    refuses to take part.
    """

    partial: ClassVar[bool] = False
    """Whether the method's paper lets agents be absent."""

    def __init__(self, half: ServerHalf[Any], **run: Unpack[RunArguments]) -> None:
        super().__init__(half, **run)
        if not self.partial and not isinstance(self.participation, All):
            log.warning(
                "%s assumes that every agent takes part; absent ones keep their old values",
                self.algorithm,
            )
