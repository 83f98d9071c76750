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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Half, Local, Streams
from privet.agents.terms import BudgetSchedule, MessageTerms, PrivacyTerms
from privet.agents.upload_bounds import data_term, decay_of, is_bounded, iterate_bound, norm_of
from privet.agents.value_bits import ValueBits
from privet.core import ConfigError, WireError
from privet.core.key import same, setting
from privet.data import DataSettings
from privet.kernel import (
    Facts,
    Moduli,
    Norm,
    Records,
    Relation,
    Release,
    gaussian_scale,
    norm_bound,
)
from privet.kernel.events import GRID, Mechanism
from privet.kernel.programs.inexact import Inexact
from privet.kernel.programs.steps import MOST_STEPS

from .arithmetic import ascend, distance
from .gradient_agents import ClippedGradients, noise


@dataclass(frozen=True)
class Agent(ValueBits, BudgetSchedule, Half):
    """Agent half of DP-IADMM; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "dp-iadmm"
    noise_key: ClassVar[str] = "noise-scale"
    upload: ClassVar[str] = "z_p"
    steady: ClassVar[bool] = True
    divisor: ClassVar[str] = "federation"  # (2c) is the mean over all agents' examples

    local_updates: int = setting(
        1, "inner steps in a round (E)", low=1, high=MOST_STEPS, topic="Local steps"
    )
    eta_rule: str = setting(
        "nonsmooth",
        "step sizes by (15), (19) or (22)",
        choices=("smooth", "nonsmooth", "strongly-convex"),
    )
    epsilon: float = setting(
        math.inf,
        "epsilon of one release: its noise, where noise-scale is auto, and the schedules; inf is "
        "none",
        low=0,
        open_low=True,
        topic="Privacy",
    )
    strong_convexity: float = setting(
        0.0,
        "strong convexity of every f_p (alpha); auto is the problem's",
        words={"auto": 0},
        needs={"eta_rule": "strongly-convex"},
    )
    smoothness: float = setting(
        0.0,
        "smoothness of every f_p (L); auto is the problem's",
        low=0,
        words={"auto": 0},
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
        topic="Privacy",
    )
    mechanism: Mechanism = setting(
        "gaussian", "distribution of the noise", choices=("gaussian", "laplace"), topic="Privacy"
    )
    sensitivity: str = setting(
        "clip",
        "what noise is scaled by; paper: a number computed from the data, which is not private",
        choices=("clip", "paper"),
        topic="Privacy",
    )
    noise_scale: float = noise(
        0.0, "scale of the noise on a gradient; auto is epsilon's", word="auto"
    )
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

    def row_bound(self, facts: Facts) -> float:
        """Return the public bound on the rows, where gradients are clipped."""
        if not (self.clip > 0 or self._scaled_by_data):
            return 0.0
        if facts.linear:
            return self.row_norm
        if self._scaled_by_data:
            raise ConfigError("sensitivity = 'paper' needs a linear model")
        if self.row_norm > 0:
            raise ConfigError("row-norm: the rows of a problem of your own cannot be clipped")
        return 0.0

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        return {"lam": np.zeros_like(broadcast["w"]), "z": broadcast["w"]}

    # ------------------------------------------------------------------ step sizes

    def eta(self, records: Records | None, facts: Facts, t: int) -> float:
        """Return eta_t of (15), (19) or (22); in a private run a function of public numbers only.

        Raises
        ------
        ConfigError
            If the rule needs a modulus that is neither given nor known.
        """
        if self.eta_rule == "nonsmooth":
            return 1.0 / math.sqrt(t)
        if self.eta_rule == "smooth":
            bend = self.smoothness or self._moduli(records, facts).smoothness
            damped = bend + math.sqrt(t) / self.epsilon
            if damped <= 0:
                raise ConfigError("eta-rule = smooth needs smoothness > 0 or a finite epsilon")
            return 1.0 / damped
        alpha = self.strong_convexity or self._moduli(records, facts).strong_convexity
        if alpha <= 0:
            raise ConfigError("eta-rule = strongly-convex needs strong-convexity > 0")
        return 2.0 / (alpha * (t + 2))

    def _moduli(self, records: Records | None, facts: Facts) -> Moduli:
        """Return moduli of f_p: public bounds in a private run, else those of the data."""
        if not self.private:
            moduli = None if records is None else records.un_noised.moduli
            if moduli is None:
                raise ConfigError("this problem does not know its moduli: give them")
            return moduli
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
        """Return the release of a round, the same in each (`Inexact.release`)."""
        once = self.perturbation == "output"
        eta = self.eta(None, facts, 1) if once else 0.0
        how = "with output noise" if once else "after noisy inner steps"
        return self._inexact.release(
            facts, self.row_norm, self.scale(facts), eta, f"dp-iadmm z_p {how}"
        )

    def scale(self, facts: Facts) -> float:
        """Return the scale of xi: the one given, else epsilon's for the sensitivity 2C/I."""
        if self.noise_scale > 0:
            return self.noise_scale
        if self.clip <= 0:
            raise ConfigError(f"epsilon = {self.epsilon:g} needs clip > 0, or sensitivity = paper")
        sensitivity = self._inexact.sensitivity(facts)
        moved = sensitivity * (1.0 + GRID)  # as charged, so that epsilon is not passed
        if self.mechanism == "laplace":
            return moved / self.epsilon
        return moved * gaussian_scale(self.epsilon, self.delta)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of the inner iterates, by that of a noised gradient; on W that of W.

        With e = beta / rho and q = (1/eta) / (rho + 1/eta) an inner step is z <- a z + b (t - n),
        a = q - (1 - q) e, b = 1 - q, t = w + lam / rho and ||n|| <= B, a noised gradient over rho.
        The mean of E steps is z_p, so ||z - t'|| <= ||z_p - t'|| + 2 B of the last iterate, for
        a >= 0 and t' = t / (1 + e): its distance after E steps shrinks by a^E, and the mean's by
        the mean of a, ..., a^E, which is no less. The round before had t - z_p = lam / rho of its
        own rho, which ``least-rho`` bounds.
        """
        if self.set != "none":
            return self.set_radius * (math.sqrt(facts.dim) if self.set == "box" else 1.0)
        if not is_bounded(facts):
            return math.inf
        rho, least = broadcast["rho"].item(), broadcast["least-rho"].item()
        eta = self.eta(None, facts, broadcast["t"].item())
        keep, share = 1.0 / (1.0 + rho * eta), rho * eta / (1.0 + rho * eta)
        release, largest = self.release(facts, round_), data_term(facts, self.clip)
        output = self.perturbation == "output"
        slope = largest if output else norm_bound(release, facts.dim, largest)
        start, decay = norm_of(state["z"]), decay_of(facts)
        if self.local_updates > 1 and not output:
            if decay * self.eta(None, facts, 1) > 1.0:  # a < 0: z_p does not bound the last z
                return math.inf
            before = norm_bound(self.release(facts, 1), facts.dim, largest)
            near = (norm_of(state["lam"]) + decay * start) / least
            start += 2.0 * (near + max(slope, before) / least)
        target = norm_of(broadcast["w"]) + (norm_of(state["lam"]) + slope) / rho
        most = iterate_bound(start, keep, share * decay / rho, share * target, self.local_updates)
        if not output:
            return most
        gain = self._inexact.output_gain(facts, self.row_norm, rho, eta)
        return gain * norm_bound(release, facts.dim, most / gain)

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return eps-bar of Theorem 1, which is that of one use of Laplace noise; it is no claim.

        However many uses there are, and though the paper's scale of the noise is itself computed
        from the data. None for other noise.
        """
        laplace = self.mechanism == "laplace" and self.perturbation == "objective"
        if not (self.private and laplace):
            return None
        if self.noise_scale > 0:
            return self._inexact.sensitivity(facts) / self.noise_scale
        return self.epsilon

    # ------------------------------------------------------------------ local work

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        w, lam = broadcast["w"], state["lam"]
        rho, t = broadcast["rho"].item(), broadcast["t"].item()
        if not (0 < rho < math.inf and 1 <= t < math.inf):
            raise WireError(f"rho = {rho!r} and t = {t!r}: a round needs rho > 0 and t >= 1")
        eta = self.eta(records, records.facts, int(t))
        program = self._inexact
        if self.noisy and not records.charged:
            program = self._program(records.facts)
        start = state["inner"] if "inner" in state else state["z"]
        mean, inner, gain = records.inexact(program, start, w, lam, rho, eta)
        # Where that is z_p, or un-noised, what was not released must not live on.
        several = self.local_updates > 1 and self.perturbation != "output"
        hidden = {"inner": inner} if several else {}
        if self.secure_sum:
            moved = np.multiply(mean, 2.0, dtype=np.float64)
            moved -= state["z"]
            moved -= w
            upload = {"moved": moved, "distance": distance(mean, w)}
            return Local({**self.follow(state, broadcast, {"z": mean}), **hidden}, upload, ())
        return self.conclude(
            state, broadcast, {"z": mean}, records, streams, hidden=hidden, gain=gain
        )

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return z_p, and lam_p + rho (w - z_p), Algorithm 1 line 8."""
        z = upload["z"]
        lam = ascend(state["lam"], broadcast["w"], z, broadcast["rho"].item())
        return {"lam": lam, "z": z}

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return w, which z_p is in the limit."""
        return {"z": broadcast["w"]}

    @cached_property
    def _inexact(self) -> Inexact:
        """The program of a round whose noise is charged, or that has none."""
        return Inexact(
            steps=self.local_updates,
            set=self.set,
            set_radius=self.set_radius,
            clip=self.clip,
            norm=self.norm,
            relation=self.relation,
            perturbation=self.perturbation if self.noisy else "none",
            mechanism=self.mechanism,
        )

    def _program(self, facts: Facts) -> Inexact:
        """Return the program of a round whose noise no account covers."""
        if self._scaled_by_data and self.perturbation == "objective":
            return replace(self._inexact, largest=self.epsilon)
        program = replace(self._inexact, scale=self.scale(facts))
        return replace(program, largest=self.epsilon) if self._scaled_by_data else program
