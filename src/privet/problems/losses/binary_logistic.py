"""Privacy-critical: logistic regression with labels -1 and +1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privet.core import mapped
from privet.core.ordered import places
from privet.kernel.bounded import Limits
from privet.kernel.records import FloatArray, Norm

from ..linear import SmoothScoreModel
from ..loss import Loss
from ..regularizers import Regularizer
from ..validation import check_signs


class BinaryLogistic(SmoothScoreModel):
    """f(x) = (1/D) sum_i log(1 + exp(-b_i <a_i, x>)) + r(x), the loss of the Fed-PLT paper.

    Parameters
    ----------
    features : (n, d) array
        The a_i; see `LinearModel` for this and the keywords.
    labels : (n,) array
        The b_i, each -1 or +1.

    Notes
    -----
    With r = L2(weight) and N agents, the minimiser of sum_i f_i is that of scikit-learn's
    ``LogisticRegression(C=1 / (N * weight), fit_intercept=False)`` fitted to all examples with
    ``sample_weight`` 1/D of the agent that holds the example (one agent: C = 1/(weight n)
    without sample weights). scikit-learn's own intercept is not regularised; a column of
    ones here is.
    """

    kind: ClassVar[str] = "logistic"

    def __init__(
        self,
        features: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        super().__init__(features, regularizer=regularizer, divisor=divisor)
        self.labels = check_signs(labels, self.features)
        self._one = _one(self.dtype)
        self._targets, self.dim = self.labels, self.num_features

    @cached_property
    def _design(self) -> FloatArray:  # type: ignore[override]
        # With m = -b <a, x> the loss log(1 + exp(m)) has the derivative (1 + tanh(m/2))/2:
        # keeping -b a / 2 as the design leaves one tanh, which cannot overflow, and one sum.
        # It is computed when it is needed: a cohort's stack then holds those of all agents.
        design: FloatArray = mapped.alike(self.features)
        for rows in mapped.blocks(design):
            np.multiply(self.features[rows], (-0.5 * self.labels[rows])[:, None], out=design[rows])
        return design

    def _losses(self, x: FloatArray) -> FloatArray:
        scores: FloatArray = self._design.dot(x)
        scores *= 2.0
        result: FloatArray = np.logaddexp(0.0, scores, out=scores, dtype=self.dtype)
        return result

    def slopes(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        np.tanh(scores, scores)
        np.add(scores, self._one, scores)
        return scores

    def _clip_residuals(self, residuals: FloatArray, limits: Limits, norm: Norm) -> None:
        # These residuals are never negative, so one side is enough.
        np.minimum(residuals, limits.most, out=residuals)

    def _usual_metrics(self, scores: FloatArray, targets: FloatArray) -> Mapping[str, float]:
        accuracy = _accuracy(scores, targets)
        area = area_under_curve(scores, targets > 0)
        return {"accuracy": accuracy} if area is None else {"accuracy": accuracy, "auc": area}

    def bends(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        # sigmoid(m) sigmoid(-m) = (1 - tanh(m/2)^2)/4, and the design holds a/2.
        np.tanh(scores, scores)
        np.multiply(scores, scores, out=scores)
        return np.subtract(self._one, scores, out=scores)

    @staticmethod
    def accuracy(x: FloatArray, features: FloatArray, labels: FloatArray) -> float:
        """Return the fraction of examples with sign(<a, x>) = label; a zero score counts as +1."""
        return _accuracy(BinaryLogistic.predict_margin(x, features), labels)


def _accuracy(scores: FloatArray, labels: FloatArray) -> float:
    return float(np.mean((scores >= 0.0) == (labels > 0)))


def area_under_curve(scores: FloatArray, positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve of scores (n,); None where one class does not occur.

    It is the share of pairs of a positive and a negative example whose scores are in that order,
    ties counted half (Mann and Whitney, 1947), from the ranks of the scores.
    """
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs:
        return None
    which = places(scores)
    sizes = np.bincount(which)
    ranks = np.cumsum(sizes) - (sizes - 1) / 2.0
    above = float(ranks[which[positive]].sum()) - count * (count + 1) / 2.0
    return above / pairs


@cache
def _one(dtype: np.dtype[Any]) -> FloatArray:
    """Return 1 as an array of no dimension, an operand in half the time of a number."""
    return np.ones((), dtype)


LOSS = Loss("binary-logistic", BinaryLogistic, "signs")
