"""Certified sensitivities of DP-FedPDM's upload.

With gbar the weighted mean of the Q inner gradients and k = 1 - (1 - rho eta)^Q, an agent uploads
y = x0hat - (2 k gbar + (1 - 2k) lam) / rho. With the *public dual* both sides compute lam from
what was released, so only gbar differs between neighbours and y moves by 2 |x - x'|. With the
*private dual* lam is hidden state that differs as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from privet.privacy.checks import at_least_one, non_negative, positive, records_moved
from privet.privacy.errors import NoCertificateError
from privet.privacy.events import Relation
from privet.privacy.sensitivity import SCALAR_LOSSES

Clipping: TypeAlias = Literal["batch", "example", "none"]
Dual: TypeAlias = Literal["public", "private"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proven L2 sensitivity and the case that proves it.

    ``hidden`` is how far the duals of neighbours can be apart where the agent keeps its dual to
    itself: the sensitivity holds for duals of at most that, so for those of rounds whose own
    certificate says no more.
    """

    sensitivity: float
    case: str
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class _Setting:
    """The numbers the cases share.

    `bound` is C or G; `gap` is how far the mean gradients of neighbours can be apart at one point
    (2C/b, C/b or 2G); `decay` is c = 1 - (rho + beta) eta.
    """

    gap: float
    rho: float
    step_size: float
    local_steps: int
    decay: float
    bound: float

    def drift(self, factor: float) -> float:
        """eta sum_{j<Q} factor^j, by which gap moves x when a step scales differences by factor."""
        if factor > 1 and self.local_steps * math.log(factor) > 500:
            raise NoCertificateError(
                "FedPDM's certified sensitivity explodes with these local steps: take a smaller "
                "step size or fewer steps"
            )
        return self.step_size * math.fsum(factor**j for j in range(self.local_steps))

    def certify(self, factor: float, case: str) -> Certificate:
        """Public dual: y moves by twice what x moves."""
        return Certificate(2.0 * self.gap * self.drift(factor), case)


def fed_pdm_certificate(
    *,
    clipping: Clipping,
    clip: float | None,
    rho: float,
    step_size: float,
    local_steps: int,
    batch_size: int = 1,
    num_examples: int | None = None,
    loss: str = "other",
    row_norm: float | None = None,
    smoothness: float | None = None,
    regularizer_modulus: float = 0.0,
    stopping_threshold: float = 0.0,
    dual: Dual = "public",
    relation: Relation = "replace-one",
) -> Certificate:
    """Return the smallest proven sensitivity of FedPDM's upload y, or refuse.

    Public dual: 2 gap eta sum_{j<Q} q^j, where gap is 2G for whole batches clipped to G and 2C/b
    for examples clipped to C, and q bounds how one common step scales a difference, with
    c = 1 - (rho + beta) eta:

    - whole-batch clip, or Q = 1: q = c for any loss;
    - Q > 1, scalar loss (logistic, one-class-logistic, ridge) clipped to C, or softmax without
      clip (C = sqrt(2) R), rows of norm <= R: q = max(c, eta L - c), where L = R^2/4, or
      C (R - C) if C < R/2 (logistic); 2 R^2 (ridge, (<a, x> - t)^2); R^2/2 (softmax). For
      eta <= 2 / (2 rho + L) and beta = 0 this is 4 k C / (rho b), k = 1 - (1 - rho eta)^Q;
    - Q > 1, softmax clipped to C: q^2 = c^2 + c eta L/4 + (eta L)^2;
    - Q > 1, any L-smooth loss clipped to C: q = c + eta L.

    Private dual: (gap/rho) (2k + |2k - 1|) for whole-batch clipping or Q = 1, k = rho eta sum c^j.

    Parameters
    ----------
    clipping, clip
        "batch" with G, "example" with C, or "none" (then `row_norm` bounds the gradients of
        logistic, one-class-logistic and softmax).
    rho, step_size, local_steps
        rho, eta, Q; 0 < rho eta <= 1.
    batch_size, num_examples
        b, and the agent's public number of examples. "add-remove" halves C's share only for full
        batches; a sampled batch swaps its record for another.
    loss, row_norm, smoothness
        Name of the loss, R (rows are clipped to it), and L of an example's loss where the name
        does not tell it.
    regularizer_modulus
        beta of an unclipped quadratic regulariser beta |x|^2 / 2 in f_i.
    stopping_threshold
        nu of the inner stopping rule; anything above 0 makes Q depend on the data.
    dual
        "public" or "private".

    Raises
    ------
    NoCertificateError
        When no row applies, with what is missing.
    """
    positive(rho=rho, step_size=step_size)
    non_negative(regularizer_modulus=regularizer_modulus, stopping_threshold=stopping_threshold)
    at_least_one(local_steps=local_steps, batch_size=batch_size)
    if stopping_threshold > 0:
        raise NoCertificateError(
            "FedPDM's inner stopping rule makes the number of steps depend on the data: "
            "fix the local steps and set its threshold to 0"
        )
    if (rho + regularizer_modulus) * step_size > 1:
        raise NoCertificateError(
            f"FedPDM needs (rho + regulariser) * step size <= 1 for a privacy certificate, got "
            f"{(rho + regularizer_modulus) * step_size:g}"
        )
    if clipping != "batch" and relation == "add-remove" and batch_size != num_examples:
        raise NoCertificateError(
            "add-remove needs full batches (batch_size = num_examples): a sampled batch that "
            "loses a record takes in another; use replace-one"
        )
    moved = records_moved(relation)
    bound = _bound(clipping, clip, loss, row_norm)
    setting = _Setting(
        gap=2.0 * bound if clipping == "batch" else moved * bound / batch_size,
        rho=rho,
        step_size=step_size,
        local_steps=local_steps,
        decay=1.0 - (rho + regularizer_modulus) * step_size,
        bound=bound,
    )
    if dual == "private":
        return _private(setting, clipping)
    if dual != "public":
        raise ValueError(f"dual is {dual!r}, expected public or private")
    return _public(setting, clipping, loss, row_norm, smoothness)


def _bound(clipping: str, clip: float | None, loss: str, row_norm: float | None) -> float:
    """Return the bound of one gradient, checking what the clipping mode needs."""
    if row_norm is not None:
        positive(row_norm=row_norm)
    if clipping not in ("batch", "example", "none"):
        raise ValueError(f"clipping is {clipping!r}, expected batch, example or none")
    if clipping != "none":
        if clip is None:
            raise NoCertificateError(f"{clipping} clipping needs a clip bound")
        positive(clip=clip)
        return clip
    factor = {"logistic": 1.0, "one-class-logistic": 1.0, "multinomial": math.sqrt(2.0)}.get(loss)
    if factor is None or row_norm is None:
        raise NoCertificateError(
            f"gradients of loss {loss!r} are unbounded without clipping or without a row norm"
        )
    return factor * row_norm


def _private(setting: _Setting, clipping: str) -> Certificate:
    if clipping != "batch" and setting.local_steps > 1:
        raise NoCertificateError(
            "FedPDM with a private dual, per-example clipping and more than one local step has no "
            "privacy certificate: use the public dual, one step, or whole-batch clipping"
        )
    k = setting.rho * setting.drift(setting.decay)
    sensitivity = setting.gap / setting.rho * (2.0 * k + abs(2.0 * k - 1.0))
    return Certificate(sensitivity, f"private dual, {clipping} clip", setting.gap)


def _public(
    setting: _Setting,
    clipping: str,
    loss: str,
    row_norm: float | None,
    smoothness: float | None,
) -> Certificate:
    slow = setting.decay
    if clipping == "batch":
        return setting.certify(slow, "whole-batch clip")
    if setting.local_steps == 1:
        return setting.certify(slow, "one step, per-example clip")
    curvature = _curvature(loss, row_norm, smoothness)
    if curvature is None:
        raise NoCertificateError(
            "FedPDM with per-example clipping and more than one local step needs a loss whose "
            "smoothness is public: give row-norm for logistic, multinomial or ridge, or smoothness"
        )
    bent = setting.step_size * curvature
    if loss in SCALAR_LOSSES or (loss == "multinomial" and clipping == "none"):
        limit = setting.step_size * _clipped_curvature(loss, setting.bound, row_norm, curvature)
        return setting.certify(max(slow, limit - slow), "convex loss, per-example bound")
    if loss == "multinomial":
        factor = math.sqrt(slow**2 + slow * bent / 4.0 + bent**2)
        return setting.certify(factor, "softmax, per-example clip")
    return setting.certify(slow + bent, "smooth loss, per-example clip")


def _curvature(loss: str, row_norm: float | None, smoothness: float | None) -> float | None:
    """Return a public smoothness bound of one example's loss, or None."""
    share = {"logistic": 0.25, "one-class-logistic": 0.25, "ridge": 2.0, "multinomial": 0.5}
    if loss in share and row_norm is not None:
        return share[loss] * row_norm**2
    if smoothness is not None:
        positive(smoothness=smoothness)
    return smoothness


def _clipped_curvature(loss: str, clip: float, row_norm: float | None, curvature: float) -> float:
    """Return the curvature left by clipping: C (R - C) for a logistic loss with C < R/2."""
    if loss in ("logistic", "one-class-logistic") and row_norm is not None and clip < row_norm / 2:
        return clip * (row_norm - clip)
    return curvature
