"""Privacy-critical: Huber's regression, whose gradients do not grow with an outlier's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.core.key import setting
from privet.kernel.records import FloatArray

from ..linear import SmoothScoreModel
from ..loss import Loss
from ..regularizers import Regularizer
from ..validation import check_targets


@dataclass(frozen=True)
class HuberKeys:
    """The loss's own run-config key."""

    topic: ClassVar[str] = "Data, loss and regulariser"

    huber_threshold: float = setting(
        1.0,
        "error from which on the loss grows linearly",
        low=1e-30,
        high=1e30,
        needs={"loss": "huber"},
    )


class HuberRegression(SmoothScoreModel):
    """f(x) = (1/D) sum_i H(<a_i, x> - t_i) + r(x), Huber (1964), with the threshold c > 0 and

        H(e) = e^2 / 2 where |e| <= c, and c |e| - c^2 / 2 beyond.

    Parameters
    ----------
    features : (n, d) array
        The a_i; see `LinearModel` for this and the keywords.
    targets : (n,) array
        The t_i, finite.
    huber_threshold : float
        c, in the unit of the targets.

    Notes
    -----
    H' is e clipped to [-c, c], so that H'' is 1 where |e| < c and 0 beyond: the curvature in the
    score is within [0, 1] whatever c is.

    Privacy: the kernel does not list this loss, so a private run rests on the clip of its examples
    alone, as one on a problem of the user's own does.

    scikit-learn's ``HuberRegressor(epsilon, alpha, fit_intercept=False)`` minimises over the scale
    s as well. At its ``scale_`` s the coefficients are the minimiser of f for one agent with
    c = epsilon s and r = L2(alpha s / n).
    """

    kind: ClassVar[str] = "huber"

    def __init__(
        self,
        features: npt.ArrayLike,
        targets: npt.ArrayLike,
        *,
        huber_threshold: float = HuberKeys.huber_threshold,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        super().__init__(features, regularizer=regularizer, divisor=divisor)
        self.constants = {"huber_threshold": huber_threshold}
        self.targets = check_targets(targets, self.features)
        self._threshold = float(huber_threshold)
        self._set_data(self.features, self.targets, self.num_features)

    @property
    def score_curvature(self) -> tuple[float, float]:
        return 0.0, 1.0

    def _losses(self, x: FloatArray) -> FloatArray:
        errors = self._design.dot(x) - self._targets
        slopes = np.clip(errors, -self._threshold, self._threshold)
        # e^2 / 2 within the threshold, where the slope is e, and c (|e| - c/2) beyond.
        result: FloatArray = slopes * (errors - 0.5 * slopes)
        return result

    def slopes(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        np.subtract(scores, targets, scores)
        np.clip(scores, -self._threshold, self._threshold, scores)
        return scores

    def bends(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        """Return 1 in the quadratic part, |e| = c included, and 0 beyond."""
        np.subtract(scores, targets, scores)
        result: FloatArray = (np.abs(scores) <= self._threshold).astype(self.dtype)
        return result


LOSS = Loss("huber", HuberRegression, "reals", HuberKeys)
