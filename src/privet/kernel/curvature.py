"""Privacy-critical: proven properties of the losses by name, and moduli from public numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .checks import check_positive
from .records import Moduli


@dataclass(frozen=True, slots=True)
class Proven:
    """Properties of a loss that are proven for all records.

    Attributes
    ----------
    curvature : (float, float)
        Extreme eigenvalues, over all scores, of the loss's Hessian in the scores.
    certificate : {"scalar", "softmax", ""}
        "scalar": the loss of an example is convex in one score <a, x>. The slope in the score, cut
        off at +-C / ||a||, is still monotone and no steeper, so the clipped gradient is that of a
        convex function that is no less smooth. "softmax": of the multinomial loss, whose clipped
        gradient is monotone but for -L/8 (`privet.kernel.sensitivity`). Empty: neither is claimed.
    """

    curvature: tuple[float, float]
    certificate: Literal["scalar", "softmax", ""] = ""


PROVEN: Mapping[str, Proven] = {
    # log(1 + exp(-m)) has the second derivative s (1 - s) in [0, 1/4], s = sigmoid(m).
    "logistic": Proven((0.0, 0.25), "scalar"),
    # The same of the score of an example's own class; the others' rows of x do not enter.
    "one-class-logistic": Proven((0.0, 0.25), "scalar"),
    # (<a, x> - t)^2.
    "ridge": Proven((2.0, 2.0), "scalar"),
    # diag(p) - p p^T has eigenvalues in [0, 1/2] for every distribution p; 1/2 is attained by
    # two classes of probability 1/2.
    "multinomial": Proven((0.0, 0.5), "softmax"),
    # A sum over classes of logistic losses, each of a separate score.
    "one-vs-rest-logistic": Proven((0.0, 0.25)),
}
"""The closed list of losses, by `LinearModel.kind`, of which more than their clip is known.

Any other loss is "other" in the facts: its examples are clipped, and no proof speaks of it.
"""


def loss_curvature(kind: str) -> tuple[float, float]:
    """Return the extreme eigenvalues, over all scores, of a loss's Hessian in the scores.

    Raises
    ------
    ValueError
        For a loss that is not in the table.
    """
    try:
        return PROVEN[kind].curvature
    except KeyError:
        known = ", ".join(sorted(PROVEN))
        raise ValueError(f"loss {kind!r} has no known curvature: expected one of {known}") from None


@lru_cache(maxsize=64)  # each message of a private agent asks for those of its step
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
