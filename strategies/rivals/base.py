"""The common base of Fed-PLT's rivals on the server.

The coordinator mirrors every agent's state: an upload determines the agent's next state by
arithmetic that both sides do on the same bytes, so that a lost agent is sent its state back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from privet.core.key import Config
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.participation import All

log = logging.getLogger("flwr.privet")


class RivalStrategy(PrimalDualStrategy):
    """A rival of Fed-PLT without noise as a Flower Strategy.

    Where the method allows a ``step_size`` of 0, every agent takes the best fixed step of its own
    subproblem. No shared regulariser h. Privacy: none; every upload is un-noised, and an agent with
    a budget refuses to take part.
    """

    partial: ClassVar[bool] = False
    """Whether the method's paper lets agents be absent."""

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        super()._set_up(config, arguments)
        if not self.partial and not isinstance(self.participation, All):
            log.warning(
                "%s assumes that every agent takes part; absent ones keep their old values",
                self.algorithm,
            )
