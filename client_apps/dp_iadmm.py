"""DP-IADMM: inexact ADMM with several local updates, the agent half.

M. Ryu, K. Kim, "Differentially Private Federated Learning via Inexact ADMM with Multiple Local
Updates", Algorithm 1. The agent keeps lam_p and its last inner iterate z; in round t it computes

    E times:  z <- Proj_W[ (rho w + lam_p - xi - g(z) + z/eta) / (rho + 1/eta) ]       closed form
    z_p <- mean of the E inner iterates,      lam_p <- lam_p + rho (w - z_p)

with g the gradient of (2c) and xi the noise, and sends z_p alone. The next round goes on from the
last inner iterate, not from the mean. With a secure sum z_p is rounded to multiples of 2^-40 before
it is used, and sent with its change and ||z_p - w||.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privet.privacy import (
    NoCertificateError,
    NoiseSource,
    Release,
    dp_iadmm_output_gain,
    dp_iadmm_release,
    dp_iadmm_sensitivity,
)
from privet.privacy.mechanisms import gaussian_scale
from privet.problems import ConvexSet, LinearModel, Moduli, Norm, Problem, can_clip, make_set
from privet.wire import ConfigError, resolve
from privet.wire.agreement import ascend, distance
from privet.wire.ring import rounded

from .audible import require_audible
from .half import Arrays, Local, Streams

Vector = NDArray[Any]
UN_NOISED = Release("none", what="dp-iadmm z_p")


@dataclass(frozen=True)
class Agent:
    """Agent half of DP-IADMM; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "dp-iadmm"
    version: ClassVar[int] = 1

    local_updates: int = 1
    eta_rule: str = "nonsmooth"
    epsilon: float = math.inf
    strong_convexity: float = 0.0
    smoothness: float = 0.0
    set: str = "none"
    set_radius: float = 1.0
    perturbation: str = "objective"
    mechanism: str = "gaussian"
    sensitivity: str = "clip"
    noise_scale: float = 0.0
    clip: float = 0.0
    row_norm: float = 0.0
    delta: float = 1e-5
    relation: str = "replace-one"
    secure_sum: bool = False

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        names = {entry.name.replace("_", "-"): entry.name for entry in fields(cls)}
        config = resolve({k: v for k, v in settings.items() if k in names}, cls.name)
        return cls(**{field: config[key] for key, field in names.items()})

    @cached_property
    def norm(self) -> Norm:
        """The norm gradients are clipped in: that of the mechanism's sensitivity."""
        return "l1" if self.mechanism == "laplace" else "l2"

    @cached_property
    def noisy(self) -> bool:
        """Whether noise is added."""
        return self.perturbation != "none" and (self.noise_scale > 0 or self.epsilon < math.inf)

    @cached_property
    def private(self) -> bool:
        """Whether clipped, and noised by a scale that does not depend on the data."""
        return self.noisy and self.clip > 0 and self.sensitivity == "clip"

    @cached_property
    def _scaled_by_data(self) -> bool:
        return self.noisy and self.sensitivity == "paper"

    @cached_property
    def _domain(self) -> ConvexSet:
        return make_set(self.set, self.set_radius)

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem to work on: in a private run, with rows within the public bound.

        Raises
        ------
        ConfigError
            If this configuration needs what the problem does not offer.
        """
        if not (self.clip > 0 or self._scaled_by_data):
            return problem
        if isinstance(problem, LinearModel):
            return problem.with_rows_within(self.row_norm) if self.row_norm > 0 else problem
        if self._scaled_by_data:
            raise ConfigError("sensitivity = 'paper' needs a linear model")
        if not can_clip(problem):
            raise ConfigError(f"clip = {self.clip:g}: this problem cannot clip per example")
        if self.row_norm > 0:
            raise ConfigError("row-norm: the rows of a problem of your own cannot be clipped")
        return problem

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return lam_p = 0, z = w; only for servers that did not send the state."""
        return {"lam": np.zeros_like(broadcast["w"]), "inner": broadcast["w"]}

    # ------------------------------------------------------------------ step sizes

    def eta(self, problem: Problem, t: int) -> float:
        """Return eta_t of (15), (19) or (22); in a private run a function of public numbers only.

        Raises
        ------
        ConfigError
            If the rule needs a modulus that is neither given nor known.
        """
        if self.eta_rule == "nonsmooth":
            return 1.0 / math.sqrt(t)
        if self.eta_rule == "smooth":
            bend = self.smoothness or self._moduli(problem).smoothness
            damped = bend + math.sqrt(t) / self.epsilon
            if damped <= 0:
                raise ConfigError("eta-rule = smooth needs smoothness > 0 or a finite epsilon")
            return 1.0 / damped
        alpha = self.strong_convexity or self._moduli(problem).strong_convexity
        if alpha <= 0:
            raise ConfigError("eta-rule = strongly-convex needs strong-convexity > 0")
        return 2.0 / (alpha * (t + 2))

    def _moduli(self, problem: Problem) -> Moduli:
        """Return moduli of f_p: public bounds in a private run, else those of the data."""
        if not self.private:
            own = getattr(problem, "moduli", None)
            if not isinstance(own, Moduli):
                raise ConfigError("this problem does not know its moduli: give them")
            return own
        if not isinstance(problem, LinearModel):
            raise ConfigError(
                f"a private run with eta-rule = {self.eta_rule} on a problem of your own needs the "
                "modulus: strong-convexity or smoothness"
            )
        if self.row_norm <= 0:
            raise ConfigError(
                f"a private run with eta-rule = {self.eta_rule} needs row-norm, a public bound on "
                "the rows, or the modulus itself"
            )
        return problem.public_moduli(
            self.row_norm, problem.regularizer, share=problem.num_examples / problem.divisor
        )

    # ------------------------------------------------------------------ privacy

    def release(self, problem: Problem, round_: int) -> Release:
        """Return the release of a round, the same in each.

        Objective perturbation: E adaptive uses of the mechanism on clipped gradients. Output
        perturbation: one use, its noise in proportion to what a record can move z_p.

        Raises
        ------
        NoCertificateError
            Where no sensitivity is proven.
        """
        if not self.private:
            return UN_NOISED
        if self.perturbation == "output":
            self._gain(problem, 1.0, self.eta(problem, 1))
        return self._release(problem)

    @cached_property
    def _releases(self) -> dict[int, Release]:
        return {}

    def _release(self, problem: Problem) -> Release:
        """Return the release of a round; computed once for all rounds and agents that agree."""
        count = _divisor(problem)
        known = self._releases.get(count)
        if known is None:
            known = self._releases[count] = _release(self, count)
        return known

    def scale(self, count: int) -> float:
        """Return the scale of xi: the one given, else epsilon's for the sensitivity 2C/I."""
        if self.noise_scale > 0:
            return self.noise_scale
        if self.clip <= 0:
            raise ConfigError(f"epsilon = {self.epsilon:g} needs clip > 0, or sensitivity = paper")
        sensitivity = dp_iadmm_sensitivity(
            clip=self.clip,
            num_examples=count,
            relation=self.relation,  # type: ignore[arg-type]
        )
        if self.mechanism == "laplace":
            return sensitivity / self.epsilon
        return sensitivity * gaussian_scale(self.epsilon, self.delta)

    def _gain(self, problem: Problem, rho: float, eta: float) -> float:
        """Return what a change of the gradients is scaled by on its way to z_p."""
        if not isinstance(problem, LinearModel):
            return dp_iadmm_output_gain(rho=rho, eta=eta, local_updates=self.local_updates)
        if problem.regularizer.kind not in ("none", "l2"):
            raise NoCertificateError(
                f"output perturbation is proven for l2 and no regulariser, not for "
                f"{problem.regularizer.kind}"
            )
        bend = None
        if self.row_norm > 0:
            share = problem.num_examples / problem.divisor
            bend = problem.public_moduli(self.row_norm, share=share).smoothness
        return dp_iadmm_output_gain(
            rho=rho,
            eta=eta,
            local_updates=self.local_updates,
            loss=problem.kind,
            smoothness=bend,
            regularizer_modulus=problem.regularizer.moduli.strong_convexity,
            norm=self.norm,
            projection=self.set,
        )

    # ------------------------------------------------------------------ local work

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: NoiseSource,
    ) -> Local:
        """Do one round: E inner steps, their mean, the dual."""
        w, lam, rho = broadcast["w"], state["lam"], float(broadcast["rho"])
        eta = self.eta(problem, int(broadcast["t"]))
        kind = w.dtype.type
        domain = self._domain
        pull = w * kind(rho)
        pull += lam
        near, shrink = kind(1.0 / eta), kind(1.0 / (rho + 1.0 / eta))
        if self.private:
            self._require_audible(problem, rho, eta, pull, state["inner"])
        draws = self._draws(problem, noise, w.dtype)
        z = mean = state["inner"]
        for step in range(self.local_updates):
            slope, xi = self._slope(problem, z, noise)
            z = z * near
            z += pull
            z -= slope
            if draws is not None:
                xi = draws[step]
            if xi is not None:
                z -= xi
            z *= shrink
            if self.set != "none":
                z = domain.project(z)
            mean = z if step == 0 else mean + z
        if self.local_updates > 1:
            mean *= kind(1.0 / self.local_updates)
        if self.perturbation == "output" and self.noisy:
            mean = domain.project(self._perturbed(problem, mean, rho, eta, noise))
        if self.secure_sum:
            mean = rounded(mean)
        if self.perturbation == "output":
            z = mean  # what was not released must not live on
        new_lam = ascend(lam, w, mean, rho)
        if self.secure_sum:
            moved = np.subtract(mean, state["z"], dtype=np.float64)
            upload = {"z": mean, "moved": moved, "distance": distance(mean, w)}
            return Local({"lam": new_lam, "inner": z, "z": mean}, upload, mean)
        return Local({"lam": new_lam, "inner": z}, {"z": mean}, new_lam)

    def _require_audible(
        self, problem: Problem, rho: float, eta: float, pull: Vector, inner: Vector
    ) -> None:
        """Refuse a round in which rounding would swallow the noise, or one draw serve two entries.

        Objective noise is added to rho w + lam + z/eta, output noise to (rho + 1/eta)^-1 times
        that. All of it is known to the server or noised before.
        """
        near, shape = 1.0 / eta, (problem.dim,)
        if rho <= 0 or pull.shape != shape or inner.shape != shape:
            raise ConfigError(f"a private round needs rho > 0, and w, lam and z of shape {shape}")
        scale = self._release(problem).scale
        if self.perturbation == "output":
            scale *= self._gain(problem, rho, eta) * (rho + near)
        require_audible(scale / max(1.0, near), inner)
        require_audible(scale, pull)

    def _draws(self, problem: Problem, noise: NoiseSource, dtype: DTypeLike) -> Vector | None:
        """Return the noise of all inner steps (E, d), None where each step has its own or none."""
        if self.perturbation != "objective" or not self.noisy or self._scaled_by_data:
            return None
        scale = self.noise_scale or self._release(problem).scale
        return self._draw(noise, (self.local_updates, problem.dim), scale, dtype)

    def _draw(
        self, noise: NoiseSource, size: tuple[int, ...], scale: float, dtype: DTypeLike
    ) -> Vector:
        source = noise.laplace if self.mechanism == "laplace" else noise.gaussian
        return source(size, scale, dtype)

    def _slope(
        self, problem: Problem, z: Vector, noise: NoiseSource
    ) -> tuple[Vector, Vector | None]:
        """Return g(z), and with the paper's sensitivity (9b) the noise that it sets."""
        if not self._scaled_by_data:
            if self.clip > 0 and can_clip(problem):
                return problem.clipped_gradient(z, self.clip, self.norm), None
            return problem.gradient(z), None
        assert isinstance(problem, LinearModel)
        slope, largest = problem.gradient_and_largest(z, "l1")
        return slope, self._draw(noise, z.shape, largest / self.epsilon, z.dtype)

    def _perturbed(
        self, problem: Problem, mean: Vector, rho: float, eta: float, noise: NoiseSource
    ) -> Vector:
        """Return the mean of the inner iterates with the noise of output perturbation."""
        scale = self.noise_scale or self._release(problem).scale
        scale *= self._gain(problem, rho, eta)
        return mean + self._draw(noise, mean.shape, scale, mean.dtype)


def _divisor(problem: Problem) -> int:
    """Return I, the public number that the sum over an agent's examples is divided by."""
    if not can_clip(problem):
        raise NoCertificateError("this problem cannot clip per example: it has no certificate")
    return math.floor(getattr(problem, "divisor", problem.num_examples))


def _release(half: Agent, count: int) -> Release:
    once = half.perturbation == "output"
    release = dp_iadmm_release(
        clip=half.clip,
        num_examples=count,
        noise_scale=half.scale(count),
        local_updates=1 if once else half.local_updates,
        mechanism=half.mechanism,  # type: ignore[arg-type]
        relation=half.relation,  # type: ignore[arg-type]
    )
    return replace(release, what="dp-iadmm z_p with output noise") if once else release
