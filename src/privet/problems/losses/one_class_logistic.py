"""Privacy-critical: the centroid-like logistic loss of the BSDP-FedPDM paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.kernel.records import FloatArray, Moduli

from ..linear import MatrixScoreModel
from ..loss import Loss
from ..spectrum import gram_extremes


class OneClassLogistic(MatrixScoreModel):
    """f(X) = (1/D) sum_i log(1 + exp(-<X_{c_i}, a_i>)) + r(X), BSDP-FedPDM eq. (41).

    X has shape (m, n): one row a class, flattened row-major. An example sees the row of its own
    class only, so the loss draws each row towards a centroid of its class; softmax regression
    (`MultinomialLogistic`) classifies better. ``labels`` (n,) are the c_i,
    integers 0..classes-1, m = ``classes`` >= 2; `LinearModel` has the other arguments.
    """

    kind: ClassVar[str] = "one-class-logistic"

    def _margins(
        self, x: FloatArray, design: FloatArray, targets: npt.NDArray[np.intp]
    ) -> FloatArray:
        # One product with all rows costs less than gathering the row of every example.
        scores: FloatArray = design.dot(x.reshape(self.classes, -1).T)
        result: FloatArray = scores[np.arange(len(targets)), targets]
        return result

    def _losses(self, x: FloatArray) -> FloatArray:
        margins = self._margins(x, self._design, self._targets)
        result: FloatArray = np.logaddexp(0.0, -margins, dtype=self.dtype)
        return result

    def _residuals(
        self, x: FloatArray, design: FloatArray, targets: npt.NDArray[np.intp]
    ) -> FloatArray:
        margins = self._margins(x, design, targets)
        result = np.zeros((self.classes, len(targets)), self.dtype)
        # -sigmoid(-m), through tanh because that cannot overflow.
        result[targets, np.arange(len(targets))] = 0.5 * np.tanh(0.5 * margins) - 0.5
        return result

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = design.T.dot(residuals.T)
        return result

    def _flatten(self, product: FloatArray) -> FloatArray:
        return product.reshape(-1, order="F")

    def hessian(self, x: FloatArray) -> FloatArray:
        """Return the Hessian of f, shape (dim, dim): one block a class."""
        x = self._checked(x)
        tanh = np.tanh(0.5 * self._margins(x, self._design, self._targets))
        weights = (1.0 - tanh * tanh) / (4.0 * self.divisor)
        result = np.zeros((self.classes, self.num_features) * 2, self.dtype)
        for k in range(self.classes):
            members = self._targets == k
            result[k, :, k, :] = (self._design[members].T * weights[members]) @ self._design[
                members
            ]
        flat: FloatArray = result.reshape(self.dim, self.dim)
        flat[np.diag_indices(self.dim)] += self.regularizer.curvature(x)
        return flat

    def hessian_product(self, x: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return a function for the Hessian of f at x times a vector (dim,)."""
        x = self._checked(x)
        tanh = np.tanh(0.5 * self._margins(x, self._design, self._targets))
        weights = (1.0 - tanh * tanh) / (4.0 * self.divisor)
        curvature, rows = self.regularizer.curvature(x), np.arange(len(weights))

        def product(v: FloatArray) -> FloatArray:
            scores = np.zeros((self.classes, len(weights)), self.dtype)
            scores[self._targets, rows] = weights * self._margins(v, self._design, self._targets)
            result: FloatArray = self._flatten(self._product(self._design, scores))
            result += curvature * v
            return result

        return product

    @property
    def _data_moduli(self) -> Moduli:
        # The Hessian is block diagonal; at X = 0 block k is A_k^T A_k / (4 D), its largest value.
        blocks = (self.features[self.labels == k] for k in np.unique(self.labels))
        high = max(gram_extremes(block)[1] for block in blocks)
        return Moduli(0.0, self.score_curvature[1] * high / self.divisor)

    @staticmethod
    def predict_margin(x: FloatArray, features: FloatArray) -> FloatArray:
        """Return the class scores <X_k, a_i>, shape (examples, m)."""
        result: FloatArray = features @ x.reshape(-1, features.shape[1]).T
        return result


LOSS = Loss("one-class-logistic", OneClassLogistic, "classes")
