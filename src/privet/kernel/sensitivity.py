"""Privacy-critical: proven bounds of how far one record moves what an agent releases.

Each function speaks of the data sets of one agent that are neighbours under `relation`: one record
replaced ("replace-one"), one record added or removed while the public normaliser (q, I or b) stays
("add-remove"), or all records replaced ("replace-agent"). The proofs use of neighbours only how far
apart their clipped gradients are at one point, and what holds of every data set. The gradients of
the data term are clipped per example (or per batch where said); regularisers are data-free and must
not be clipped. What has no proof raises `NoCertificateError`.
"""

from __future__ import annotations

import math

from .checks import at_least_one, non_negative, positive
from .curvature import PROVEN, loss_curvature
from .errors import NoCertificateError
from .records import Norm

SCALAR_LOSSES = tuple(name for name, loss in PROVEN.items() if loss.certificate == "scalar")
LOSSES = tuple(name for name, loss in PROVEN.items() if loss.certificate)


def fed_plt_contraction(
    *,
    loss: str,
    step_size: float,
    strong_convexity: float,
    smoothness: float,
    rho: float,
    regularizer: str = "l2",
    solver: str = "noisy-gd",
) -> float:
    """Return the contraction factor chi of one clipped noisy gradient step of Fed-PLT.

    chi = max(|1 - gamma (lam + 1/rho)|, |1 - gamma (L + 1/rho)|), capped at 1, when the loss of an
    example is a function of one score <a, x>: its clipped gradient is then the gradient of a
    convex function that is no less smooth. The clipped softmax gradient is not, so for it chi = 1,
    which is plain composition of the local steps and needs no contraction.

    Parameters
    ----------
    loss
        "logistic", "one-class-logistic" or "ridge" (contractive), "multinomial" (chi = 1).
    step_size
        gamma.
    strong_convexity
        lam of the regulariser alone: the clipped data term has none.
    smoothness
        L of f_i, regulariser included, from public bounds.
    rho
        Fed-PLT's penalty.
    regularizer, solver
        "l2" or "none", and "noisy-gd".

    Raises
    ------
    NoCertificateError
        For any other loss, regulariser or solver.
    """
    if solver != "noisy-gd":
        raise NoCertificateError(
            f"Fed-PLT has no privacy certificate for local solver {solver!r}: "
            "use noisy-gd (13) with a fixed number of steps"
        )
    if regularizer not in ("none", "l2"):
        raise NoCertificateError(
            f"Fed-PLT has no privacy certificate for a {regularizer} regulariser: use l2 or none"
        )
    if loss not in LOSSES:
        raise NoCertificateError(
            f"Fed-PLT has no privacy certificate for loss {loss!r}: use one of {', '.join(LOSSES)}"
        )
    positive(step_size=step_size, rho=rho)
    non_negative(strong_convexity=strong_convexity, smoothness=smoothness)
    if smoothness < strong_convexity:
        raise ValueError(f"smoothness {smoothness} is below strong_convexity {strong_convexity}")
    if loss not in SCALAR_LOSSES:
        return 1.0
    slow = abs(1.0 - step_size * (strong_convexity + 1.0 / rho))
    fast = abs(1.0 - step_size * (smoothness + 1.0 / rho))
    return min(1.0, max(slow, fast))


def gfl_sensitivity(*, clip: float, step_size: float, round_number: int) -> float:
    """Return the sensitivity of the model a GFL unit shows its neighbours in a round.

    The unit's own model is never perturbed, so a record's influence stays in it: given all
    inter-server messages so far, psi_j = psi_{j-1} - mu (mean gradient) + something public, and
    every gradient after the first may differ. With batch gradients bounded by B this is 2 mu B j
    in round j = 1, 2, ... under both relations, in the norm of B (L1 for Laplace noise).

    Parameters
    ----------
    clip
        B.
    step_size
        mu, the unit's step, divided among the E_k local steps.
    round_number
        j, starting at 1.
    """
    positive(clip=clip, step_size=step_size)
    at_least_one(round_number=round_number)
    return 2.0 * step_size * clip * round_number


def check_sparsifier(sparsifier: str) -> None:
    """Accept a sparsifier whose index set costs nothing; the dense message ("none") is one.

    "rand-k" takes its indices from a public seed, "public-top-k" from the public broadcast, and
    "noisy-top-k" from a vector that is already noised on all coordinates (post-processing).

    Raises
    ------
    NoCertificateError
        For "top-k", whose index set is computed from the data and sent in clear.
    """
    if sparsifier == "top-k":
        raise NoCertificateError(
            "top-k sends an index set computed from the data without noise, which costs an "
            "infinite epsilon: use rand-k, public-top-k or noisy-top-k"
        )
    if sparsifier not in ("none", "rand-k", "public-top-k", "noisy-top-k"):
        raise NoCertificateError(f"sparsifier {sparsifier!r} has no privacy certificate")


def dp_iadmm_output_gain(
    *,
    rho: float,
    eta: float,
    local_updates: int,
    loss: str = "other",
    smoothness: float | None = None,
    regularizer_modulus: float = 0.0,
    norm: Norm = "l2",
    projection: str = "none",
) -> float:
    """Return G such that DP-IADMM's z_p, the mean of the inner iterates, moves by at most G (2C/I).

    With one noise on the mean of E un-noised inner iterates (output perturbation), the steps carry
    a difference on. They all start from what was released (z_p, w, lam_p) and are

        z <- Proj_W( c z - s grad(z) + public ),   s = eta / (1 + rho eta),  c = 1 - s (rho + beta)

    with the clipped gradient of the data term, which differs by at most 2C/I (C/I for add-remove)
    between neighbours at one point. If a step common to both scales a difference by q
    (`_scaling` of c and s L, L the smoothness of the data term),

        G = (s / E) sum_{j<E} (E - j) q^j,

    s alone for E = 1.

    Parameters
    ----------
    rho, eta, local_updates
        rho_t, eta_t, E.
    loss, smoothness
        Name of the loss and L, a bound from public numbers that holds for the rows as clipped;
        needed for E > 1 only.
    regularizer_modulus
        beta of an unclipped quadratic regulariser beta |x|^2 / 2 in f_p.
    norm
        "l2", or "l1" (Laplace), in which nothing is known of more than one step.
    projection
        W: "none", "box" or "l2"; all move no two points apart in l2, but "l2" may in l1.

    Raises
    ------
    NoCertificateError
        Where nothing is proven.
    """
    positive(rho=rho, eta=eta)
    non_negative(regularizer_modulus=regularizer_modulus)
    at_least_one(local_updates=local_updates)
    if projection not in ("none", "box", "l2"):
        raise NoCertificateError(f"set {projection!r} has no privacy certificate")
    if norm == "l1" and (local_updates > 1 or projection == "l2"):
        raise NoCertificateError(
            "output perturbation with laplace noise is proven for local-updates = 1 and set none "
            "or box only: use gaussian noise, or objective perturbation"
        )
    step = eta / (1.0 + rho * eta)
    if local_updates == 1:
        return step
    if eta * regularizer_modulus > 1:
        raise NoCertificateError("output perturbation needs eta * regularizer-weight <= 1")
    if smoothness is None:
        raise NoCertificateError(
            "output perturbation with local-updates > 1 needs row-norm, a public bound on the rows"
        )
    positive(smoothness=smoothness)
    keep = (1.0 - eta * regularizer_modulus) / (1.0 + rho * eta)
    factor = _scaling(loss, keep, step * smoothness)
    _require_no_explosion(factor, local_updates, "local-updates")
    weights = (local_updates - j for j in range(local_updates))
    powers = (factor**j for j in range(local_updates))
    total = math.fsum(a * b for a, b in zip(weights, powers, strict=True))
    return step * total / local_updates


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
    """Return G such that FedPDM's y moves by at most G times what a step's gradient does, and why.

    With k = 1 - (1 - rho eta)^Q and gbar the weighted mean of the Q inner gradients, an agent
    uploads y = x0hat - (2 k gbar + (1 - 2k) lam) / rho. With the *public dual* both sides compute
    lam from what was released, so only gbar differs between neighbours and y moves by 2 |x - x'|.
    With the *private dual* of the paper lam is hidden state that differs as well, by twice the
    bound on gradients after many rounds: y moves by (4k + 2 |1 - 2k|) / rho times that bound. The
    paper's own sensitivity of y, (35), is 4k / rho times it, too small by 1 / (2k) for k < 1/2 and
    by 2 - 1 / (2k) for k > 1/2; no certificate is given here.

    G = 2 eta sum_{j<Q} q^j, where q bounds how one common step scales a difference (`_scaling`),
    with c = 1 - (rho + beta) eta:

    - whole-batch clip, or Q = 1: q = c for any loss;
    - Q > 1, scalar loss (logistic, one-class-logistic, ridge) clipped to C, or softmax without
      clip (C = sqrt(2) R), rows of norm <= R: q = max(c, eta L - c), where L = R^2/4, or
      C (R - C) if C < R/2 (logistic); 2 R^2 (ridge, (<a, x> - t)^2); R^2/2 (softmax). For
      eta <= 2 / (2 rho + L) and beta = 0 the gain is 2 k / rho;
    - Q > 1, softmax clipped to C, or any L-smooth loss clipped to C: as `_scaling` says.

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
    keep = 1.0 - (rho + modulus) * step_size
    if clipping == "batch":
        factor, case = keep, "whole-batch clip"
    elif local_steps == 1:
        factor, case = keep, "one step, per-example clip"
    else:
        curvature = _curvature(loss, row_norm, smoothness)
        if loss in SCALAR_LOSSES or (loss == "multinomial" and clipping == "none"):
            bent = step_size * _clipped_curvature(loss, bound, row_norm, curvature)
            factor, case = max(keep, bent - keep), "convex loss, per-example bound"
        else:
            factor = _scaling(loss, keep, step_size * curvature)
            name = "softmax" if loss == "multinomial" else "smooth loss"
            case = f"{name}, per-example clip"
    _require_no_explosion(factor, local_steps, "local steps")
    return 2.0 * (step_size * math.fsum(factor**j for j in range(local_steps))), case


def _scaling(loss: str, keep: float, bent: float) -> float:
    """Return q, by which a step w -> c w - s grad(w) common to neighbours scales a difference.

    With keep = c and bent = s L, the gradient clipped per example: q = max(c, s L - c) for losses
    of one score, whose clipped gradient is that of a convex function; q^2 = c^2 + c s L/4 + (s L)^2
    for softmax, whose clipped gradient is monotone but for -L/8; q = c + s L otherwise.
    """
    if loss in SCALAR_LOSSES:
        return max(keep, bent - keep)
    if loss == "multinomial":
        return math.sqrt(keep**2 + keep * bent / 4.0 + bent**2)
    return keep + bent


def _require_no_explosion(factor: float, steps: int, key: str) -> None:
    """Refuse a factor whose powers leave the floats."""
    if factor > 1 and steps * math.log(factor) > 500:
        raise NoCertificateError(
            f"the certified sensitivity explodes with these {key}: take fewer or smaller steps"
        )


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
