"""K independent logistic regressions, one a class: what scikit-learn's SGDClassifier fits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.problems import FloatArray, MultinomialLogistic
from privet.problems.linear import MatrixScoreModel


class OneVsRestLogistic(MatrixScoreModel):
    """f(X) = (1/D) sum_i sum_k log(1 + exp(-b_ik <a_i, X_k>)) + r(X), b_ik = +1 iff c_i = k.

    X has shape (d, K), one column a class, and is flattened in C order. ``labels`` (n,) are the
    c_i, integers 0..classes-1, K = ``classes`` >= 2; `LinearModel` has the other arguments.
    """

    kind: ClassVar[str] = "one-vs-rest-logistic"

    def _scores(self, x: FloatArray, design: FloatArray) -> FloatArray:
        scores: FloatArray = x.reshape(-1, self.classes).T.dot(design.T)
        return scores

    def _losses(self, x: FloatArray) -> FloatArray:
        signed = self._scores(x, self._design)
        signed[self._targets, np.arange(self.num_examples)] *= -1.0
        result: FloatArray = np.logaddexp(0.0, signed, dtype=self.dtype).sum(axis=0)
        return result

    def _residuals(
        self, x: FloatArray, design: FloatArray, targets: npt.NDArray[np.intp]
    ) -> FloatArray:
        # The sigmoid through tanh, which cannot overflow.
        result = self._scores(x, design)
        result *= 0.5
        np.tanh(result, result)
        result *= 0.5
        result += 0.5
        result[targets, np.arange(len(targets))] -= 1.0
        return result

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = residuals.dot(design)
        return result

    def _flatten(self, product: FloatArray) -> FloatArray:
        return product.T.reshape(-1)

    predict_margin = staticmethod(MultinomialLogistic.predict_margin)
