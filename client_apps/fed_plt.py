"""Fed-PLT: Peaceman-Rachford splitting with local training, the agent half.

N. Bastianello, C. Liu, K. H. Johansson, "Enhancing Privacy in Federated Learning through Local
Training", Algorithm 1. The agent keeps x_i and z_i; when it takes part it computes

    v = 2 y - z_i,   w <- N_e solver steps on f_i(w) + ||w - v||^2 / (2 rho), started at x_i
    x_i <- w,        z_i <- z_i + 2 (x_i - y)

and sends x_i. Starting at x_i, not at y, is the feedback that makes the limit exact. With a secure
sum x_i is rounded to multiples of 2^-40 before it is used, and ||x_i - y|| is added up as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

from privet.privacy import Facts, NoCertificateError, Perturber, Release, fed_plt_contraction
from privet.privacy.as_printed import fed_plt_epsilon
from privet.problems import LinearModel, Moduli, Problem, best_step, can_clip
from privet.wire import ConfigError, resolve
from privet.wire.agreement import distance, reflect
from privet.wire.ring import rounded

from .half import Arrays, Local, Streams
from .solvers import SOLVERS, Subproblem

UN_NOISED = Release("none", what="fed-plt x_i")


@dataclass(frozen=True)
class Agent:
    """Agent half of Fed-PLT; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "fed-plt"
    version: ClassVar[int] = 1
    noise_key: ClassVar[str] = "noise-variance"

    rho: float = 1.0
    local_solver: str = "gd"
    local_epochs: int = 5
    step_size: float = 0.0
    batch_size: int = 32
    strong_convexity: float = 0.0
    smoothness: float = 0.0
    row_norm: float = 0.0
    clip: float = 0.0
    noise_variance: float = 0.0
    relation: str = "replace-one"
    secure_sum: bool = False

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        names = {entry.name.replace("_", "-"): entry.name for entry in fields(cls)}
        config = resolve({k: v for k, v in settings.items() if k in names}, cls.name)
        half = cls(**{field: config[key] for key, field in names.items()})
        if half.noise_variance > 0 and half.local_solver != "noisy-gd":
            raise ConfigError(
                f"noise-variance needs local-solver = noisy-gd, found {half.local_solver}"
            )
        return half

    @property
    def private(self) -> bool:
        """Whether clipped and noised; without a clip the noise proves nothing."""
        return self.noise_variance > 0 and self.clip > 0

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem to work on: in a private run, with rows within the public bound.

        Raises
        ------
        ConfigError
            If a private run gives no bound, or the problem cannot be held to it.
        """
        if not self.private:
            return problem
        if not can_clip(problem):
            raise ConfigError("a private run needs a problem that can clip per example")
        if self.smoothness > 0:
            return problem
        if isinstance(problem, LinearModel):
            if self.row_norm <= 0:
                raise ConfigError("a private run needs row-norm, a public bound on the rows")
            return problem.with_rows_within(self.row_norm)
        if self.step_size <= 0:
            raise ConfigError(
                "a private run on a problem of your own needs step-size or smoothness"
            )
        return problem

    def moduli(self, problem: Problem, facts: Facts) -> Moduli:
        """Return the moduli of f_i: those given, public bounds in a private run, else computed.

        Moduli computed from the data would make the step size, and with it every upload, an
        un-noised function of the records.
        """
        if self.smoothness > 0 or (self.private and facts.linear):
            return self._public_moduli(facts)
        own = getattr(problem, "moduli", None)
        if not isinstance(own, Moduli):
            raise ConfigError("this problem does not know its moduli: give step-size or smoothness")
        return own

    def _public_moduli(self, facts: Facts) -> Moduli:
        if self.smoothness > 0:
            return Moduli(self.strong_convexity, self.smoothness)
        if self.row_norm <= 0:
            raise NoCertificateError("a private run needs row-norm, a public bound on the rows")
        return facts.public_moduli(self.row_norm)

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return x_i = z_i = y; only for servers that did not send the state."""
        return {"x": broadcast["y"], "z": broadcast["y"]}

    def _step(self, moduli: Moduli) -> float:
        return self.step_size or best_step(moduli, self.rho)

    def release(self, facts: Facts, round_: int) -> Release:
        """Return the release of any round: N_e noisy steps, of which the last iterate is released.

        Each step w <- w - gamma (clipped gradient + ...) + N(0, 2 gamma tau^2 I), eq. (13), moves
        by gamma 2C/q. Where a clipped step contracts by chi < 1 the differences of earlier steps
        shrink on the way; else the steps compose as N_e releases.

        Raises
        ------
        NoCertificateError
            For solvers, losses or regularisers for which nothing is proven.
        """
        if not self.private:
            return UN_NOISED
        known = self._releases.get(facts)
        if known is None:
            known = self._releases[facts] = self._release(facts)
        return known

    @cached_property
    def _releases(self) -> dict[Facts, Release]:
        return {}

    def _release(self, facts: Facts) -> Release:
        step, chi = self._private_step(facts)
        bound = step * facts.sensitivity(self.clip, relation=self.relation)  # type: ignore[arg-type]
        hidden = chi < 1.0 and self.local_epochs > 1
        return Release(
            "gaussian",
            scale=math.sqrt(2.0 * step * self.noise_variance),
            sensitivity=bound,
            count=1 if hidden else self.local_epochs,
            steps=self.local_epochs if hidden else 1,
            contraction=chi if hidden else 1.0,
            relation=self.relation,  # type: ignore[arg-type]
            what="fed-plt x_i after noisy local steps",
        )

    def _private_step(self, facts: Facts) -> tuple[float, float]:
        """Return gamma and chi, the contraction of a clipped step, from public numbers.

        Composition (chi = 1) needs nothing of a loss but its clipping, so it serves a problem of
        one's own. Given moduli are only claimed, and the rounding of a float32 iterate is no
        contraction: they prove nothing either.
        """
        if not facts.linear and self.step_size > 0:
            return self.step_size, 1.0
        moduli = self._public_moduli(facts)
        step = self._step(moduli)
        if not facts.linear:
            return step, 1.0
        chi = fed_plt_contraction(
            loss=facts.loss,
            step_size=step,
            strong_convexity=max(moduli.strong_convexity, 0.0),
            smoothness=moduli.smoothness,
            rho=self.rho,
            regularizer=facts.regularizer,
            solver=self.local_solver,
        )
        proven = self.smoothness <= 0 and facts.dtype == "float64"
        return step, chi if proven else 1.0

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return the paper's own figure, Proposition 4 with Lemma 5; it is no claim.

        None where the formula has no value, as without an l2 regulariser.
        """
        if not self.private or facts.regularizer != "l2" or facts.modulus <= 0:
            return None
        return fed_plt_epsilon(
            sensitivity=2.0 * self.clip,
            strong_convexity=facts.modulus,
            tau=math.sqrt(self.noise_variance),
            num_examples=facts.num_examples,
            step_size=self._private_step(facts)[0],
            rounds=rounds,
            local_steps=self.local_epochs,
            delta=delta,
        )

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Do one round: local solver from x_i, then reflect z_i."""
        x, z, y = state["x"], state["z"], broadcast["y"]
        v = y + y
        v -= z
        if self.step_size > 0 and self.local_solver != "agd":
            moduli, step = Moduli(0.0, 0.0), self.step_size
        else:
            moduli = self.moduli(problem, noise.facts)
            step = self._step(moduli)
        task = Subproblem(
            problem,
            v,
            self.rho,
            moduli,
            step,
            self.local_epochs,
            self.batch_size,
            self.clip,
            self.noise_variance,
        )
        new_x = SOLVERS[self.local_solver](task, x, streams, noise)
        if self.secure_sum:
            new_x = rounded(new_x)
            upload = {"x": new_x, "distance": distance(new_x, y)}
            return Local({"x": new_x, "z": reflect(z, new_x, y)}, upload, new_x)
        new_z = reflect(z, new_x, y)
        return Local({"x": new_x, "z": new_z}, {"x": new_x}, new_z)
