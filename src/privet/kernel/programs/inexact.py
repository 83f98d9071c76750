"""Privacy-critical: the inner steps of inexact ADMM, with objective or output perturbation.

DP-IADMM's program. E times, from an inner iterate z that was released,

    z <- Proj_W[ (rho w + lam - xi - g(z) + z/eta) / (rho + 1/eta) ]

with g the gradient of f_p, and the mean of the E iterates. With objective perturbation the noise xi
is on the clipped data term of every g: each is one draw, and all that follows of them is
post-processing. With output perturbation the iterates are hidden, and the one noise is on their
mean, which a record moves by at most G times what it moves a clipped gradient
(`privet.kernel.sensitivity.dp_iadmm_output_gain` has the proof); the last iterate then is not given
away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..bounded import Clipped, Relation, clipped_term
from ..errors import NoCertificateError, NoiseError, RecordsError
from ..events import LARGEST, SMALLEST, Mechanism, Release
from ..facts import Facts
from ..perturb import Perturber
from ..records import FloatArray, Norm, Problem, can_clip
from ..sensitivity import dp_iadmm_output_gain
from ..sets import make_set


@dataclass(frozen=True, slots=True)
class Inexact:
    """The public numbers of the inner steps, the same in all rounds.

    Attributes
    ----------
    steps : int
        E.
    set, set_radius
        W: "none", "box" or "l2", and its radius.
    clip : float
        C, 0 for none.
    norm : {"l1", "l2"}
        The norm that is clipped in.
    relation : str
    perturbation : {"none", "objective", "output"}
        The quantity that noise is added to.
    mechanism : {"gaussian", "laplace"}
    scale : float
        Of the noise on a gradient where none is charged; 0 takes ``largest``.
    largest : float
        An epsilon by which the largest gradient of an example is divided for the scale: computed
        from the records, so that nothing can be charged. 0 for none.
    """

    steps: int
    set: str = "none"
    set_radius: float = 1.0
    clip: float = 0.0
    norm: Norm = "l2"
    relation: Relation = "replace-one"
    perturbation: str = "none"
    mechanism: Mechanism = "gaussian"
    scale: float = 0.0
    largest: float = 0.0

    def sensitivity(self, facts: Facts) -> float:
        """Return how far one record can move a clipped gradient, in the norm of the clip.

        Raises
        ------
        NoCertificateError
        """
        return facts.sensitivity(self.clip, relation=self.relation)

    def release(
        self, facts: Facts, row_norm: float, scale: float, eta: float, what: str = ""
    ) -> Release:
        """Return the release that a round of these steps is charged as.

        Objective perturbation: E adaptive uses of the mechanism on clipped gradients. Output
        perturbation: one use, on the mean in units of what a gradient moves it by, so that the
        round's own rho and eta need not be known here.

        Parameters
        ----------
        facts : Facts
        row_norm : float
            The l2 norm that rows are held to; 0 where they are not.
        scale : float
            Of the noise on a gradient.
        eta : float
            Of any round, for what output perturbation needs a proof of.

        Raises
        ------
        NoCertificateError
            As `output_gain`.
        """
        once = self.perturbation == "output"
        if once:
            self.output_gain(facts, row_norm, 1.0, eta)
        return Release(
            self.mechanism,
            scale=scale,
            sensitivity=self.sensitivity(facts),
            norm=self.norm,
            count=1 if once else self.steps,
            relation=self.relation,
            what=what,
            program="output" if once else "gradients",
        )

    def output_gain(self, facts: Facts, row_norm: float, rho: float, eta: float) -> float:
        """Return G, the factor by which a change of the gradients enters the mean.

        Raises
        ------
        NoCertificateError
            Where nothing is proven.
        """
        if self.steps > 1 and facts.dtype != "float64":
            raise NoCertificateError(
                "output perturbation with local-updates > 1 needs dtype = float64: the rounding of "
                "float32 steps is covered by no bound"
            )
        if not facts.linear:
            return dp_iadmm_output_gain(
                rho=rho, eta=eta, local_updates=self.steps, norm=self.norm, projection=self.set
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
            local_updates=self.steps,
            loss=facts.loss,
            smoothness=data_term.public_moduli(row_norm).smoothness if row_norm else None,
            regularizer_modulus=facts.modulus,
            norm=self.norm,
            projection=self.set,
        )


class Inner(NamedTuple):
    """The result of the inner steps.

    Attributes
    ----------
    mean : array (d,)
        Mean of the inner iterates, noised with output perturbation; in the dtype of w.
    last : array (d,)
        The last inner iterate; the mean with output perturbation.
    gain : float
        Lower bound of the factor by which a charged draw enters the mean.
    """

    mean: FloatArray
    last: FloatArray
    gain: float


def inexact_steps(
    program: Inexact,
    inner: FloatArray,
    w: FloatArray,
    lam: FloatArray,
    rho: float,
    eta: float,
    problem: Problem,
    row_norm: float,
    noise: Perturber,
) -> Inner:
    """Take the inner steps from ``inner``, E draws or, with output perturbation, one.

    Parameters
    ----------
    inner, w, lam : array (d,)
        z, w and lam, all of them released.
    rho, eta : float
        rho_t and eta_t, > 0.

    Raises
    ------
    NoCertificateError
        As `Inexact.output_gain`, where output perturbation is charged.
    NoiseError
        For public numbers beside which float64 would round more than the account covers.
    """
    whole = program.perturbation == "output"
    if noise.charged and program.perturbation not in ("objective", "output"):
        raise NoiseError("inner steps without noise were asked for although noise was charged")
    # Where the mean of hidden iterates is noised, their rounding must stay below the charge.
    kind = np.float64 if whole else w.dtype.type
    domain = make_set(program.set, program.set_radius)
    pull = w.astype(kind) * kind(rho)
    pull += lam
    near, shrink = kind(1.0 / eta), kind(1.0 / (rho + 1.0 / eta))
    z: Any = inner.astype(kind, copy=False)
    mean = z
    gain = float(shrink) / math.sqrt(program.steps)
    if whole:
        # What a gradient moves one step by, where nothing is charged: that needs no proof.
        gain = dp_iadmm_output_gain(rho=rho, eta=eta, local_updates=1)
        if noise.charged:
            for name, number in (("rho", rho), ("eta", eta)):
                if not SMALLEST <= number <= LARGEST:  # else a record could let an iterate overflow
                    raise NoiseError(
                        f"{name} = {number:g} is not from {SMALLEST:g} to {LARGEST:g}, as output "
                        "perturbation needs"
                    )
            gain = program.output_gain(noise.facts, row_norm, rho, eta)
            noise.require_magnitude(z / gain, pull * (shrink / gain), steps=program.steps)
    for step in range(program.steps):
        slope = _slope(program, problem, z, noise)
        z = z * near
        z += pull
        z -= slope
        z *= shrink
        if program.set != "none":
            z = domain.project(z)
        mean = z if step == 0 else mean + z
    if program.steps > 1:
        mean *= kind(1.0 / program.steps)
    if not whole:
        return Inner(mean, z, gain)
    if noise.charged:
        sensitivity = program.sensitivity(noise.facts)
        mean = noise.perturb(Clipped(mean / gain, sensitivity, program.norm)) * gain
    else:
        mean = noise.unaccounted(mean, gain * program.scale, program.mechanism)
    mean = domain.project(mean).astype(w.dtype)
    return Inner(mean, mean, gain)  # what was not released must not live on


def _slope(program: Inexact, problem: Problem, z: FloatArray, noise: Perturber) -> FloatArray:
    """Return g(z) + xi: with objective perturbation the noise is on the clipped data term."""
    objective = program.perturbation == "objective"
    if program.largest:
        measured: Any = getattr(problem, "gradient_and_largest", None)
        if measured is None:
            raise RecordsError("sensitivity = 'paper' needs a linear model")
        slope, largest = measured(z, "l1")
        return noise.unaccounted(slope, largest / program.largest, program.mechanism)
    if program.clip <= 0 or not can_clip(problem):
        slope = problem.gradient(z)
        if not objective:
            return slope
        return noise.unaccounted(slope, program.scale, program.mechanism)
    if program.perturbation == "none":
        return problem.clipped_gradient(z, program.clip, program.norm)
    sensitivity = program.sensitivity(noise.facts) if noise.charged else None
    clipped, rest = clipped_term(
        problem, z, program.clip, norm=program.norm, sensitivity=sensitivity
    )
    slope = clipped.value
    if objective and noise.charged:
        slope = noise.perturb(clipped)
    elif objective:
        slope = noise.unaccounted(slope, program.scale, program.mechanism)
    return slope if rest is None else slope + rest
