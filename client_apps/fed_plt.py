"""Fed-PLT: Peaceman-Rachford splitting with local training, the agent half.

N. Bastianello, C. Liu, K. H. Johansson, "Enhancing Privacy in Federated Learning through Local
Training", Algorithm 1. The agent keeps x_i and z_i; when it takes part it computes

    v = 2 y - z_i,   w <- N_e solver steps on f_i(w) + ||w - v||^2 / (2 rho), started at x_i
    x_i <- w,        z_i <- z_i + 2 a (x_i - y)

and sends x_i. The relaxation a is 1 in the paper; a < 1 averages the splitting with the identity
(a = 1/2 is Douglas-Rachford's, consensus ADMM): the same limits, under weaker conditions, more
slowly. Starting at x_i, not at 2 y - z_i, is the feedback that makes the limit exact; so does
starting at y, where x_i lies in the limit. With a secure sum x_i is rounded to multiples of 2^-40
before it is used, and ||x_i - y|| is added up as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from privet.agents.half import Arrays, Streams, Vector
from privet.agents.loop_defaults import Loops, splitting
from privet.agents.terms import BudgetSchedule, MessageTerms
from privet.agents.upload_bounds import data_term, decay_of, is_bounded, iterate_bound, norm_of
from privet.agents.value_bits import ValueBits
from privet.core import ConfigError
from privet.core.key import LARGEST, SMALLEST, Scalar, same, setting
from privet.data import DataSettings
from privet.kernel import (
    Facts,
    Moduli,
    NoCertificateError,
    Records,
    Relation,
    Release,
    best_step,
    norm_bound,
)
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import LocalTask, NoisySteps, Walk
from privet.wire.ring import rounded

from .arithmetic import distance
from .as_printed import fed_plt_epsilon
from .gradient_agents import ClippedGradients, noise
from .solver_agents import SolverAgent, StepSchedule, penalty

QUASI_NEWTON = "quasi-newton"
"""The value of ``acceleration`` with which the server learns the agents' curvature.

It broadcasts y and rho then and sends each agent its v_i, `privet.strategies.fed_plt_accelerated`;
the agent keeps x_i alone.
"""
_MOST_KEPT = 256
"""Public numbers of agents whose bounds of a step are kept."""
CENTER, PENALTY = "v", "rho"
"""Names of the arrays v_i (d,) and rho; the latter, first of its array, is never of length d."""


def reflect(z: Vector, x: Vector, y: Vector, relaxation: float = 1.0) -> Vector:
    """Return z + 2 a (x - y), Algorithm 1 line 10 for a = 1; all (d,). Both sides compute it."""
    moved: Vector = x - y
    moved *= 2 * relaxation
    moved += z
    return moved


@dataclass(frozen=True)
class SplittingAgent(ValueBits, SolverAgent):
    """Agent half of Peaceman-Rachford splitting with local training, without noise."""

    upload: ClassVar[str] = "x_i"

    rho: float = penalty(0.0, "penalty of the splitting", (3.0, 10.0))
    relaxation: float = setting(
        0.0,
        "a in z_i + 2 a (x_i - y): 1 is the paper's; auto is 1, or in an asynchronous run 1/2 "
        "unless theory proves 1, or around training loops 1 / s, s the share that takes part",
        words={"auto": 0},
        low=0,
        floor=SMALLEST,
        high=LARGEST,
    )

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) + ||w - (2 y - z_i)||^2 / (2 rho), from x_i."""
        y, center = broadcast["y"], self.center(state, broadcast)
        return self.local_task(
            self.start(state, y, center),
            records,
            streams,
            center=center,
            rho=self.penalty_of(broadcast),
            noise_variance=self.step_noise,
        )

    def center(self, state: Arrays, broadcast: Arrays) -> Vector:
        """Return 2 y - z_i, (d,)."""
        center = broadcast["y"] + broadcast["y"]
        center -= state["z"]
        return center

    def penalty_of(self, broadcast: Arrays) -> float:
        """Return the rho of the round."""
        return self.rho

    @property
    def damping(self) -> float:
        """The relaxation a, 1 where it is left open."""
        return self.relaxation or 1.0

    @property
    def step_noise(self) -> float:
        """tau^2 of the noise in every step: none."""
        return 0.0

    def start(self, state: Arrays, y: Vector, center: Vector) -> Vector:
        """Return where the local steps begin: at x_i."""
        return state["x"]

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end."""
        return {"x": walk.end}

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return x_i, and z_i + 2 a (x_i - y), Algorithm 1 line 10."""
        x = upload["x"]
        z = reflect(state["z"], x, broadcast["y"], self.damping)
        return self.held({"x": x, "z": z})

    def held(self, state: Arrays) -> Arrays:
        """Return what an agent holds of x_i and z_i: both."""
        return state

    def gradient_told(
        self, state: Arrays, broadcast: Arrays, upload: Arrays
    ) -> tuple[Vector, Vector]:
        """Return x_i, and (2 y - z_i - x_i) / rho: there the local problem's gradient is 0."""
        x = upload["x"]
        return x, (self.center(state, broadcast) - x) / self.penalty_of(broadcast)

    @property
    def model_step(self) -> float:
        """2 a: y is the mean of the z_i."""
        return 2.0 * self.damping

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return y, which x_i is in the limit."""
        return {"x": broadcast["y"]}


@dataclass(frozen=True)
class Agent(BudgetSchedule, StepSchedule, SplittingAgent):
    """Agent half of Fed-PLT; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "fed-plt"
    noise_key: ClassVar[str] = "noise-variance"
    steady: ClassVar[bool] = True
    noise_settings: ClassVar[Mapping[str, Any]] = {"local-solver": "noisy-gd"}

    local_solver: str = setting(
        "auto",
        "local solver; auto: newton where agents know the moduli of smooth problems and add no "
        "noise, else gd",
        choices=("auto", "newton", "gd", "agd", "sgd", "noisy-gd"),
        automatic=("gd", "gd"),
        topic="Local steps",
    )
    acceleration: str = setting(
        "auto",
        "acceleration across rounds; auto: quasi-newton with newton, of models up to 10^6 numbers "
        "over all agents, else none",
        choices=("auto", QUASI_NEWTON, "none"),
        automatic=("none", "none"),
    )
    local_start: str = setting(
        "auto",
        "where local steps begin: at the agent's own x_i, as in the paper, or at the model y",
        choices=("auto", "own", "model"),
        automatic=("own", "model"),
    )
    row_norm: float = same(DataSettings, "row_norm")
    clip: float = same(ClippedGradients, "clip", needs={"local_solver": "noisy-gd"})
    noise_variance: float = noise(0.0, "variance tau^2 of the noisy gradient (13)")
    relation: Relation = same(ClippedGradients, "relation")
    secure_sum: bool = same(MessageTerms, "secure_sum")

    def __post_init__(self) -> None:
        if self.acceleration == QUASI_NEWTON and (
            self.secure_sum or self.relaxation not in (0.0, 1.0)
        ):
            raise ConfigError(
                "acceleration = quasi-newton: not with secure-sum or a relaxation but 1"
            )
        if self.noise_variance > 0 and self.local_solver != "noisy-gd":
            raise ConfigError(
                f"noise-variance needs local-solver = noisy-gd, found {self.local_solver}"
            )
        super().__post_init__()

    @cached_property
    def private(self) -> bool:
        """Whether clipped and noised; without a clip the noise proves nothing."""
        return self.noise_variance > 0 and self.clip > 0

    @cached_property
    def accelerated(self) -> bool:
        """Whether the server sends the agent its v_i, and the round's rho."""
        return self.acceleration == QUASI_NEWTON

    @property
    def stacks(self) -> bool:
        return self.local_solver != "newton"

    def center(self, state: Arrays, broadcast: Arrays) -> Vector:
        """Return 2 y - z_i, in an accelerated run the v_i that the server sends."""
        return broadcast[CENTER] if self.accelerated else super().center(state, broadcast)

    def penalty_of(self, broadcast: Arrays) -> float:
        """Return rho, in an accelerated run the one that the server broadcasts."""
        return float(broadcast[PENALTY][0]) if self.accelerated else self.rho

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return x_i and z_i, in an accelerated run x_i alone."""
        if self.accelerated:
            return {"x": upload["x"]}
        return super().follow(state, broadcast, upload)

    def around_loops(self, loops: Loops) -> Mapping[str, Scalar]:
        """Return rho, relaxation and step of `loop_defaults`, where they are open."""
        values = dict(super().around_loops(loops))
        for key, value in splitting(loops, self.local_epochs).items():
            if not getattr(self, key.replace("-", "_")) or key in values:
                values[key] = value
        return values

    def row_bound(self, facts: Facts) -> float:
        """Return the public bound on the rows, in a private run that rests on one."""
        if not self.private:
            return 0.0
        if not facts.clips:
            raise ConfigError("a private run needs a problem that can clip per example")
        if self.smoothness > 0:
            return 0.0
        if facts.linear:
            if self.row_norm <= 0:
                raise ConfigError("a private run needs row-norm, a public bound on the rows")
            return self.row_norm
        if self.step_size <= 0:
            raise ConfigError(
                "a private run on a problem of your own needs step-size or smoothness"
            )
        return 0.0

    def moduli(self, records: Records) -> Moduli:
        """Return the moduli of f_i: those given, public bounds in a private run, else computed.

        Moduli computed from the data would make the step size, and with it every upload, an
        un-noised function of the records.
        """
        if self.private and records.facts.linear:
            return self._public_moduli(records.facts)
        return super().moduli(records)

    def _public_moduli(self, facts: Facts) -> Moduli:
        if self.smoothness > 0:
            return Moduli(self.strong_convexity, self.smoothness)
        if self.row_norm <= 0:
            raise NoCertificateError("a private run needs row-norm, a public bound on the rows")
        return facts.public_moduli(self.row_norm)

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        if self.accelerated:
            return {"x": broadcast["y"]}
        return self.held({"x": broadcast["y"], "z": broadcast["y"]})

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of any round: N_e noisy steps, of which the last iterate is released.

        Given moduli are only claimed, so the steps then compose.
        """
        steps = NoisySteps(
            self.gradients,
            self._private_step(facts),
            self.local_epochs,
            self.noise_variance,
            self.rho,
            self.local_solver,
        )
        row_norm = 0.0 if self.smoothness > 0 else self.row_norm
        return steps.release(facts, row_norm, "fed-plt x_i after noisy local steps")

    def _private_step(self, facts: Facts) -> float:
        """Return gamma, from public numbers."""
        if self.step_size > 0 and not facts.linear:
            return self.step_size
        moduli = self._public_moduli(facts)
        return self.step_size or best_step(moduli, self.rho)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of the iterates of noisy-gd, by that of a noisy step."""
        if self.accelerated or not is_bounded(facts):
            return math.inf
        y, (pull, decay, drawn) = broadcast["y"], self._bounds_of_step(facts, round_)
        moved = pull * norm_of(2.0 * y - state["z"]) + drawn
        start = norm_of(self.start(state, y, y))
        return iterate_bound(start, 1.0 - pull, decay, moved, self.local_epochs)

    def _bounds_of_step(self, facts: Facts, round_: int) -> tuple[float, float, float]:
        """Return gamma / rho, gamma beta, and a bound on the norm of what noise and data add.

        They are the same for every upload of a round, so they are kept with the release.
        """
        release, kept = self.release(facts, round_), self._kept_bounds.get(facts)
        if kept is None or kept[0] is not release:
            if len(self._kept_bounds) >= _MOST_KEPT:
                self._kept_bounds.clear()
            step = self._private_step(facts)
            drawn = norm_bound(release, facts.dim, step * data_term(facts, self.clip))
            kept = release, (step / self.rho, step * decay_of(facts), drawn)
            self._kept_bounds[facts] = kept
        return kept[1]

    @cached_property
    def _kept_bounds(self) -> dict[Facts, tuple[Release, tuple[float, float, float]]]:
        return {}

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return the paper's own figure, Proposition 4 with Lemma 5; it is no claim.

        None where the formula has no value, as without an l2 regulariser; it is about one record.
        """
        if not self.private or facts.regularizer != "l2" or facts.modulus <= 0:
            return None
        if self.relation == "replace-agent":
            return None
        return fed_plt_epsilon(
            sensitivity=2.0 * self.clip,
            strong_convexity=facts.modulus,
            tau=math.sqrt(self.noise_variance),
            num_examples=facts.num_examples,
            step_size=self._private_step(facts),
            rounds=rounds,
            local_steps=self.local_epochs,
            delta=delta,
        )

    # ------------------------------------------------------------------ local work

    @cached_property
    def gradients(self) -> Gradients:
        """The gradient of a local step; clipped where noise is added, and there alone."""
        if self.local_solver != "noisy-gd":
            return super().gradients
        return Gradients(clip=self.clip, relation=self.relation)

    @property
    def step_noise(self) -> float:
        """tau^2 of the noisy gradient (13)."""
        return self.noise_variance

    def start(self, state: Arrays, y: Vector, center: Vector) -> Vector:
        """Return where the local steps begin; both are public, as x_i was sent."""
        return y if self.local_start == "model" else super().start(state, y, center)

    def held(self, state: Arrays) -> Arrays:
        """Return what an agent holds of x_i and z_i: without x_i where no step begins there."""
        return state if self.local_start != "model" else {"z": state["z"]}

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return x_i, the end; rounded for a secure sum, and how far it is from y."""
        if not self.secure_sum:
            return super().finish(state, broadcast, task, walk)
        x = rounded(walk.end)
        return {"x": x, "distance": distance(x, broadcast["y"])}
