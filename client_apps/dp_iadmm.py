"""DP-IADMM: inexact ADMM with several local updates, the agent half.

M. Ryu, K. Kim, "Differentially Private Federated Learning via Inexact ADMM with Multiple Local
Updates", Algorithm 1. The agent keeps lam_p and its last inner iterate z; in round t it computes

    E times:  z <- Proj_W[ (rho w + lam_p - xi - g(z) + z/eta) / (rho + 1/eta) ]       closed form
    z_p <- mean of the E inner iterates,      lam_p <- lam_p + rho (w - z_p)

with g the gradient of (2c) and xi the noise, and sends z_p alone. The next round goes on from the
last inner iterate, not from the mean. The closed form, with its own eta_t and the projection onto
W, is part of the method, which therefore walks itself. With a secure sum the change of
z_p - lam_p / rho, 2 z_p - w - (z_p of before), is sent in place of z_p, and ||z_p - w||.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from privet.core import ConfigError, WireError
from privet.core.key import same, setting
from privet.data import DataSettings
from privet.kernel import (
    Clipped,
    Facts,
    Moduli,
    NoCertificateError,
    Norm,
    Perturber,
    Problem,
    Relation,
    Release,
    clipped_term,
    dp_iadmm_output_gain,
    gaussian_scale,
)
from privet.kernel.events import GRID
from privet.problems import ConvexSet, LinearModel, can_clip, make_set

from .arithmetic import ascend, distance
from .gradient_agents import ClippedGradients, noise
from .half import Arrays, Half, Local, Streams, Vector
from .local_task import MOST_STEPS
from .terms import BudgetSchedule, MessageTerms, PrivacyTerms
from .value_bits import HEARD, BroadcastBits, ValueBits


@dataclass(frozen=True)
class Agent(ValueBits, BroadcastBits, BudgetSchedule, Half):
    """Agent half of DP-IADMM; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "dp-iadmm"
    hears: ClassVar[Mapping[str, str]] = {"w": HEARD + "w"}
    noise_key: ClassVar[str] = "noise-scale"
    upload: ClassVar[str] = "z_p"
    steady: ClassVar[bool] = True
    divisor: ClassVar[str] = "federation"  # (2c) is the mean over all agents' examples

    local_updates: int = setting(1, "inner steps in a round (E)", low=1, high=MOST_STEPS)
    eta_rule: str = setting(
        "nonsmooth",
        "step sizes by (15), (19) or (22)",
        choices=("smooth", "nonsmooth", "strongly-convex"),
    )
    epsilon: float = setting(
        math.inf,
        "epsilon of one release: its noise, where noise-scale is 0, and the schedules; inf is none",
        low=0,
        open_low=True,
    )
    strong_convexity: float = setting(
        0.0,
        "strong convexity of every f_p (alpha); 0 takes the problem's",
        needs={"eta_rule": "strongly-convex"},
    )
    smoothness: float = setting(
        0.0,
        "smoothness of every f_p (L); 0 takes the problem's",
        low=0,
        needs={"eta_rule": "smooth"},
    )
    set: str = setting("none", "the set W that models stay in", choices=("none", "box", "l2"))
    set_radius: float = setting(
        1.0, "radius of the set", low=0, open_low=True, needs={"set": ("box", "l2")}
    )
    perturbation: str = setting(
        "objective",
        "what the noise is added to",
        choices=("none", "objective", "output"),
    )
    mechanism: str = setting(
        "gaussian", "distribution of the noise", choices=("gaussian", "laplace")
    )
    sensitivity: str = setting(
        "clip",
        "what noise is scaled by; paper: a number computed from the data, which is not private",
        choices=("clip", "paper"),
    )
    noise_scale: float = noise(0.0, "scale of the noise on a gradient; 0 takes epsilon's")
    clip: float = same(ClippedGradients, "clip")
    row_norm: float = same(DataSettings, "row_norm")
    delta: float = same(PrivacyTerms, "delta")
    relation: Relation = same(ClippedGradients, "relation")
    secure_sum: bool = same(MessageTerms, "secure_sum")

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

    @property
    def stacks(self) -> bool:
        # Each agent has its own norm, modulus and noise otherwise.
        return self.set != "l2" and self.eta_rule == "nonsmooth" and not self._scaled_by_data

    @cached_property
    def _domain(self) -> ConvexSet:
        return make_set(self.set, self.set_radius)

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem to work on: where clipped, with rows within the public bound."""
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
        return {"lam": np.zeros_like(broadcast["w"]), "inner": broadcast["w"]}

    # ------------------------------------------------------------------ step sizes

    def eta(self, problem: Problem | None, facts: Facts, t: int) -> float:
        """Return eta_t of (15), (19) or (22); in a private run a function of public numbers only.

        Raises
        ------
        ConfigError
            If the rule needs a modulus that is neither given nor known.
        """
        if self.eta_rule == "nonsmooth":
            return 1.0 / math.sqrt(t)
        if self.eta_rule == "smooth":
            bend = self.smoothness or self._moduli(problem, facts).smoothness
            damped = bend + math.sqrt(t) / self.epsilon
            if damped <= 0:
                raise ConfigError("eta-rule = smooth needs smoothness > 0 or a finite epsilon")
            return 1.0 / damped
        alpha = self.strong_convexity or self._moduli(problem, facts).strong_convexity
        if alpha <= 0:
            raise ConfigError("eta-rule = strongly-convex needs strong-convexity > 0")
        return 2.0 / (alpha * (t + 2))

    def _moduli(self, problem: Problem | None, facts: Facts) -> Moduli:
        """Return moduli of f_p: public bounds in a private run, else those of the data."""
        if not self.private:
            own = getattr(problem, "moduli", None)
            if not isinstance(own, Moduli):
                raise ConfigError("this problem does not know its moduli: give them")
            return own
        if not facts.linear:
            raise ConfigError(
                f"a private run with eta-rule = {self.eta_rule} on a problem of your own needs the "
                "modulus: strong-convexity or smoothness"
            )
        if self.row_norm <= 0:
            raise ConfigError(
                f"a private run with eta-rule = {self.eta_rule} needs row-norm, a public bound on "
                "the rows, or the modulus itself"
            )
        return facts.public_moduli(self.row_norm)

    # ------------------------------------------------------------------ privacy

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of a round, the same in each.

        Objective perturbation: E adaptive uses of the mechanism on clipped gradients, each of
        sensitivity 2C/I. Output perturbation: one use, on z_p in units of what a gradient moves it
        by (`dp_iadmm_output_gain`).
        """
        once = self.perturbation == "output"
        if once:
            self._gain(facts, 1.0, self.eta(None, facts, 1))
        return Release(
            self.mechanism,  # type: ignore[arg-type]
            scale=self.scale(facts),
            sensitivity=self._sensitivity(facts),
            norm=self.norm,
            count=1 if once else self.local_updates,
            relation=self.relation,
            what=f"dp-iadmm z_p {'with output noise' if once else 'after noisy inner steps'}",
        )

    def _sensitivity(self, facts: Facts) -> float:
        return facts.sensitivity(self.clip, relation=self.relation)

    def scale(self, facts: Facts) -> float:
        """Return the scale of xi: the one given, else epsilon's for the sensitivity 2C/I."""
        if self.noise_scale > 0:
            return self.noise_scale
        if self.clip <= 0:
            raise ConfigError(f"epsilon = {self.epsilon:g} needs clip > 0, or sensitivity = paper")
        sensitivity = self._sensitivity(facts)
        moved = sensitivity * (1.0 + GRID)  # as charged, so that epsilon is not passed
        if self.mechanism == "laplace":
            return moved / self.epsilon
        return moved * gaussian_scale(self.epsilon, self.delta)

    def _gain(self, facts: Facts, rho: float, eta: float) -> float:
        """Return what a change of the gradients is scaled by on its way to z_p."""
        steps = self.local_updates
        if steps > 1 and facts.dtype != "float64":
            raise NoCertificateError(
                "output perturbation with local-updates > 1 needs dtype = float64: the rounding of "
                "float32 steps is covered by no bound"
            )
        if not facts.linear:
            return dp_iadmm_output_gain(
                rho=rho, eta=eta, local_updates=steps, norm=self.norm, projection=self.set
            )
        if facts.regularizer not in ("none", "l2"):
            raise NoCertificateError(
                f"output perturbation is proven for l2 and no regulariser, not for "
                f"{facts.regularizer}"
            )
        data_term = replace(facts, modulus=0.0)
        return dp_iadmm_output_gain(
            rho=rho,
            eta=eta,
            local_updates=steps,
            loss=facts.loss,
            smoothness=data_term.public_moduli(self.row_norm).smoothness if self.row_norm else None,
            regularizer_modulus=facts.modulus,
            norm=self.norm,
            projection=self.set,
        )

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return eps-bar of Theorem 1, which is that of one use of Laplace noise; it is no claim.

        However many uses there are, and though the paper's scale of the noise is itself computed
        from the data. None for other noise.
        """
        laplace = self.mechanism == "laplace" and self.perturbation == "objective"
        if not (self.private and laplace):
            return None
        if self.noise_scale > 0:
            return self._sensitivity(facts) / self.noise_scale
        return self.epsilon

    # ------------------------------------------------------------------ local work

    def local_update(
        self, state: Arrays, broadcast: Arrays, problem: Problem, streams: Streams, noise: Perturber
    ) -> Local:
        w, lam = broadcast["w"], state["lam"]
        rho, t = broadcast["rho"].item(), broadcast["t"].item()
        if not (0 < rho < math.inf and 1 <= t < math.inf):
            raise WireError(f"rho = {rho!r} and t = {t!r}: a round needs rho > 0 and t >= 1")
        eta = self.eta(problem, noise.facts, int(t))
        whole = self.noisy and self.perturbation == "output"
        # Where the mean of hidden iterates is noised, their rounding must stay below the charge.
        kind = np.float64 if whole else w.dtype.type
        domain = self._domain
        pull = w.astype(kind) * kind(rho)
        pull += lam
        near, shrink = kind(1.0 / eta), kind(1.0 / (rho + 1.0 / eta))
        z = mean = state["inner"].astype(kind, copy=False)
        gain = self._output_gain(noise, rho, eta) if whole else 1.0
        if whole and noise.charged:
            noise.require_magnitude(z / gain, pull * (shrink / gain), steps=self.local_updates)
        for step in range(self.local_updates):
            slope = self._slope(problem, z, noise)
            z = z * near
            z += pull
            z -= slope
            z *= shrink
            if self.set != "none":
                z = domain.project(z)
            mean = z if step == 0 else mean + z
        if self.local_updates > 1:
            mean *= kind(1.0 / self.local_updates)
        if whole:
            mean = domain.project(self._perturbed(mean, gain, noise)).astype(w.dtype)
        sent = mean
        if coder := self.coder(streams, noise, gain if whole else self._step_gain(shrink)):
            mean, sent = coder.upload(mean, w, "z")
        if self.perturbation == "output" or (self.codes and self.local_updates == 1):
            z = mean  # what was not released must not live on
        new_lam = ascend(lam, w, mean, rho)
        if self.secure_sum:
            moved = np.multiply(mean, 2.0, dtype=np.float64)
            moved -= state["z"]
            moved -= w
            upload = {"moved": moved, "distance": distance(mean, w)}
            return Local({"lam": new_lam, "inner": z, "z": mean}, upload, mean)
        return Local({"lam": new_lam, "inner": z}, {"z": sent}, new_lam)

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return w, which z_p is in the limit."""
        return {"z": broadcast["w"]}

    def _step_gain(self, shrink: float) -> float:
        """Return what the noise of the gradients is multiplied with in their mean, at least."""
        return float(shrink) / math.sqrt(self.local_updates)

    def _slope(self, problem: Problem, z: Vector, noise: Perturber) -> Vector:
        """Return g(z) + xi: with objective perturbation the noise is on the clipped data term."""
        objective = self.noisy and self.perturbation == "objective"
        if self._scaled_by_data:
            assert isinstance(problem, LinearModel)
            slope, largest = problem.gradient_and_largest(z, "l1")
            return noise.unaccounted(slope, largest / self.epsilon, self.mechanism)
        if self.clip <= 0 or not can_clip(problem):
            slope = problem.gradient(z)
            if not objective:
                return slope
            return noise.unaccounted(slope, self.scale(noise.facts), self.mechanism)
        if not self.noisy:
            return problem.clipped_gradient(z, self.clip, self.norm)
        clipped, rest = clipped_term(
            problem,
            z,
            self.clip,
            norm=self.norm,
            relation=self.relation,
        )
        slope = clipped.value
        if objective:
            slope = self._noised(clipped, noise)
        return slope if rest is None else slope + rest

    def _noised(self, clipped: Clipped, noise: Perturber) -> Vector:
        if noise.charged:
            return noise.perturb(clipped)
        return noise.unaccounted(clipped.value, self.scale(noise.facts), self.mechanism)

    def _output_gain(self, noise: Perturber, rho: float, eta: float) -> float:
        """Return what the noise of output perturbation is scaled by.

        Where none is charged it is what a gradient moves one step by: that needs no proof.
        """
        if noise.charged:
            return self._gain(noise.facts, rho, eta)
        return dp_iadmm_output_gain(rho=rho, eta=eta, local_updates=1)

    def _perturbed(self, mean: Vector, gain: float, noise: Perturber) -> Vector:
        """Return the mean of the inner iterates with the noise of output perturbation."""
        if not noise.charged:
            return noise.unaccounted(mean, gain * self.scale(noise.facts), self.mechanism)
        sensitivity = self._sensitivity(noise.facts)
        return noise.perturb(Clipped(mean / gain, sensitivity, self.norm)) * gain
