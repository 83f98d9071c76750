"""What the agent halves of Fed-PLT's rivals have in common: settings, gradients, proximal steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from privet.privacy import Facts, Perturber, Release
from privet.problems import Moduli, Problem, best_step
from privet.wire import ConfigError, resolve
from privet.wire.algorithm_keys import LOCAL_SOLVERS

from ..half import Streams, Vector
from ..solvers import SOLVERS, Subproblem


def require_solver(name: str, solver: str) -> None:
    """Raise ``ConfigError`` for a local solver that an algorithm does not have."""
    known = LOCAL_SOLVERS[name]
    if solver not in known:
        raise ConfigError(f"local-solver = {solver!r}: {name} takes {' or '.join(known)}")


@dataclass(frozen=True)
class RivalAgent:
    """Settings of the local steps; the fields are the run-config keys of the same names.

    Privacy: none. Every upload is an un-noised function of the data, and is accounted as such.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    private: ClassVar[bool] = False
    clip: ClassVar[float] = 0.0

    local_solver: str = "gd"
    local_epochs: int = 10
    step_size: float = 0.0
    batch_size: int = 32
    strong_convexity: float = 0.0
    smoothness: float = 0.0

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        names = {entry.name.replace("_", "-"): entry.name for entry in fields(cls)}
        config = resolve({k: v for k, v in settings.items() if k in names}, cls.name)
        require_solver(cls.name, config["local-solver"])
        return cls(**{field: config[key] for key, field in names.items()})

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem as it is."""
        return problem

    def release(self, facts: Facts, round_: int) -> Release:
        """Return that the upload is not noised."""
        return Release("none", what=f"{self.name} upload")

    def slopes(self, problem: Problem, streams: Streams) -> Callable[[Vector], Vector]:
        """Return the gradient of a local step: of all examples, or with sgd of a fresh batch."""
        if self.local_solver != "sgd":
            return problem.gradient
        rng = streams.open("batches")
        count = problem.num_examples
        size = min(self.batch_size, count)

        def gradient(w: Vector) -> Vector:
            rows = rng.choice(count, size=size, replace=False, shuffle=False)
            return problem.gradient(w, rows)

        return gradient


@dataclass(frozen=True)
class ProximalAgent(RivalAgent):
    """Agents that solve f_i(w) + ||w - center||^2 / (2 rho) with a few steps."""

    rho: float = 1.0

    def moduli(self, problem: Problem) -> Moduli:
        """Return the moduli of f_i: those given, else the problem's own."""
        if self.smoothness > 0:
            return Moduli(self.strong_convexity, self.smoothness)
        own = getattr(problem, "moduli", None)
        if not isinstance(own, Moduli):
            raise ConfigError("this problem does not know its moduli: give smoothness")
        return own

    def towards(
        self,
        center: Vector,
        start: Vector,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Vector:
        """Return what N_e steps of the local solver make of ``start``."""
        if self.step_size > 0 and self.local_solver != "agd":
            moduli, step = Moduli(0.0, 0.0), self.step_size
        else:
            moduli = self.moduli(problem)
            step = self.step_size or best_step(moduli, self.rho)
        task = Subproblem(
            problem, center, self.rho, moduli, step, self.local_epochs, self.batch_size
        )
        return SOLVERS[self.local_solver](task, start, streams, noise)
