"""The common part of all linear models: f(x) = (1/D) sum_i loss_i(A_i x) + r(x).

A loss sees the parameters only through the scores of an example, so its gradient is the outer
product of a residual (the derivative with respect to the scores) and the example's features.
A gradient is therefore two matrix products, and its per-example norms are products of norms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeGuard, TypeVar, cast

import numpy as np
import numpy.typing as npt

from privet.problems.base import ClippableProblem, FloatArray, Moduli, Norm, RowIndex
from privet.problems.clipping import clip_rows
from privet.problems.regularizers import NoRegularizer, Regularizer
from privet.problems.spectrum import gram_extremes
from privet.problems.validation import check_classes, check_features, check_positive

Target = TypeVar("Target", bound=npt.NDArray[Any])


class LinearModel(ABC, Generic[Target]):
    """A finite sum of losses of linear scores plus a regulariser.

    Parameters
    ----------
    features : (n, d) array
        One example a row, float32 or float64 (kept; integers become float64). It is not copied
        when C-contiguous, so the caller must not change it afterwards. An intercept is a
        column of ones; it is regularised like any other coordinate.
    regularizer : Regularizer, optional
        r(x), added once, whatever the divisor and the mini-batch.
    divisor : float, optional
        D; the agent's number of examples unless given (the total over all agents in DP-IADMM).

    Notes
    -----
    Calls keep no scratch memory, so one instance may serve several threads.
    """

    dim: int
    dtype: np.dtype[Any]
    num_examples: int
    kind: ClassVar[str]
    """Name of the loss, as privacy certificates know it."""
    curvature: ClassVar[tuple[float, float]]
    """Extreme eigenvalues of a loss's Hessian with respect to the scores, over all scores."""

    def __init__(
        self,
        features: npt.ArrayLike,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        self.features = check_features(features)
        self.dtype = self.features.dtype
        self.num_examples, self.num_features = self.features.shape
        self.regularizer: Regularizer = NoRegularizer() if regularizer is None else regularizer
        self.divisor = (
            float(self.num_examples) if divisor is None else check_positive("divisor", divisor)
        )
        # A 0-d array of the right dtype is twice as fast an operand as a Python float.
        self._scale = np.asarray(1.0 / self.divisor, self.dtype)
        self._limits: tuple[float, Norm, FloatArray] | None = None

    def _set_data(self, design: FloatArray, targets: Target, dim: int) -> None:
        """Keep the matrix and targets the scores and residuals are computed from."""
        self._design = design
        self._targets = targets
        self.dim = dim
        self._shape = (dim,)

    # What a loss provides

    @abstractmethod
    def _losses(self, x: FloatArray) -> FloatArray:
        """Return the loss of every example, shape (n,)."""

    @abstractmethod
    def _residuals(self, x: FloatArray, design: FloatArray, targets: Target) -> FloatArray:
        """Return a fresh array of the losses' derivatives with respect to the scores."""

    @abstractmethod
    def _pull_back(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        """Return a fresh flat vector: the sum over examples of residual times features."""

    @abstractmethod
    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        """Return the norm of every example's residual, shape (n,)."""

    @abstractmethod
    def _clip_residuals(self, residuals: FloatArray, limits: FloatArray, norm: Norm) -> None:
        """Scale down, in place, the residual of example i to norm <= limits[i]."""

    @abstractmethod
    def _with_features(self, features: FloatArray) -> Self:
        """Return the same problem on other features of the same shape."""

    # What all losses share

    def with_rows_within(self, radius: float) -> Self:
        """Return the problem with rows clipped to l2 norm ``radius``; itself where none is longer.

        Privacy: `public_moduli` of this radius hold for the result whatever the data are; each
        row depends on itself alone.
        """
        features = clip_rows(self.features, radius)
        return self if np.array_equal(features, self.features) else self._with_features(features)

    @cached_property
    def moduli(self) -> Moduli:
        """Bounds of the Hessian of f, computed from the data: releasing them is not private.

        The loss's range of curvature times that of A^T A / D, plus the regulariser's moduli.
        """
        return self._data_moduli + self.regularizer.moduli

    @property
    def _data_moduli(self) -> Moduli:
        low, high = gram_extremes(self.features)
        lowest, largest = self.curvature
        return Moduli(lowest * low / self.divisor, largest * high / self.divisor)

    @classmethod
    def public_moduli(
        cls, radius: float, regularizer: Regularizer | None = None, *, share: float = 1.0
    ) -> Moduli:
        """Return moduli that hold for all data with ||a_i||_2 <= ``radius``.

        Smoothness ``share`` radius^2 times 1/4 (logistic), 1/2 (multinomial) or 2 (ridge), plus
        the regulariser's; strong convexity that of the regulariser. ``share`` is n/D, 1 with
        the default divisor. For one score per example (binary logistic, ridge) they hold for the
        clipped gradient as well, which is then still the gradient of a convex function.

        Privacy: a function of public numbers only; `clip_rows` enforces the radius.
        """
        size = check_positive("share", share) * check_positive("radius", radius) ** 2
        regularizer = NoRegularizer() if regularizer is None else regularizer
        return Moduli(0.0, cls.curvature[1] * size) + regularizer.moduli

    def value(self, x: FloatArray) -> float:
        """Return f(x)."""
        x = self._checked(x)
        total = float(np.sum(self._losses(x), dtype=np.float64))
        return total / self.divisor + self.regularizer.value(x)

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Return the gradient of f, shape (dim,).

        With ``rows`` the data term is (n/D) times the mean over those examples, an unbiased
        estimate under uniform sampling; with the default divisor it is their mean.
        """
        x = self._checked(x)
        design, targets, scale = self._batch(rows)
        result = self._pull_back(design, self._residuals(x, design, targets))
        result *= scale
        result += self.regularizer.gradient(x)
        return result

    def clipped_gradient(
        self, x: FloatArray, clip: float, norm: Norm = "l2", rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with the data term of every example clipped to norm ``clip``.

        Example i contributes g_i min(1, clip / ||g_i||) in place of g_i; the sum is divided by
        D (see `gradient` for ``rows``) and the regulariser added as it is. No g_i is formed:
        ||g_i|| = ||residual_i|| ||a_i|| in the l2 and the l1 norm.

        Privacy: replacing one example moves the result by at most 2 clip / D in that norm,
        adding or removing one (D public) by clip / D. Nothing is noised here.
        """
        limits = self._residual_limits(clip, norm)
        x = self._checked(x)
        design, targets, scale = self._batch(rows)
        residuals = self._residuals(x, design, targets)
        self._clip_residuals(residuals, limits if rows is None else limits.take(rows), norm)
        result = self._pull_back(design, residuals)
        result *= scale
        result += self.regularizer.gradient(x)
        return result

    def gradient_and_largest(self, x: FloatArray, norm: Norm = "l1") -> tuple[FloatArray, float]:
        """Return the gradient of f, and max_i ||g_i|| / D over the examples' data terms g_i.

        With the l1 norm the number is Delta_bar of the DP-IADMM paper (Section IV).

        Privacy: the number is computed from the data, so noise of this scale betrays them; it
        serves comparisons with the paper only.
        """
        limits = self._residual_limits(1.0, norm)
        x = self._checked(x)
        residuals = self._residuals(x, self._design, self._targets)
        largest = float(np.max(self._residual_norms(residuals, norm) / limits))
        result = self._pull_back(self._design, residuals)
        result *= self._scale
        result += self.regularizer.gradient(x)
        return result, largest / self.divisor

    def batch_clipped_gradient(
        self, x: FloatArray, clip: float, rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with the whole data term clipped to l2 norm ``clip``.

        The data term (after division by D) is scaled down as one vector; the regulariser is
        added as it is.

        Privacy: replacing any number of examples moves the result by at most 2 clip.
        """
        clip = check_positive("clip", clip)
        x = self._checked(x)
        design, targets, scale = self._batch(rows)
        result = self._pull_back(design, self._residuals(x, design, targets))
        result *= scale
        result *= clip / max(float(np.linalg.norm(result)), clip)
        result += self.regularizer.gradient(x)
        return result

    def _checked(self, x: FloatArray) -> FloatArray:
        if x.shape != self._shape:
            raise ValueError(f"x must have shape {self._shape}, found {x.shape}")
        return x if x.dtype == self.dtype else x.astype(self.dtype)

    def _batch(self, rows: RowIndex) -> tuple[FloatArray, Target, npt.NDArray[Any] | float]:
        if rows is None:
            return self._design, self._targets, self._scale
        if len(rows) == 0:
            raise ValueError("rows is an empty mini-batch")
        scale = self.num_examples / (self.divisor * len(rows))
        targets = cast(Target, self._targets.take(rows))
        return self._design.take(rows, axis=0), targets, scale

    def _residual_limits(self, clip: float, norm: Norm) -> FloatArray:
        """Return clip / ||row|| of the design; the last answer is kept, as clip rarely changes."""
        known = self._limits
        if known is not None and known[:2] == (clip, norm):
            return known[2]
        bound = check_positive("clip", clip)
        # Zero rows have no limit; half the largest number stands for that without warnings.
        floor = 2.0 * max(bound, 1.0) / float(np.finfo(self.dtype).max)
        limits: FloatArray = (bound / np.maximum(self._row_norms(norm), floor)).astype(self.dtype)
        self._limits = (clip, norm, limits)
        return limits

    def _row_norms(self, norm: Norm) -> FloatArray:
        if norm == "l2":
            squares = np.einsum("nd,nd->n", self._design, self._design, dtype=np.float64)
            result: FloatArray = np.sqrt(squares)
        elif norm == "l1":
            result = np.abs(self._design).sum(axis=1, dtype=np.float64)
        else:
            raise ValueError(f"norm must be l1 or l2, found {norm!r}")
        return result


class ScalarScoreModel(LinearModel[FloatArray]):
    """Losses of one score per example: x and a row of the design have the same length."""

    def _pull_back(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = residuals.dot(design)
        return result

    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        result: FloatArray = np.abs(residuals)
        return result

    def _clip_residuals(self, residuals: FloatArray, limits: FloatArray, norm: Norm) -> None:
        np.minimum(residuals, limits, out=residuals)
        np.maximum(residuals, -limits, out=residuals)

    @staticmethod
    def predict_margin(x: FloatArray, features: FloatArray) -> FloatArray:
        """Return the scores <a_i, x>, shape (n,)."""
        result: FloatArray = features @ x
        return result


class MatrixScoreModel(LinearModel[npt.NDArray[np.intp]]):
    """Losses of one score per class; residuals have shape (classes, n).

    Parameters
    ----------
    features : (n, d) array
        The a_i; see `LinearModel` for this and the keywords.
    labels : (n,) array
        The c_i, integers 0..classes-1.
    classes : int
        K >= 2, whether or not all of them occur.
    """

    classes: int

    def __init__(
        self,
        features: npt.ArrayLike,
        labels: npt.ArrayLike,
        classes: int,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        super().__init__(features, regularizer=regularizer, divisor=divisor)
        self.classes = int(classes)
        self.labels = check_classes(labels, self.features, self.classes)
        self._set_data(self.features, self.labels, self.num_features * self.classes)

    def _with_features(self, features: FloatArray) -> Self:
        return type(self)(
            features, self.labels, self.classes, regularizer=self.regularizer, divisor=self.divisor
        )

    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        result: FloatArray
        if norm == "l2":
            result = np.sqrt(np.einsum("kn,kn->n", residuals, residuals))
        else:
            result = np.abs(residuals).sum(axis=0)
        return result

    def _clip_residuals(self, residuals: FloatArray, limits: FloatArray, norm: Norm) -> None:
        residuals *= limits / np.maximum(self._residual_norms(residuals, norm), limits)


def can_clip(problem: object) -> TypeGuard[ClippableProblem]:
    """Return whether a problem can bound its per-example gradients.

    For the models of this library the class says so: asking a protocol takes longer than clipping
    a small problem.
    """
    return isinstance(problem, LinearModel | ClippableProblem)
