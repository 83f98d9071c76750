"""Privacy-critical: curvature of the losses by name, and moduli from public numbers alone."""

from __future__ import annotations

from privet.kernel.checks import check_positive
from privet.kernel.records import Moduli

_CURVATURE: dict[str, tuple[float, float]] = {
    "logistic": (0.0, 0.25),
    "one-class-logistic": (0.0, 0.25),
    "one-vs-rest-logistic": (0.0, 0.25),
    # diag(p) - p p^T has eigenvalues in [0, 1/2] for every distribution p; 1/2 is attained by
    # two classes of probability 1/2.
    "multinomial": (0.0, 0.5),
    "ridge": (2.0, 2.0),
}


def loss_curvature(kind: str) -> tuple[float, float]:
    """Return the extreme eigenvalues, over all scores, of a loss's Hessian in the scores.

    Raises
    ------
    ValueError
        For a loss that is not in the table.
    """
    try:
        return _CURVATURE[kind]
    except KeyError:
        known = ", ".join(sorted(_CURVATURE))
        raise ValueError(f"loss {kind!r} has no known curvature: expected one of {known}") from None


def public_moduli(
    kind: str,
    radius: float,
    regularizer: Moduli = Moduli(0.0, 0.0),  # noqa: B008 - frozen
    *,
    share: float = 1.0,
) -> Moduli:
    """Return moduli of f that hold for all data with ||a_i||_2 <= ``radius``.

    Smoothness ``share`` radius^2 times 1/4 (logistic), 1/2 (multinomial) or 2 (ridge), plus the
    regulariser's; strong convexity that of the regulariser. ``share`` is n/D, 1 with the default
    divisor. For one score per example (binary logistic, ridge) they hold for the clipped gradient
    as well, which is then still the gradient of a convex function.

    Privacy: a function of public numbers only; `clip_rows` enforces the radius.

    Raises
    ------
    ValueError
        For an unknown loss, or a radius or share that is not finite and positive.
    """
    size = check_positive("share", share) * check_positive("radius", radius) ** 2
    return Moduli(0.0, loss_curvature(kind)[1] * size) + regularizer
