"""Privacy-critical: what a loss from elsewhere needs to be a Problem: scaling and clipped sums."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from privet.core import ConfigError
from privet.kernel import Clipping, Moduli, Norm, RowIndex, clipped_sum, clipped_whole
from privet.problems import NoRegularizer, Regularizer

from ..inputs import Vector


class FiniteSum(ABC):
    """f(x) = (1/D) sum_i loss_i(x) + r(x) on a flat vector, for a loss_i unknown to this library.

    Parameters
    ----------
    dim, num_examples : int
        Length of x, and examples the agent holds (n).
    dtype : dtype-like
        float32 or float64: of x and of every result.
    regularizer : Regularizer, optional
        r(x), added once and never clipped; `privet.problems.make_regularizer` builds one.
    divisor : float, optional
        D; n unless given (DP-IADMM divides by the examples of all agents).
    moduli : Moduli, optional
        Bounds of the Hessian of f; whoever gives none must set ``step-size`` or ``smoothness``
        where an algorithm asks for them.
    """

    moduli: Moduli | None
    meaning: str | None = None
    """What inputs and classes mean, as agents compare it at enrolment; None states nothing."""

    def __init__(
        self,
        dim: int,
        num_examples: int,
        dtype: npt.DTypeLike,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
        moduli: Moduli | None = None,
    ) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype not in (np.dtype("f4"), np.dtype("f8")):
            raise ConfigError(f"a problem's dtype must be float32 or float64, found {self.dtype}")
        if num_examples < 1:
            raise ConfigError("agent has no data")
        if dim < 1:
            raise ConfigError(f"a problem needs at least one parameter, found dim = {dim}")
        self.dim, self.num_examples = int(dim), int(num_examples)
        self.regularizer: Regularizer = NoRegularizer() if regularizer is None else regularizer
        self.divisor = _positive_divisor(num_examples if divisor is None else divisor)
        self.moduli = moduli

    def with_divisor(self, divisor: float) -> Self:
        """Return the problem on the same data, which it shares, with another divisor D.

        Of moduli that were given, the data term's part is scaled with 1/D; where D becomes smaller
        they stay bounds, though not tight ones.
        """
        other = copy.copy(self)
        other.divisor = _positive_divisor(divisor)
        if self.moduli is not None:
            # H' = s H + (1 - s) H_r with s = D / D', H the Hessian of f and H_r that of r.
            share, regularizer = self.divisor / other.divisor, self.regularizer.moduli
            ends = (regularizer.strong_convexity, regularizer.smoothness)
            low, high = ends if share <= 1.0 else ends[::-1]
            other.moduli = Moduli(
                share * self.moduli.strong_convexity + (1.0 - share) * low,
                share * self.moduli.smoothness + (1.0 - share) * high,
            )
        return other

    @abstractmethod
    def _mean_loss(self, x: Vector) -> float:
        """Return the mean of loss_i(x) over all examples."""

    @abstractmethod
    def _mean_gradient(self, x: Vector, rows: RowIndex) -> Vector:
        """Return the mean of the gradients over ``rows`` (all examples for None)."""

    def _example_gradients(self, x: Vector, rows: RowIndex) -> Iterator[Vector]:
        """Yield the gradients of the examples in ``rows`` one by one or in blocks (b, dim)."""
        raise ConfigError("this problem has no per-example gradients, so it cannot clip")

    def value(self, x: Vector) -> float:
        """Return f(x)."""
        x = self._checked(x)
        share = self.num_examples / self.divisor
        return share * float(self._mean_loss(x)) + self.regularizer.value(x)

    def gradient(self, x: Vector, rows: RowIndex = None) -> Vector:
        """Return the gradient of f, shape (dim,).

        With ``rows`` the data term is n/D times the mean over those examples, an unbiased
        estimate under uniform sampling.
        """
        x = self._checked(x)
        slope = self._data_gradient(x, rows, self.dtype)
        slope += self.regularizer.gradient(x)
        return slope

    def batch_clipped_gradient(self, x: Vector, clip: float, rows: RowIndex = None) -> Vector:
        """Return the gradient with the whole data term clipped to l2 norm ``clip``.

        The data term (after division by D) is scaled down as one vector, to zero where it is not
        finite; the regulariser is added as it is.

        Privacy: replacing any number of examples moves the result by at most 2 clip.
        """
        return self._joined(*self.clipped_term(x, clip, "l2", rows, "batch"))

    def clipped_term(
        self,
        x: Vector,
        clip: float,
        norm: Norm = "l2",
        rows: RowIndex = None,
        clipping: Clipping = "example",
    ) -> tuple[Vector, Vector | None]:
        """Return the clipped data term in float64, and the regulariser's gradient if there is one.

        Privacy: `privet.kernel.clipped_term` gives the value with its sensitivity.
        """
        x = self._checked(x)
        _require_rows(rows)
        if clipping == "batch":
            value = clipped_whole(self._data_gradient(x, rows, np.dtype(np.float64)), clip)
        else:
            value = self._clipped_sum(x, clip, norm, rows)
        if isinstance(self.regularizer, NoRegularizer):
            return value, None
        return value, self.regularizer.gradient(x)

    def sampled_term(
        self, x: Vector, clip: float, kept: npt.NDArray[np.bool_], expected: int
    ) -> tuple[Vector, Vector | None]:
        """Return the clipped data term of the examples that are ``kept`` (n,), and the regulariser.

        Privacy: `privet.kernel.records.Samplable`.
        """
        x = self._checked(x)
        value = self._sampled_sum(x, clip, kept, expected)
        value /= self.divisor
        if isinstance(self.regularizer, NoRegularizer):
            return value, None
        return value, self.regularizer.gradient(x)

    def _sampled_sum(
        self, x: Vector, clip: float, kept: npt.NDArray[np.bool_], expected: int
    ) -> Vector:
        """Return the sum of the clipped gradients of the examples that are kept, in place."""
        total, seen = np.zeros(self.dim), 0
        for block in self._example_gradients(x, None):
            rows = block.reshape(-1, self.dim)
            total += clipped_sum(rows, clip, "l2", kept[seen : seen + len(rows)])
            seen += len(rows)
        if seen != self.num_examples:
            raise ConfigError(f"{seen} per-example gradients came, expected {self.num_examples}")
        return total

    def _joined(self, value: Vector, rest: Vector | None) -> Vector:
        result: Vector = value.astype(self.dtype, copy=False)
        if rest is not None:
            result += rest
        return result

    def _clipped_sum(self, x: Vector, clip: float, norm: Norm, rows: RowIndex) -> Vector:
        count = self.num_examples if rows is None else len(rows)
        total = np.zeros(self.dim)
        seen = 0
        for block in self._example_gradients(x, rows):
            seen += 1 if block.ndim == 1 else len(block)
            total += clipped_sum(block.reshape(-1, self.dim), clip, norm)
        if seen != count:
            raise ConfigError(f"{seen} per-example gradients came, expected {count}")
        total *= self.num_examples / (self.divisor * count)
        return total

    def _data_gradient(self, x: Vector, rows: RowIndex, dtype: np.dtype[Any]) -> Vector:
        """Return the data term's gradient, scaled in ``dtype``."""
        _require_rows(rows)
        slope = np.asarray(self._mean_gradient(x, rows))
        if slope.shape != (self.dim,):
            raise ConfigError(f"gradient has shape {slope.shape}, expected ({self.dim},)")
        scaled: Vector = slope.astype(dtype)
        scaled *= dtype.type(self.num_examples / self.divisor)
        return scaled

    def _checked(self, x: Vector) -> Vector:
        if x.shape != (self.dim,):
            raise ConfigError(f"x must have shape ({self.dim},), found {x.shape}")
        return x if x.dtype == self.dtype else x.astype(self.dtype)


class ClippableSum(FiniteSum):
    """A `FiniteSum` whose per-example gradients are known, so that it can be private."""

    def clipped_gradient(
        self, x: Vector, clip: float, norm: Norm = "l2", rows: RowIndex = None
    ) -> Vector:
        """Return the gradient with the data term of every example clipped to norm ``clip``.

        Example i contributes g_i min(1, clip / ||g_i||) in place of g_i, and nothing where g_i is
        not finite; the sum is divided by D and the regulariser added as it is.

        Privacy: replacing one example moves the result by at most 2 clip / D in that norm, adding
        or removing one (D public) by clip / D. Nothing is noised here.
        """
        return self._joined(*self.clipped_term(x, clip, norm, rows))


def _require_rows(rows: RowIndex) -> None:
    if rows is not None and len(rows) == 0:
        raise ConfigError("rows is an empty mini-batch")


def _positive_divisor(divisor: float) -> float:
    number = float(divisor)
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"divisor must be finite and positive, found {divisor}")
    return number
