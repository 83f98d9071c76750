"""Base of agent halves with a choice of the local solver: settings, moduli and step size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from privet.agents.half import Half, Streams, Vector
from privet.core import ConfigError
from privet.core.key import LARGEST, SMALLEST, setting
from privet.kernel import Moduli, Records, best_step
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import MOST_STEPS, UNKNOWN, LocalTask

from .step_rules import require_rounds, step_in, step_rounds, step_rule

USUAL_SMOOTHNESS = 12.5
"""Assumed smoothness of a loss whose smoothness is unknown: a step of at most 0.16. Measured on a
small network (docs/results/deep.md); set ``step-size`` for a longer or shorter step."""


def solvers(*names: str) -> Any:
    """Declare the key ``local-solver`` of a method that takes these."""
    return setting("gd", "local solver", choices=names, topic="Local steps")


def penalty(default: float, doc: str, automatic: tuple[float, float] | None = None) -> Any:
    """Declare the key ``rho`` of a splitting."""
    return setting(default, doc, low=SMALLEST, high=LARGEST, automatic=automatic)


@dataclass(frozen=True)
class StepSchedule:
    """Keys of a local step size that may fall from round to round.

    For methods whose limit does not depend on the length of the local steps.
    """

    topic: ClassVar[str] = "Local steps"

    step_size_rule: str = step_rule()
    step_size_rounds: int = step_rounds()


@dataclass(frozen=True)
class SolverAgent(Half):
    """Settings of the local solver; the fields are the run-config keys of the same names.

    Privacy: none, unless a subclass says otherwise. Every upload is an un-noised function of the
    data, and is accounted as such.
    """

    topic: ClassVar[str] = "Local steps"

    local_solver: str = solvers("gd", "sgd")
    local_epochs: int = setting(10, "local solver steps in a round (N_e)", low=1, high=MOST_STEPS)
    step_size: float = setting(
        0.0,
        "local step size; auto computes it from the moduli",
        words={"auto": 0},
        low=0,
        floor=SMALLEST,
        high=LARGEST,
    )
    batch_size: int = setting(32, "examples in a step", low=1, needs={"local_solver": "sgd"})
    strong_convexity: float = setting(
        0.0,
        "strong convexity of every f_i; 0 is convex and no more",
        needs={"smoothness": None},
    )
    smoothness: float = setting(
        0.0,
        "smoothness of every f_i; auto lets each agent compute its own",
        low=0,
        words={"auto": 0},
    )

    @cached_property
    def gradients(self) -> Gradients:
        """The gradient of a local step: of all examples, or with sgd of a fresh batch."""
        return Gradients(self.batch_size if self.local_solver == "sgd" else 0)

    @property
    def stacks(self) -> bool:
        return True

    def moduli(self, records: Records) -> Moduli:
        """Return the moduli of f_i: those given, the problem's own, or else usual ones.

        Raises
        ------
        ConfigError
            If ``agd``, whose momentum is computed from them, would have to use the usual ones.
        """
        if self.smoothness > 0:
            return Moduli(self.strong_convexity, self.smoothness)
        moduli = records.un_noised.moduli
        if moduli is not None:
            return moduli
        if self.local_solver == "agd":
            raise ConfigError("this problem does not know its moduli: agd needs smoothness")
        return Moduli(0.0, USUAL_SMOOTHNESS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self, StepSchedule):
            return
        rule = self.step_size_rule
        require_rounds(rule, self.step_size_rounds)
        if rule != "constant" and self.local_solver not in ("gd", "sgd"):
            why = "agd's step is computed from the moduli, noisy-gd's sets the cost of a round"
            raise ConfigError(f"step-size-rule = {rule!r}: not with {self.local_solver}: {why}")

    def scheduled(self, step: Any, round_: int) -> Any:
        """Return the step size of a round counted from 1: the same in all but by `StepSchedule`."""
        if not isinstance(self, StepSchedule):
            return step
        return step_in(step, self.step_size_rule, self.step_size_rounds, round_)

    def local_task(
        self,
        start: Vector,
        records: Records,
        streams: Streams,
        *,
        center: Vector | None = None,
        rho: float = math.inf,
        shift: Vector | None = None,
        steps: int | None = None,
        noise_variance: float = 0.0,
    ) -> LocalTask:
        """Return a task for the solver, by default of N_e steps.

        A step size of 0 becomes 2 / (L + lambda + 2/rho), the best fixed one; the moduli are looked
        up only where they are used.
        """
        moduli, step = UNKNOWN, self.step_size
        if step <= 0 or self.local_solver == "agd":
            moduli = self.moduli(records)
            step = step or best_step(moduli, rho)
        return LocalTask(
            start,
            self.scheduled(step, streams.round),
            self.local_epochs if steps is None else steps,
            center,
            rho,
            shift,
            self.local_solver,
            self.gradients,
            moduli,
            noise_variance,
            needs=self.needs,
        )
