"""Linear models of one shape as a stack, whose gradients are taken together.

A small problem's gradient takes less time than the calls it is made of. A stack of N takes the
calls once: its vectors are rows of arrays (N, dim), and every row has the bits that its model
gives alone. Sums run in the same order, as the matrix products of a stack are those of its members
one by one; `Stack` asks one member whether that is so with the BLAS that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Self, cast

import numpy as np

from privet.problems.base import FloatArray, Moduli, RowIndex
from privet.problems.binary_logistic import BinaryLogistic
from privet.problems.linear import LinearModel
from privet.problems.multinomial_logistic import MultinomialLogistic
from privet.problems.regularizers import L2, Nonconvex, NoRegularizer
from privet.problems.ridge_regression import RidgeRegression

_LOSSES = (BinaryLogistic, RidgeRegression, MultinomialLogistic)
_TERMS = (NoRegularizer, L2, Nonconvex)
LARGEST_MEMBER = 1 << 18
"""Bytes of a model's features above which a stack gains nothing: its products dominate."""


class Observed:
    """A problem that tells of every point x at which its gradient is taken: ``seen(x)``."""

    __slots__ = ("problem", "seen")

    def __init__(self, problem: Any, seen: Callable[[FloatArray], object]) -> None:
        self.problem, self.seen = problem, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Return the problem's gradient."""
        self.seen(x)
        slope: FloatArray = self.problem.gradient(x, rows)
        return slope


def stack_key(problem: object) -> Hashable | None:
    """Return what models of one stack have in common, None for a problem that is in none.

    That is one of a class of its own, a large one, and one of a single row or parameter, whose
    sums numpy takes in another order.
    """
    if isinstance(problem, Observed):
        problem = problem.problem
    if type(problem) not in _LOSSES:
        return None
    model = cast("LinearModel[Any]", problem)
    features, term = model.features, model.regularizer
    if type(term) not in _TERMS or min(features.shape) < 2 or features.nbytes > LARGEST_MEMBER:
        return None
    return type(model), features.shape, features.dtype, model.dim, term


class Stack:
    """Models of one `stack_key`, at least one; some of them may be `Observed`.

    Attributes
    ----------
    models : tuple of LinearModel
    dim, dtype, num_examples
        Those of every model.
    divisor : array (N, 1)
        Their divisors D.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = tuple(
            model.problem if isinstance(model, Observed) else model for model in models
        )
        self._seen = [model.seen if isinstance(model, Observed) else None for model in models]
        self._observed = any(self._seen)
        first = self._first = self.models[0]
        self.dim, self.dtype, self.num_examples = first.dim, first.dtype, first.num_examples
        self.regularizer = first.regularizer
        self.divisor = np.array([[model.divisor] for model in self.models])
        self._designs = np.stack([model._design for model in self.models])
        self._targets = np.stack([model._targets for model in self.models])

    @property
    def shape(self) -> tuple[int, int]:
        """(N, dim), the shape of all vectors."""
        return len(self.models), self.dim

    def agrees(self) -> bool:
        """Whether the first model's gradient alone has the bits that it has in the stack."""
        x = np.linspace(-1.0, 1.0, self.dim, dtype=self.dtype)
        everywhere = np.broadcast_to(x, self.shape)
        together = self._gradient(everywhere, self._designs, self._targets, 1.0 / self.divisor)
        return bool(together[0].tobytes() == self._first.gradient(x).tobytes())

    def take(self, members: Sequence[int]) -> Self:
        """Return the stack of some members, in this order."""
        taken = object.__new__(type(self))
        taken.__dict__.update({k: v for k, v in vars(self).items() if k != "moduli"})
        taken.models = tuple(self.models[member] for member in members)
        taken._seen = [self._seen[member] for member in members]
        for name in ("divisor", "_designs", "_targets"):
            setattr(taken, name, getattr(self, name)[members])
        return taken

    @cached_property
    def moduli(self) -> Moduli:
        """Those of the models, as arrays (N, 1)."""
        each = [model.moduli for model in self.models]
        low: Any = np.array([[one.strong_convexity] for one in each])
        high: Any = np.array([[one.smoothness] for one in each])
        return Moduli(low, high)

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Return the gradients (N, dim) at x (N, dim); with ``rows`` (N, b) from mini-batches."""
        if x.shape != self.shape:
            raise ValueError(f"x must have shape {self.shape}, found {x.shape}")
        if x.dtype != self.dtype:
            x = x.astype(self.dtype)
        if self._observed:
            for seen, row in zip(self._seen, x, strict=True):
                if seen is not None:
                    seen(row)
        designs, targets, scale = self._designs, self._targets, 1.0 / self.divisor
        if rows is not None:
            each = np.arange(len(x))[:, None]
            designs, targets = designs[each, rows], targets[each, rows]
            scale = self.num_examples / (self.divisor * rows.shape[1])
        return self._gradient(x, designs, targets, scale)

    def _gradient(
        self, x: FloatArray, designs: FloatArray, targets: Any, scale: FloatArray
    ) -> FloatArray:
        result = self._products(x, designs, targets)
        result *= scale.astype(self.dtype, copy=False)
        result += self.regularizer.gradient(x)
        return result

    def _products(self, x: FloatArray, designs: FloatArray, targets: Any) -> FloatArray:
        model: Any = self._first
        if isinstance(model, MultinomialLogistic):
            slopes = model.slopes(np.matmul(model.weights(x), designs.swapaxes(1, 2)), targets)
            products = np.matmul(slopes, designs)[:, : model.classes]
            flat: FloatArray = products.swapaxes(1, 2).reshape(self.shape)
            return flat
        scores = np.matmul(designs, x[:, :, None])[:, :, 0]
        result: FloatArray = np.matmul(model.slopes(scores, targets)[:, None], designs)[:, 0]
        return result


def total_gradient(problems: Sequence[Any]) -> Callable[[FloatArray], FloatArray]:
    """Return the function x -> sum_i grad f_i(x), computed in a stack where that is possible."""
    keys = {stack_key(problem) for problem in problems}
    if len(keys) == 1 and None not in keys:
        stack = Stack(problems)
        if stack.agrees():
            return lambda x: np.sum(stack.gradient(np.broadcast_to(x, stack.shape)), axis=0)
    return lambda x: np.sum([problem.gradient(x) for problem in problems], axis=0)


__all__ = ["LARGEST_MEMBER", "Observed", "Stack", "stack_key", "total_gradient"]
