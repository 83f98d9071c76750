"""Privacy-critical: linear models, f(x) = (1/D) sum_i loss_i(A_i x) + r(x), and their clipped sums.

A loss sees the parameters only through the scores of an example, so its gradient is the outer
product of a residual (the derivative with respect to the scores) and the example's features.
A gradient is therefore two matrix products, and its per-example norms are products of norms.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from privet.core import mapped
from privet.kernel.bounded import (
    BLOCK,
    Clipping,
    Limits,
    clip_rows,
    clipped_whole,
    residual_limits,
    row_norms,
    silently,
)
from privet.kernel.checks import check_features, check_positive
from privet.kernel.curvature import loss_curvature
from privet.kernel.records import FloatArray, Moduli, Norm, RowIndex

from .regularizers import NoRegularizer, Regularizer
from .spectrum import gram_extremes
from .validation import check_classes

Target = TypeVar("Target", bound=npt.NDArray[Any])


class ClippedSums(ABC):
    """The clipped sums of a linear model, or row by row of a `Stack` of them.

    Arrays of a stack have an axis of models first; each of them then comes to the bits that its
    model has alone.
    """

    dtype: np.dtype[Any]
    regularizer: Regularizer

    @abstractmethod
    def _checked(self, x: FloatArray) -> FloatArray:
        """Return x (..., dim) in the dtype of the data."""

    @abstractmethod
    def _batch(self, rows: RowIndex) -> tuple[FloatArray, Any, Any]:
        """Return rows (..., n, d) of the design, their targets, and the factor of their sum."""

    @abstractmethod
    def _residuals(self, x: FloatArray, design: FloatArray, targets: Any) -> FloatArray:
        """Return a fresh array of the losses' derivatives with respect to the scores."""

    @abstractmethod
    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        """Return a fresh array: the sum over examples of residual times features."""

    @abstractmethod
    def _flatten(self, product: FloatArray) -> FloatArray:
        """Return such a product in the order of the parameters, shape (..., dim)."""

    @abstractmethod
    def _residual_limits(self, clip: float, norm: Norm) -> Limits:
        """Return `residual_limits` of all examples; the last answer is kept."""

    @abstractmethod
    def _clip_residuals(self, residuals: FloatArray, limits: Limits, norm: Norm) -> None:
        """Scale down, in place, the residual of example i to norm <= limits.most[..., i]."""

    def _pull_back(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        return self._flatten(self._product(design, residuals))

    def clipped_gradient(
        self, x: FloatArray, clip: float, norm: Norm = "l2", rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with the data term of every example clipped to norm ``clip``.

        Example i contributes g_i min(1, clip / ||g_i||) in place of g_i, and nothing where its
        residual is not finite; the sum is divided by D (see `gradient` for ``rows``) and the
        regulariser added as it is. No g_i is formed: ||g_i|| = ||residual_i|| ||a_i|| in the l2
        and the l1 norm.

        Privacy: replacing one example moves the result by at most 2 clip / D in that norm,
        adding or removing one (D public) by clip / D, up to rounding: `clipped_sensitivity`.
        Nothing is noised here.
        """
        return self._joined(*self.clipped_term(x, clip, norm, rows))

    def batch_clipped_gradient(
        self, x: FloatArray, clip: float, rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with the whole data term clipped to l2 norm ``clip``.

        The data term (after division by D) is scaled down as one vector, without the examples
        whose gradient is not finite, to zero where it is not finite all the same; the regulariser
        is added as it is.

        Privacy: replacing any number of examples moves the result by at most 2 clip.
        """
        return self._joined(*self.clipped_term(x, clip, "l2", rows, "batch"))

    @silently
    def clipped_term(
        self,
        x: FloatArray,
        clip: float,
        norm: Norm = "l2",
        rows: RowIndex = None,
        clipping: Clipping = "example",
    ) -> tuple[npt.NDArray[np.float64], FloatArray | None]:
        """Return the clipped data term in float64, and the regulariser's gradient if there is one.

        `clipped_gradient` (or, for whole batches, `batch_clipped_gradient`) is their sum. Float32
        products take blocks of one size, of 256 examples at most, which are added up in float64.

        Privacy: the module's `clipped_term` gives the value with its sensitivity.
        """
        x = self._checked(x)
        if clipping == "batch":
            value = clipped_whole(self._finite_sum(x, rows), check_positive("clip", clip))
        else:
            value = self._clipped_sum(x, clip, norm, rows)
        if isinstance(self.regularizer, NoRegularizer):
            return value, None
        return value, self.regularizer.gradient(x)

    @silently
    def sampled_term(
        self, x: FloatArray, clip: float, kept: npt.NDArray[np.bool_], expected: int = 0
    ) -> tuple[npt.NDArray[np.float64], FloatArray | None]:
        """Return the clipped data term of the examples that are ``kept`` (n,), and the regulariser.

        All residuals are computed, and those of the others set to zero: what an example adds is
        the same whichever others are kept, and so is the time that it takes.
        """
        x = self._checked(x)
        value = self._clipped_sum(x, clip, "l2", None, kept)
        if isinstance(self.regularizer, NoRegularizer):
            return value, None
        return value, self.regularizer.gradient(x)

    def _joined(self, value: npt.NDArray[np.float64], rest: FloatArray | None) -> FloatArray:
        result: FloatArray = value.astype(self.dtype, copy=False)
        if rest is not None:
            result += rest
        return result

    def _clipped_sum(
        self,
        x: FloatArray,
        clip: float,
        norm: Norm,
        rows: RowIndex,
        kept: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the scaled sum of the examples' clipped gradients, of those that are kept."""
        limits = self._residual_limits(clip, norm).of(rows)
        design, targets, scale = self._batch(rows)
        residuals = self._residuals(x, design, targets)
        _drop_unsound(design, residuals)
        if limits.dropped is not None:
            _drop(residuals, limits.dropped)
        self._clip_residuals(residuals, limits, norm)
        if kept is not None:
            _drop(residuals, ~kept)
        count = design.shape[-2]
        # Blocks of one size: the kernels of a short last one are slower.
        step = count if self.dtype == np.float64 else -(-count // -(-count // BLOCK))
        if count <= step:
            total = self._product(design, residuals)
        else:
            first = self._product(design[..., :step, :], residuals[..., :step])
            total = first.astype(np.float64)
            for start in range(step, count, step):
                part = slice(start, start + step)
                total += self._product(design[..., part, :], residuals[..., part])
        value: npt.NDArray[np.float64] = self._flatten(total).astype(np.float64, copy=False)
        value *= scale
        return value

    def _finite_sum(self, x: FloatArray, rows: RowIndex) -> npt.NDArray[np.float64]:
        """Return the scaled sum of the examples' gradients, of those that are finite."""
        design, targets, scale = self._batch(rows)
        residuals = self._residuals(x, design, targets)
        _drop_unsound(design, residuals)
        result = self._pull_back(design, residuals)
        if not np.isfinite(result).all():
            # The largest entry of an example's gradient is that of its residual times its row's.
            largest = np.abs(design).max(axis=-1)
            heights = np.abs(residuals)
            heights = heights if heights.ndim == largest.ndim else heights.max(axis=-2)
            _drop(residuals, ~np.isfinite(heights * largest))
            result = self._pull_back(design, residuals)
        value: npt.NDArray[np.float64] = result.astype(np.float64, copy=False)
        value *= scale
        return value


class LinearModel(ClippedSums, Generic[Target]):
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
    data_dependent: str = ""
    """The part of the features' preparation that depends on the records; empty for none."""
    meaning: Any = None
    """What the features and targets mean, as agents compare it at enrolment: a text, or a
    `privet.data.meaning.Meaning`; None states nothing."""
    person_rows: int = 1
    """The rows of the person who has most; 1 where nothing says whose rows are."""
    doubts: Sequence[str] = ()
    """Lines on what is doubtful about the data's file, which the node writes into its own log."""
    kind: ClassVar[str]
    """Name of the loss, as the kernel's `PROVEN` knows it where it lists it."""
    constants: Mapping[str, Any] = {}
    """Keywords of the constructor for the loss's own constants."""
    held_out: LinearModel[Any] | None = None
    """The problem of the examples that models are evaluated on, where they are others."""
    own_metrics: Callable[[FloatArray, Any], Mapping[str, float]] | None = None
    """Computes what `metrics` returns, from scores and targets; None for the usual measures."""

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
        self._limits: tuple[float, Norm, Limits] | None = None

    def _set_data(self, design: FloatArray, targets: Target, dim: int) -> None:
        """Keep the matrix and targets the scores and residuals are computed from."""
        self._design = design
        self._targets = targets
        self.dim = dim

    # What a loss provides

    @abstractmethod
    def _losses(self, x: FloatArray) -> FloatArray:
        """Return the loss of every example, shape (n,)."""

    @abstractmethod
    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        """Return the norm of every example's residual, shape (n,), summed in float64."""

    @staticmethod
    @abstractmethod
    def predict_margin(x: FloatArray, features: FloatArray) -> FloatArray:
        """Return the score of every example, shape (n,), or those of its classes, (n, classes)."""

    def _usual_metrics(self, scores: FloatArray, targets: Any) -> Mapping[str, float]:
        """Return the measures of this loss: none beside the loss itself."""
        return {}

    # What all losses share

    def with_features(self, features: FloatArray, targets: Target | None = None) -> Self:
        """Return the same problem on other features, and targets, of the same shape."""
        model: Any = type(self)
        chosen = self._targets if targets is None else targets
        other: Self = model(
            features, chosen, regularizer=self.regularizer, divisor=self.divisor, **self.constants
        )
        return other

    def of_rows(self, rows: npt.NDArray[np.intp]) -> Self:
        """Return the problem on some of its rows, with their number as the divisor D."""
        targets = cast(Target, self._targets.take(rows))
        return self.with_features(self.features[rows], targets).with_divisor(float(len(rows)))

    def with_divisor(self, divisor: float) -> Self:
        """Return the problem on the same data, which it shares, with another divisor D."""
        other = copy.copy(self)
        other.divisor = check_positive("divisor", divisor)
        other.__dict__.pop("moduli", None)
        return other

    def with_regularizer(self, regularizer: Regularizer) -> Self:
        """Return the problem on the same data, which it shares, with another regulariser."""
        other = copy.copy(self)
        other.regularizer = regularizer
        other.__dict__.pop("moduli", None)
        return other

    def with_rows_within(self, radius: float) -> Self:
        """Return the problem with rows clipped to l2 norm ``radius``; itself where none is longer.

        Privacy: `public_moduli` of this radius hold for the result whatever the data are; each
        row depends on itself alone.
        """
        features = clip_rows(self.features, radius)
        if np.array_equal(features, self.features):
            return self
        other = self.with_features(features)
        other.data_dependent, other.meaning = self.data_dependent, self.meaning
        other.person_rows = self.person_rows
        return other

    @cached_property
    def moduli(self) -> Moduli:
        """Bounds of the Hessian of f, computed from the data: releasing them is not private.

        The loss's range of curvature times that of A^T A / D, plus the regulariser's moduli.
        """
        return self._data_moduli + self.regularizer.moduli

    @property
    def score_curvature(self) -> tuple[float, float]:
        """Extreme eigenvalues, over all scores, of the loss's Hessian in the scores.

        They are the kernel's; a loss that the kernel does not list computes them from its
        constants. Moduli of the data follow from them; a certificate uses the kernel's alone.
        """
        return loss_curvature(self.kind)

    @property
    def _data_moduli(self) -> Moduli:
        low, high = gram_extremes(self.features)
        lowest, largest = self.score_curvature
        return Moduli(lowest * low / self.divisor, largest * high / self.divisor)

    def value(self, x: FloatArray) -> float:
        """Return f(x)."""
        x = self._checked(x)
        total = float(np.sum(self._losses(x), dtype=np.float64))
        return total / self.divisor + self.regularizer.value(x)

    def metrics(self, x: FloatArray) -> Mapping[str, float]:
        """Return measures of all examples: `own_metrics`, or those that are usual for the loss.

        They are ``accuracy`` of a classifier and, of two classes that both occur, ``auc``.

        Privacy: they are computed from the data, and un-noised.
        """
        scores = self.predict_margin(self._checked(x), self.features)
        measure = self.own_metrics or self._usual_metrics
        return measure(scores, self._targets)

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

    def gradient_and_largest(self, x: FloatArray, norm: Norm = "l1") -> tuple[FloatArray, float]:
        """Return the gradient of f, and max_i ||g_i|| / D over the examples' data terms g_i.

        With the l1 norm the number is Delta_bar of the DP-IADMM paper (Section IV).

        Privacy: the number is computed from the data, so noise of this scale reveals them; it
        serves comparisons with the paper only.
        """
        limits = self._residual_limits(1.0, norm)
        x = self._checked(x)
        residuals = self._residuals(x, self._design, self._targets)
        largest = float(np.max(self._residual_norms(residuals, norm) / limits.most))
        result = self._pull_back(self._design, residuals)
        result *= 1.0 / self.divisor
        result += self.regularizer.gradient(x)
        return result, largest / self.divisor

    def _checked(self, x: FloatArray) -> FloatArray:
        if x.shape != (self.dim,):
            raise ValueError(f"x must have shape ({self.dim},), found {x.shape}")
        return x if x.dtype == self.dtype else x.astype(self.dtype)

    def _batch(self, rows: RowIndex) -> tuple[FloatArray, Target, float]:
        """Return rows of the design, their targets, and the factor of their sum."""
        if rows is None:
            return self._design, self._targets, 1.0 / self.divisor
        if len(rows) == 0:
            raise ValueError("rows is an empty mini-batch")
        scale = self.num_examples / (self.divisor * len(rows))
        targets = cast(Target, self._targets.take(rows))
        return self._design.take(rows, axis=0), targets, scale

    def _residual_limits(self, clip: float, norm: Norm) -> Limits:
        """Return `residual_limits`; the last answer is kept, as clip and norm rarely change."""
        known = self._limits
        if known is not None and known[:2] == (clip, norm):
            return known[2]
        norms = row_norms(self._design, norm)
        limits = residual_limits(norms, check_positive("clip", clip), self.dtype)
        self._limits = (clip, norm, limits)
        return limits


def _drop_unsound(design: FloatArray, residuals: FloatArray) -> None:
    """Set the residuals of examples that have one that is not finite to zero, in place."""
    # One product says that all are finite at a tenth of the time that asking each takes.
    if math.isfinite(np.vdot(residuals, residuals)):
        return
    unsound: npt.NDArray[np.bool_] = ~np.isfinite(residuals)
    if unsound.ndim == design.ndim:
        unsound = np.any(unsound, axis=-2)
    _drop(residuals, unsound)


def _drop(residuals: FloatArray, examples: npt.NDArray[np.bool_]) -> None:
    """Set the residuals of some examples (..., n) to zero, in place."""
    if residuals.ndim > examples.ndim:
        residuals = residuals.swapaxes(-1, -2)
    residuals[examples] = 0.0


class ScalarScoreModel(LinearModel[FloatArray]):
    """Losses of one score per example: x and a row of the design have the same length."""

    @abstractmethod
    def slopes(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        """Turn scores, in place, into the losses' derivatives: of one model or of a stack."""

    def _residuals(self, x: FloatArray, design: FloatArray, targets: FloatArray) -> FloatArray:
        return self.slopes(design.dot(x), targets)

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = residuals.dot(design)
        return result

    def _flatten(self, product: FloatArray) -> FloatArray:
        return product

    _pull_back = _product

    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        result: FloatArray = np.abs(residuals)
        return result

    def _clip_residuals(self, residuals: FloatArray, limits: Limits, norm: Norm) -> None:
        np.minimum(residuals, limits.most, out=residuals)
        np.maximum(residuals, -limits.most, out=residuals)

    @staticmethod
    def predict_margin(x: FloatArray, features: FloatArray) -> FloatArray:
        """Return the scores <a_i, x>, shape (n,)."""
        result: FloatArray = features @ x
        return result


class SmoothScoreModel(ScalarScoreModel):
    """Losses of one score per example whose second derivative is known."""

    @abstractmethod
    def bends(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the losses' second derivatives with respect to the scores, shape (n,)."""

    def _weights(self, x: FloatArray) -> FloatArray:
        result: FloatArray = self.bends(self._design.dot(x), self._targets)
        result /= self.dtype.type(self.divisor)
        return result

    def hessian(self, x: FloatArray) -> FloatArray:
        """Return the Hessian of f, shape (dim, dim)."""
        x = self._checked(x)
        design, weights = self._design, self._weights(x)
        weighted: FloatArray = mapped.scratch(design.shape, design.dtype)
        for rows in mapped.blocks(design):
            np.multiply(design[rows], weights[rows, None], out=weighted[rows])
        result: FloatArray = weighted.T @ design
        result[np.diag_indices(self.dim)] += self.regularizer.curvature(x)
        return result

    def hessian_product(self, x: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return a function for the Hessian of f at x times a vector (dim,)."""
        x = self._checked(x)
        weights, curvature = self._weights(x), self.regularizer.curvature(x)

        def product(v: FloatArray) -> FloatArray:
            scores = self._design.dot(v)
            scores *= weights
            result: FloatArray = scores.dot(self._design)
            result += curvature * v
            return result

        return product


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

    def with_features(
        self, features: FloatArray, targets: npt.NDArray[np.intp] | None = None
    ) -> Self:
        chosen = self.labels if targets is None else targets
        return type(self)(
            *(features, chosen, self.classes),
            regularizer=self.regularizer,
            divisor=self.divisor,
            **self.constants,
        )

    def _usual_metrics(
        self, scores: FloatArray, targets: npt.NDArray[np.intp]
    ) -> Mapping[str, float]:
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == targets))}

    @classmethod
    def accuracy(cls, x: FloatArray, features: FloatArray, labels: npt.NDArray[np.intp]) -> float:
        """Return the fraction of examples whose largest score is that of their class."""
        return float(np.mean(cls.predict_margin(x, features).argmax(axis=1) == labels))

    def _residual_norms(self, residuals: FloatArray, norm: Norm) -> FloatArray:
        result: FloatArray
        if norm == "l2":
            wide = residuals.astype(np.float64, copy=False)
            result = np.sqrt(np.einsum("...kn,...kn->...n", wide, wide))
        else:
            result = np.abs(residuals).sum(axis=-2, dtype=np.float64)
        return result

    def _clip_residuals(self, residuals: FloatArray, limits: Limits, norm: Norm) -> None:
        most = limits.most
        factors = most / np.maximum(self._residual_norms(residuals, norm), most)
        residuals *= factors.astype(residuals.dtype, copy=False)[..., None, :]
