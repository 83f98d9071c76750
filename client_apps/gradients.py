"""Privacy-critical: what agents of local gradient steps share: batches, clipping, noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from privet.privacy import Facts, NoCertificateError, Perturber, Release
from privet.problems import LinearModel, Problem, can_clip, clipped_term
from privet.wire import ConfigError, WireError, resolve

from .adapters.finite_sum import FiniteSum
from .half import Arrays, Streams, Vector


@dataclass(frozen=True)
class ClippedGradients:
    """Batches and clipping; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1

    batch: str = "full"
    batch_size: int = 32
    clip: float = 0.0
    clipping: str = "example"
    relation: str = "replace-one"

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        names = {entry.name.replace("_", "-"): entry.name for entry in fields(cls)}
        config = resolve({k: v for k, v in settings.items() if k in names}, cls.name)
        return cls(**{field: config[key] for key, field in names.items()})

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem as it is (raises ``ConfigError`` where it cannot be clipped)."""
        self.require_clipping(problem)
        return problem

    def require_clipping(self, problem: Problem) -> None:
        """Refuse a problem that does not offer the clipping asked for.

        Raises
        ------
        ConfigError
        """
        if self.clip <= 0:
            return
        if self.clipping == "batch":
            if not isinstance(problem, LinearModel | FiniteSum):
                raise ConfigError("clipping = 'batch': this problem cannot clip its gradient")
        elif not can_clip(problem):
            raise ConfigError(f"clip = {self.clip:g}: this problem cannot clip per example")

    def size_of_batch(self, problem: Problem) -> int:
        """Return the number of examples of one step."""
        if self.batch == "full":
            return problem.num_examples
        return min(self.batch_size, problem.num_examples)

    def sensitivity(self, facts: Facts) -> float:
        """Return what one record can move a step's clipped gradient by.

        Raises
        ------
        NoCertificateError
        """
        whole = self.batch == "full" or self.batch_size >= facts.num_examples
        if self.clipping == "example" and self.relation == "add-remove" and not whole:
            raise NoCertificateError(
                "relation = 'add-remove' needs batch = 'full': a sampled batch that loses a record "
                "holds another in its place"
            )
        return facts.sensitivity(
            self.clip,
            relation=self.relation,  # type: ignore[arg-type]
            clipping=self.clipping,  # type: ignore[arg-type]
            batch_size=None if whole else self.batch_size,
        )

    def batches(self, problem: Problem, streams: Streams) -> Batches:
        """Return the mini-batches of a round."""
        rng = streams.open("batches") if self.batch == "sample" else None
        return Batches(rng, problem.num_examples, self.size_of_batch(problem))

    def gradient(self, problem: Problem, x: Vector, rows: Vector | None) -> Vector:
        """Return the gradient on these rows, clipped as configured."""
        if self.clip <= 0:
            return problem.gradient(x, rows)
        if self.clipping == "batch" and isinstance(problem, LinearModel | FiniteSum):
            return problem.batch_clipped_gradient(x, self.clip, rows)
        if self.clipping == "example" and can_clip(problem):
            return problem.clipped_gradient(x, self.clip, rows=rows)
        raise ConfigError(f"clip = {self.clip:g}: this problem cannot clip")


@dataclass(frozen=True)
class GradientAgent(ClippedGradients):
    """Settings of local gradient steps; the fields are the run-config keys of the same names."""

    step_size_base: float = 0.04
    step_size_rule: str = "inverse-sqrt"
    max_local_steps: int = 10
    noise_scale: float = 0.0

    noise_key: ClassVar[str] = "noise-scale"

    @property
    def private(self) -> bool:
        """Whether noised and clipped; without a clip the noise proves nothing."""
        return self.noise_scale > 0 and self.clip > 0

    def step_size(self, round_: int) -> float:
        """Return eta_t of a round counted from 1 (t from 0)."""
        if self.step_size_rule == "constant":
            return self.step_size_base
        return self.step_size_base / math.sqrt(round_)


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows of one step after the other: uniform without replacement, None for all."""

    rng: np.random.Generator | None
    total: int
    size: int

    def draw(self) -> Vector | None:
        """Return the rows of the next step."""
        if self.rng is None:
            return None
        return self.rng.choice(self.total, self.size, replace=False, shuffle=False)


@dataclass(frozen=True)
class NoisyStepsAgent(GradientAgent):
    """Agents that add noise to every local gradient; whatever follows is post-processing.

    Privacy: with ``noise_scale`` > 0 the mean gradient of each of the Q steps is a Gaussian
    release of sensitivity 2C/b (replace-one), so a message counts as Q of them. This is how
    M. Noble, A. Bellet, A. Dieuleveut, "Differentially Private Federated Learning on Heterogeneous
    Data" (2022), make SCAFFOLD private: control variates made of noised gradients cost nothing.
    """

    def noised(self, problem: Problem, x: Vector, rows: Vector | None, noise: Perturber) -> Vector:
        """Return one step's clipped gradient, with noise on its data term, in the model's dtype."""
        if x.shape != (problem.dim,):
            raise WireError(f"model has shape {x.shape}, expected ({problem.dim},)")
        if not noise.charged:
            slope = self.gradient(problem, x, rows)
            if self.noise_scale <= 0:
                return slope
            return noise.unaccounted(slope, self.noise_scale).astype(x.dtype, copy=False)
        clipped, rest = clipped_term(
            problem,
            x,
            self.clip,
            rows=rows,
            clipping=self.clipping,  # type: ignore[arg-type]
            relation=self.relation,  # type: ignore[arg-type]
        )
        slope = noise.perturb(clipped)
        if rest is not None:
            slope += rest
        return slope.astype(x.dtype, copy=False)

    def release(self, facts: Facts, round_: int) -> Release:
        """Return the release of one round: Q uses of the Gaussian mechanism."""
        if not self.private:
            return Release("none", what=f"{self.name} upload")
        return Release(
            "gaussian",
            scale=self.noise_scale,
            sensitivity=self.sensitivity(facts),
            count=self.max_local_steps,
            relation=self.relation,  # type: ignore[arg-type]
            what=f"{self.name} noised local gradients",
        )

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return no state; only for servers that do not send it."""
        return {}
