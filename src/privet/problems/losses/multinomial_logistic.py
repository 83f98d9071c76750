"""Privacy-critical: softmax regression on K classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privet.kernel.records import FloatArray

from ..linear import MatrixScoreModel
from ..loss import Loss

_TILE = 4
"""Rows that matrix kernels take at a time: 12 classes cost less than 10 (0.9 of the time)."""


class MultinomialLogistic(MatrixScoreModel):
    """f(X) = (1/D) sum_i [log sum_k exp(<a_i, X_k>) - <a_i, X_{c_i}>] + r(X).

    X has shape (d, K), one column a class, and is flattened in C order; DP-IADMM's f_p is the
    case D = samples of all agents, r = L2(2 beta / P). ``labels`` (n,) are the c_i,
    integers 0..classes-1, K = ``classes`` >= 2; `LinearModel` has the other arguments.

    Notes
    -----
    With r = L2(weight) and N agents, the minimiser of sum_i f_i is the transposed ``coef_`` of
    scikit-learn's ``LogisticRegression(C=1 / (N * weight), fit_intercept=False)``, K >= 3,
    fitted to all examples with ``sample_weight`` 1/D of the agent that holds the example.
    """

    kind: ClassVar[str] = "multinomial"

    def weights(self, x: FloatArray) -> FloatArray:
        """Return X^T (..., K, d), with rows of zeros up to a multiple of `_TILE`.

        Classes first: reductions over the first axis are vectorised, over a last axis of length K
        they are 20 times slower.
        """
        height = -(-self.classes // _TILE) * _TILE
        result = np.zeros((*x.shape[:-1], height, self.num_features), self.dtype)
        result[..., : self.classes, :] = x.reshape(
            *x.shape[:-1], self.num_features, self.classes
        ).swapaxes(-1, -2)
        return result

    def _scores(self, x: FloatArray, design: FloatArray) -> FloatArray:
        return self._centred(self.weights(x).dot(design.T))

    def _centred(self, scores: FloatArray) -> FloatArray:
        """Subtract, in place, the largest score (..., K, n) of each example."""
        class_scores = scores[..., : self.classes, :]
        class_scores -= class_scores.max(axis=-2, keepdims=True)
        return scores

    def _losses(self, x: FloatArray) -> FloatArray:
        scores = self._scores(x, self._design)[: self.classes]
        label_scores = scores[self._targets, np.arange(self.num_examples)]
        result: FloatArray = np.log(np.exp(scores).sum(axis=0)) - label_scores
        return result

    def _residuals(
        self, x: FloatArray, design: FloatArray, targets: npt.NDArray[np.intp]
    ) -> FloatArray:
        return self.slopes(self.weights(x).dot(design.T), targets)

    def slopes(self, scores: FloatArray, targets: npt.NDArray[np.intp]) -> FloatArray:
        """Turn scores (..., K, n), in place, into the losses' derivatives: of one model or a stack.

        The rows of zeros stay, so that `_product` has whole tiles as well.
        """
        result = self._centred(scores)
        self._to_probabilities(result[..., : self.classes, :])
        # One flat index is five times faster than a pair.
        count = result.shape[-1]
        label_places = targets * count + np.arange(count)
        if result.ndim > 2:
            label_places += np.arange(0, result.size, result[0].size)[:, None]
        result.reshape(-1)[label_places] -= 1.0
        return result

    @staticmethod
    def _to_probabilities(scores: FloatArray) -> None:
        np.exp(scores, scores)
        # One division an example, not one a class.
        scores *= np.reciprocal(scores.sum(axis=-2, keepdims=True))

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = residuals.dot(design)
        return result

    def _flatten(self, product: FloatArray) -> FloatArray:
        return product[: self.classes].T.reshape(-1)

    def hessian(self, x: FloatArray) -> FloatArray:
        """Return the Hessian of f, shape (dim, dim)."""
        x = self._checked(x)
        probabilities = self._scores(x, self._design)[: self.classes]
        self._to_probabilities(probabilities)
        blocks = np.empty((self.num_features, self.classes) * 2, self.dtype)
        for k, own in enumerate(probabilities):
            for j, other in enumerate(probabilities):
                weights = own * (float(j == k) - other) / self.divisor
                blocks[:, k, :, j] = (self._design.T * weights) @ self._design
        result: FloatArray = blocks.reshape(self.dim, self.dim)
        result[np.diag_indices(self.dim)] += self.regularizer.curvature(x)
        return result

    def hessian_product(self, x: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return a function for the Hessian of f at x times a vector (dim,)."""
        x = self._checked(x)
        probabilities = self._scores(x, self._design)[: self.classes]
        self._to_probabilities(probabilities)
        curvature, scale = self.regularizer.curvature(x), self.dtype.type(1.0 / self.divisor)

        def product(v: FloatArray) -> FloatArray:
            scores = v.reshape(-1, self.classes).T.dot(self._design.T)
            scores *= probabilities
            scores -= probabilities * scores.sum(axis=0)
            scores *= scale
            result: FloatArray = scores.dot(self._design).T.reshape(-1)
            result += curvature * v
            return result

        return product

    @staticmethod
    def predict_margin(x: FloatArray, features: FloatArray) -> FloatArray:
        """Return the class scores <a_i, X_k>, shape (n, K); K follows from the length of x."""
        result: FloatArray = features @ x.reshape(features.shape[1], -1)
        return result


LOSS = Loss("multinomial-logistic", MultinomialLogistic, "classes")
