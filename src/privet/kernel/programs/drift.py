"""Privacy-critical: local steps that track the drift of the records, noised once at their end.

FedPDM's program. From a public center x0hat and a public dual lam, Q steps on

    f_i(x) - <lam, x> + (rho/2) ||x - x0hat||^2

give y = 2 x - x0hat - lam / rho. With c = 1 - (rho + beta) eta, beta of an l2 regulariser, the
iterate is x = p + t / 2, where p follows from x0hat and lam alone and t <- c t - 2 eta (clipped
gradient). One record moves t by at most G times what it moves a clipped gradient
(`privet.kernel.sensitivity.fed_pdm_gain` has the proof), and the noise goes onto t alone:
y = 2 p - x0hat - lam / rho + t. One step is t = -2 eta (clipped gradient): a noised gradient like
any other, so that its batches may come in turn (`privet.kernel.cyclic`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from ..bounded import Clipping
from ..errors import NoCertificateError
from ..events import Release
from ..facts import Facts
from ..perturb import Perturber
from ..records import FloatArray, Problem, RowIndex
from ..sensitivity import fed_pdm_gain
from ..streams import Streams
from .gradients import Gradients


@dataclass(frozen=True, slots=True)
class Drift:
    """The public numbers of the steps.

    Attributes
    ----------
    rho, step_size : float
        rho and eta.
    steps : int
        Q.
    gradients : Gradients
        The rows of a step; its clip is C, which examples are held to where it is 0 in
        ``clipping``'s stead.
    clipping : {"batch", "example", "none"}
        What is held to C: the whole batch, every example, or every example by its row's norm.
    tolerance : float
        nu of the stopping rule, which has no certificate above 0.
    """

    rho: float
    step_size: float
    steps: int
    gradients: Gradients
    clipping: str
    tolerance: float = 0.0

    def gain(self, facts: Facts, row_norm: float) -> tuple[float, str]:
        """Return G, what a change of a step's gradient is scaled by on its way to y, and why.

        Parameters
        ----------
        facts : Facts
        row_norm : float
            The l2 norm that rows are held to; 0 where they are not.

        Raises
        ------
        NoCertificateError
            Where no gain is proven.
        """
        bound = self.gradients.clip
        largest = math.sqrt(2.0) * row_norm if facts.loss == "multinomial" else 0.0
        if self.clipping == "none":
            differs = self.gradients.clipping != "example" or not bound >= largest
        else:
            differs = self.clipping != self.gradients.clipping
        if differs:
            raise NoCertificateError(
                f"FedPDM's gain for clipping {self.clipping!r} is not that of gradients held to "
                f"{bound:g} by {self.gradients.clipping!r}"
            )
        modulus = 0.0
        if self.steps > 1:  # one step moves a difference by the data term alone
            if facts.regularizer not in ("none", "l2"):
                raise NoCertificateError(
                    f"FedPDM with regularizer {facts.regularizer!r} and more than one local step "
                    "has no privacy certificate: take one step, or l2"
                )
            modulus = facts.modulus
            if self.clipping != "batch" and facts.dtype != "float64":
                raise NoCertificateError(
                    "FedPDM with more than one local step and bounds per example needs dtype = "
                    "float64: the rounding of float32 steps is covered by no bound"
                )
        return fed_pdm_gain(
            clipping=self.clipping,
            bound=bound,
            rho=self.rho,
            step_size=self.step_size,
            local_steps=self.steps,
            loss=facts.loss,
            row_norm=row_norm or None,
            modulus=modulus,
            stopping_threshold=self.tolerance,
        )

    def release(self, facts: Facts, row_norm: float, scale: float, what: str = "") -> Release:
        """Return what a round of these steps is charged as: one use, on y.

        Raises
        ------
        NoCertificateError
            As `gain`.
        """
        gain, case = self.gain(facts, row_norm)
        batches, bands = self.gradients.batches, self.gradients.bands
        if batches > 1 and self.steps > 1:
            raise NoCertificateError(
                "batch = 'cyclic' has a proof where every step is noised: take one local step "
                "(max-local-steps = 1)"
            )
        return Release(
            "gaussian",
            scale=scale,
            sensitivity=self.gradients.sensitivity(facts) * gain,
            relation=self.gradients.relation,
            what=f"{what} ({case})",
            batches=batches,
            bands=bands,
            program="drift",
        )


def drift(
    program: Drift,
    center: FloatArray,
    lam: FloatArray,
    problem: Problem,
    row_norm: float,
    streams: Streams,
    noise: Perturber,
) -> FloatArray:
    """Return y, shape (d,), with the charged noise on what the gradients move it by.

    Privacy: one draw. The gain is worked out here, from the steps that are taken.

    Raises
    ------
    NoCertificateError
        As `Drift.gain`.
    NoiseError
        For public numbers beside which float64 would round more than the account covers.
    """
    facts, many, gradients = noise.facts, program.steps > 1, program.gradients
    rho, step = program.rho, program.step_size
    center, lam = center.astype(np.float64), lam.astype(np.float64)
    if many and program.clipping != "batch":
        noise.require_magnitude(center, lam / rho, steps=program.steps)
    decay = 1.0 - (rho + (facts.modulus if many else 0.0)) * step
    gain, _ = program.gain(facts, row_norm)
    if noise.cycle:
        terms, rows = gradients.turn(problem, noise)
        every: Iterator[RowIndex] = repeat(rows)
    else:
        every = gradients.rows(problem, streams, program.steps)
        terms = gradients.charged_terms(problem, noise)
    public: Any = center
    moved: Any = np.zeros(problem.dim)
    for _ in range(program.steps):
        clipped, rest = terms(public + 0.5 * moved, next(every))
        moved = decay * moved - 2.0 * step * clipped.value
        if many:
            public = decay * public + step * (rho * center + lam)
        else:
            public = public + step * (lam if rest is None else lam - rest)
    moved = noise.perturb(clipped.scaled(gain)._replace(value=moved))
    moved += 2.0 * public - center - lam / rho
    y: FloatArray = moved.astype(problem.dtype, copy=False)
    return y


__all__ = ["Clipping", "Drift", "drift"]
