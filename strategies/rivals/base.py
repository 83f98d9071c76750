"""The common base of Fed-PLT's rivals on the server.

The coordinator mirrors every agent's state: an upload determines the agent's next state by
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


class SolverArguments(RunArguments, total=False):
    """Arguments of `privet.client_apps.solver_agents.SolverAgent`, and the coding of messages."""

    local_epochs: int
    local_solver: str
    step_size: float
    batch_size: int
    strong_convexity: float
    smoothness: float
    value_bits: str


class ScheduledArguments(SolverArguments, total=False):
    """Arguments of `privet.client_apps.solver_agents.ScheduledSteps`."""

    step_size_rule: str
    step_size_rounds: int


class GradientArguments(RunArguments, total=False):
    """Arguments of `privet.client_apps.gradient_agents.NoisyStepsAgent`, and its noise's terms."""

    step_size_base: float
    step_size_rule: str
    step_size_rounds: int
    batch: str
    batch_size: int
    clip: float
    clipping: str
    noise_scale: float
    noise_seed: int
    target_epsilon: float
    delta: float
    relation: str
    value_bits: str


class SeveralStepsArguments(GradientArguments, total=False):
    """Arguments of `privet.client_apps.gradient_agents.SeveralStepsAgent`."""

    max_local_steps: int


class RivalStrategy(PrimalDualStrategy):
    """A rival of Fed-PLT without noise as a Flower Strategy.

    Where the method allows a ``step_size`` of 0, every agent takes the best fixed step of its own
    subproblem. No shared regulariser h. Privacy: none; every upload is un-noised, and an agent with
    a budget refuses to take part.
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
