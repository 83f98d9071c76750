"""Privacy-critical: least squares, with or without a regulariser."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.kernel.records import FloatArray

from ..linear import SmoothScoreModel
from ..loss import Loss
from ..regularizers import Regularizer
from ..validation import check_targets


class RidgeRegression(SmoothScoreModel):
    """f(x) = (1/D) sum_i (<a_i, x> - t_i)^2 + r(x); there is no 1/2, so gradients carry a 2.

    Parameters
    ----------
    features : (n, d) array
        The a_i; see `LinearModel` for this and the keywords.
    targets : (n,) array
        The t_i, finite.

    Notes
    -----
    With r = L2(weight) and N agents, the minimiser of sum_i f_i is that of scikit-learn's
    ``Ridge(alpha=N * weight / 2, fit_intercept=False)`` fitted to all examples with
    ``sample_weight`` 1/D of the agent that holds the example (one agent: alpha = weight n / 2
    without sample weights). A penalty rho ||x||^2, as the graph federated learning paper writes
    it, is L2(2 rho).
    """

    kind: ClassVar[str] = "ridge"

    def __init__(
        self,
        features: npt.ArrayLike,
        targets: npt.ArrayLike,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        super().__init__(features, regularizer=regularizer, divisor=divisor)
        self.targets = check_targets(targets, self.features)
        self._set_data(self.features, self.targets, self.num_features)

    def _losses(self, x: FloatArray) -> FloatArray:
        errors = self._design.dot(x) - self._targets
        result: FloatArray = errors * errors
        return result

    def slopes(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        np.subtract(scores, targets, scores)
        np.add(scores, scores, scores)
        return scores

    def bends(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        return np.full_like(scores, 2.0)


LOSS = Loss("ridge", RidgeRegression, "reals")
