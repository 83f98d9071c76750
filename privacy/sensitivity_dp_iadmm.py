"""Privacy-critical: how far a record moves DP-IADMM's z_p, for output perturbation.

With noise in every inner step (objective perturbation) each noisy gradient is a release and
`sensitivity.dp_iadmm_sensitivity` is all there is to know. With one noise on the mean of E
un-noised inner iterates, the steps carry the difference on, and this module bounds it.
"""

from __future__ import annotations

import math

from privet.privacy.checks import at_least_one, non_negative, positive
from privet.privacy.errors import NoCertificateError
from privet.privacy.sensitivity import SCALAR_LOSSES
from privet.problems import Norm


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
    """Return G such that z_p, the mean of the inner iterates, moves by at most G (2C/I).

    All inner steps start from what was released (z_p, w, lam_p) and are

        z <- Proj_W( c z - s grad(z) + public ),   s = eta / (1 + rho eta),  c = 1 - s (rho + beta)

    with the clipped gradient of the data term, which differs by at most 2C/I (C/I for add-remove)
    between neighbours at one point. If a step common to both scales a difference by q,

        G = (s / E) sum_{j<E} (E - j) q^j,

    s alone for E = 1. With L the smoothness of the data term: q = max(c, s L - c) for losses of
    one score, whose clipped gradient is that of a convex function; q^2 = c^2 + c s L/4 + (s L)^2
    for softmax, whose clipped gradient is monotone but for -L/8; q = c + s L otherwise.

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
    bent = step * smoothness
    if loss in SCALAR_LOSSES:
        factor = max(keep, bent - keep)
    elif loss == "multinomial":
        factor = math.sqrt(keep**2 + keep * bent / 4.0 + bent**2)
    else:
        factor = keep + bent
    if factor > 1 and local_updates * math.log(factor) > 500:
        raise NoCertificateError(
            "output perturbation: the bound explodes with these local-updates: take fewer or "
            "smaller steps"
        )
    weights = (local_updates - j for j in range(local_updates))
    powers = (factor**j for j in range(local_updates))
    total = math.fsum(a * b for a, b in zip(weights, powers, strict=True))
    return step * total / local_updates
