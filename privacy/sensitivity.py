"""Privacy-critical: proven bounds of Fed-PLT and GFL; FedPDM's are in `sensitivity_fed_pdm`.

Each function returns the largest change of an un-noised value between data sets of one agent that
are neighbours under `relation`: one record replaced ("replace-one"), or one record added or
removed while the public normaliser (q, I or b) stays ("add-remove"). The gradients of the data
term are clipped per example (or per batch where said); regularisers are data-free and must not be
clipped. What has no proof raises `NoCertificateError`.
"""

from __future__ import annotations

from privet.privacy.checks import at_least_one, known_relation, non_negative, positive
from privet.privacy.errors import NoCertificateError
from privet.problems import Relation

SCALAR_LOSSES = ("logistic", "one-class-logistic", "ridge")
LOSSES = (*SCALAR_LOSSES, "multinomial")


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


def gfl_sensitivity(
    *,
    clip: float,
    step_size: float,
    round_number: int,
    relation: Relation = "replace-one",
) -> float:
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
    known_relation(relation)
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
