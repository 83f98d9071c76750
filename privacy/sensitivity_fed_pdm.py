"""Privacy-critical: how far a record moves what an agent of DP-FedPDM uploads.

With k = 1 - (1 - rho eta)^Q and gbar the weighted mean of the Q inner gradients, an agent uploads
y = x0hat - (2 k gbar + (1 - 2k) lam) / rho. With the *public dual* both sides compute lam from
what was released, so only gbar differs between neighbours and y moves by 2 |x - x'|. With the
*private dual* of the paper lam is hidden state that differs as well; the paper's own sensitivity
(35) is too small for it, and no certificate is given here.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from privet.privacy.checks import at_least_one, non_negative, positive
from privet.privacy.errors import NoCertificateError
from privet.privacy.sensitivity import SCALAR_LOSSES
from privet.problems import loss_curvature

Clipping: TypeAlias = Literal["batch", "example", "none"]


def fed_pdm_gain(
    *,
    clipping: str,
    bound: float,
    rho: float,
    step_size: float,
    local_steps: int,
    loss: str = "other",
    row_norm: float | None = None,
    smoothness: float | None = None,
    modulus: float = 0.0,
    stopping_threshold: float = 0.0,
) -> tuple[float, str]:
    """Return G such that y moves by at most G times what a step's gradient does, and the case.

    G = 2 eta sum_{j<Q} q^j, where q bounds how one common step scales a difference, with
    c = 1 - (rho + beta) eta:

    - whole-batch clip, or Q = 1: q = c for any loss;
    - Q > 1, scalar loss (logistic, one-class-logistic, ridge) clipped to C, or softmax without
      clip (C = sqrt(2) R), rows of norm <= R: q = max(c, eta L - c), where L = R^2/4, or
      C (R - C) if C < R/2 (logistic); 2 R^2 (ridge, (<a, x> - t)^2); R^2/2 (softmax). For
      eta <= 2 / (2 rho + L) and beta = 0 the gain is 2 k / rho, k = 1 - (1 - rho eta)^Q;
    - Q > 1, softmax clipped to C: q^2 = c^2 + c eta L/4 + (eta L)^2;
    - Q > 1, any L-smooth loss clipped to C: q = c + eta L.

    Parameters
    ----------
    clipping : {"batch", "example", "none"}
        What the bound is of: the whole batch, every example, or every example by its row's norm.
    bound : float
        C or G.
    rho, step_size, local_steps
        rho, eta, Q; 0 < (rho + beta) eta <= 1.
    loss, row_norm, smoothness
        Name of the loss, R (rows are clipped to it), and L of an example's loss where the name
        does not tell it.
    modulus : float
        beta of an unclipped quadratic regulariser beta |x|^2 / 2 in f_i.
    stopping_threshold : float
        nu of the inner stopping rule; anything above 0 makes Q depend on the data.

    Raises
    ------
    NoCertificateError
        When no row applies, with what is missing.
    """
    positive(rho=rho, step_size=step_size, bound=bound)
    non_negative(modulus=modulus, stopping_threshold=stopping_threshold)
    at_least_one(local_steps=local_steps)
    if row_norm is not None:
        positive(row_norm=row_norm)
    if stopping_threshold > 0:
        raise NoCertificateError(
            "FedPDM's inner stopping rule makes the number of steps depend on the data: "
            "fix the local steps and set its threshold to 0"
        )
    if (rho + modulus) * step_size > 1:
        raise NoCertificateError(
            f"FedPDM needs (rho + regulariser) * step size <= 1 for a privacy certificate, got "
            f"{(rho + modulus) * step_size:g}"
        )
    slow = 1.0 - (rho + modulus) * step_size
    if clipping == "batch":
        factor, case = slow, "whole-batch clip"
    elif local_steps == 1:
        factor, case = slow, "one step, per-example clip"
    else:
        curvature = _curvature(loss, row_norm, smoothness)
        bent = step_size * curvature
        if loss in SCALAR_LOSSES or (loss == "multinomial" and clipping == "none"):
            limit = step_size * _clipped_curvature(loss, bound, row_norm, curvature)
            factor, case = max(slow, limit - slow), "convex loss, per-example bound"
        elif loss == "multinomial":
            factor = math.sqrt(slow**2 + slow * bent / 4.0 + bent**2)
            case = "softmax, per-example clip"
        else:
            factor, case = slow + bent, "smooth loss, per-example clip"
    return 2.0 * _drift(factor, step_size, local_steps), case


def _drift(factor: float, step_size: float, local_steps: int) -> float:
    """Return eta sum_{j<Q} factor^j, by which a gradient's change moves x."""
    if factor > 1 and local_steps * math.log(factor) > 500:
        raise NoCertificateError(
            "FedPDM's certified sensitivity explodes with these local steps: take a smaller "
            "step size or fewer steps"
        )
    return step_size * math.fsum(factor**j for j in range(local_steps))


def _curvature(loss: str, row_norm: float | None, smoothness: float | None) -> float:
    """Return a public smoothness bound of one example's loss."""
    if loss != "other" and row_norm is not None:
        return loss_curvature(loss)[1] * row_norm**2
    if smoothness is None:
        raise NoCertificateError(
            "FedPDM with per-example clipping and more than one local step needs a loss whose "
            "smoothness is public: give row-norm for logistic, multinomial or ridge, or smoothness"
        )
    positive(smoothness=smoothness)
    return smoothness


def _clipped_curvature(loss: str, clip: float, row_norm: float | None, curvature: float) -> float:
    """Return the curvature left by clipping: C (R - C) for a logistic loss with C < R/2."""
    if loss in ("logistic", "one-class-logistic") and row_norm is not None and clip < row_norm / 2:
        return clip * (row_norm - clip)
    return curvature
