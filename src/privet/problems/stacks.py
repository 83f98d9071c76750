"""Privacy-critical: linear models of one shape as a stack, whose gradients are taken together.

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

from privet.kernel.bounded import Limits
from privet.kernel.records import FloatArray, Moduli, Norm, RowIndex

from .linear import ClippedSums, LinearModel
from .losses.binary_logistic import BinaryLogistic
from .losses.multinomial_logistic import MultinomialLogistic
from .losses.ridge_regression import RidgeRegression
from .regularizers import L2, Nonconvex, NoRegularizer, PooledL2, SlopesL2

_LOSSES = (BinaryLogistic, RidgeRegression, MultinomialLogistic)
_TERMS = (NoRegularizer, L2, SlopesL2, PooledL2, Nonconvex)
LARGEST_MEMBER = 1 << 18
"""Bytes of a model's features above which a stack gains nothing: its products dominate."""


class Observed:
    """A problem that reports every point x of its gradients and Hessian products: ``seen(x)``."""

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

    @property
    def hessian_product(self) -> Callable[[FloatArray], Callable[[FloatArray], FloatArray]]:
        """The problem's ``hessian_product`` (raises ``AttributeError`` if it has none)."""
        products = self.problem.hessian_product

        def at(x: FloatArray) -> Callable[[FloatArray], FloatArray]:
            product = products(x)

            def counted(along: FloatArray) -> FloatArray:
                self.seen(x)
                bent: FloatArray = product(along)
                return bent

            return counted

        return at


def stack_key(problem: object) -> Hashable | None:
    """Return the key that models of one stack share, None for a problem that cannot be stacked.

    That is one of another class, a large one, and one of a single row or parameter, whose sums
    numpy takes in another order.
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


class Stack(ClippedSums):
    """Models of one `stack_key`, at least one; some of them may be `Observed`.

    Attributes
    ----------
    models : tuple of LinearModel
    dim, dtype, num_examples
        Those of every model.
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
        self._divisors = np.array([[model.divisor] for model in self.models])
        self._designs = np.stack([model._design for model in self.models])
        self._targets = np.stack([model._targets for model in self.models])
        self._limits: tuple[float, Norm, Limits] | None = None

    @property
    def divisor(self) -> float:
        """D (raises ``ValueError`` for models that do not have the same)."""
        divisor = float(self._divisors[0, 0])
        if not (self._divisors == divisor).all():
            raise ValueError("the models of the stack have divisors of their own")
        return divisor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, dim), the shape of all vectors."""
        return len(self.models), self.dim

    def agrees(self) -> bool:
        """Whether the first model's gradient alone has the bits that it has in the stack."""
        x = np.linspace(-1.0, 1.0, self.dim, dtype=self.dtype)
        everywhere = np.broadcast_to(x, self.shape)
        together = self._gradient(everywhere, None)
        return bool(together[0].tobytes() == self._first.gradient(x).tobytes())

    def share(self) -> None:
        """Have the models use the stack's copy of their data, so that it is in memory once."""
        for model, *rows in zip(self.models, self._designs, self._targets, strict=True):
            for held, row in zip((model._design, model._targets), rows, strict=True):
                row.flags.writeable = False
                vars(model).update({n: row for n, each in vars(model).items() if each is held})

    def take(self, members: Sequence[int]) -> Self:
        """Return the stack of some members, in this order."""
        taken = object.__new__(type(self))
        taken.__dict__.update({k: v for k, v in vars(self).items() if k != "moduli"})
        taken.models = tuple(self.models[member] for member in members)
        taken._seen = [self._seen[member] for member in members]
        for name in ("_divisors", "_designs", "_targets"):
            setattr(taken, name, getattr(self, name)[members])
        if self._limits is not None:
            clip, norm, limits = self._limits
            dropped = None if limits.dropped is None else limits.dropped[members]
            taken._limits = clip, norm, Limits(limits.most[members], dropped)
        return taken

    @cached_property
    def moduli(self) -> Moduli:
        """The moduli of the models, as arrays (N, 1)."""
        each = [model.moduli for model in self.models]
        low: Any = np.array([[one.strong_convexity] for one in each])
        high: Any = np.array([[one.smoothness] for one in each])
        return Moduli(low, high)

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Return the gradients (N, dim) at x (N, dim); with ``rows`` (N, b) from mini-batches."""
        x = self._checked(x)
        if self._observed:
            for seen, row in zip(self._seen, x, strict=True):
                if seen is not None:
                    seen(row)
        return self._gradient(x, rows)

    def _gradient(self, x: FloatArray, rows: RowIndex) -> FloatArray:
        designs, targets, scale = self._batch(rows)
        result = self._pull_back(designs, self._residuals(x, designs, targets))
        result *= scale.astype(self.dtype, copy=False)
        result += self.regularizer.gradient(x)
        return result

    def _checked(self, x: FloatArray) -> FloatArray:
        if x.shape != self.shape:
            raise ValueError(f"x must have shape {self.shape}, found {x.shape}")
        return x if x.dtype == self.dtype else x.astype(self.dtype)

    def _batch(self, rows: RowIndex) -> tuple[FloatArray, Any, FloatArray]:
        if rows is None:
            return self._designs, self._targets, 1.0 / self._divisors
        each = np.arange(len(rows))[:, None]
        scale = self.num_examples / (self._divisors * rows.shape[1])
        return self._designs[each, rows], self._targets[each, rows], scale

    def _residuals(self, x: FloatArray, design: FloatArray, targets: Any) -> FloatArray:
        model: Any = self._first
        if isinstance(model, MultinomialLogistic):
            scores = np.matmul(model.weights(x), design.swapaxes(1, 2))
        else:
            scores = np.matmul(design, x[:, :, None])[:, :, 0]
        slopes: FloatArray = model.slopes(scores, targets)
        return slopes

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        rows = residuals if residuals.ndim > 2 else residuals[:, None]
        product: FloatArray = np.matmul(rows, design)
        return product if residuals.ndim > 2 else product[:, 0]

    def _flatten(self, product: FloatArray) -> FloatArray:
        if product.ndim == 2:
            return product
        classes: int = self._first.classes
        flat: FloatArray = product[:, :classes].swapaxes(1, 2).reshape(self.shape)
        return flat

    def _residual_limits(self, clip: float, norm: Norm) -> Limits:
        if self._limits is None or self._limits[:2] != (clip, norm):
            each = [model._residual_limits(clip, norm) for model in self.models]
            dropped = None
            if any(one.dropped is not None for one in each):
                none = np.zeros(self.num_examples, bool)
                dropped = np.stack([none if one.dropped is None else one.dropped for one in each])
            limits = Limits(np.stack([one.most for one in each]), dropped)
            self._limits = clip, norm, limits
        return self._limits[2]

    def _clip_residuals(self, residuals: FloatArray, limits: Limits, norm: Norm) -> None:
        self._first._clip_residuals(residuals, limits, norm)


STACK_BYTES = 1 << 22
"""Bytes of features in one stack of a total gradient: they stay in the cache."""
KEPT_BYTES = 1 << 28
"""Bytes of features up to which a total gradient keeps a second copy of the data in stacks."""


def total_gradient(problems: Sequence[Any]) -> Callable[[FloatArray], FloatArray]:
    """Return the function x -> sum_i grad f_i(x), shape (dim,), summed in the problems' order.

    Problems that can be stacked are copied into small stacks, which the function keeps, unless
    they have more than `KEPT_BYTES`: those are asked one by one. A row has the bits that its
    problem gives alone.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, problem in enumerate(problems):
        groups.setdefault(stack_key(problem), []).append(place)
    alone = groups.pop(None, [])
    stackable = [place for places in groups.values() for place in places]
    if sum(problems[place].features.nbytes for place in stackable) > KEPT_BYTES:
        groups, alone = {}, [*alone, *stackable]
    stacks: list[tuple[list[int], Stack]] = []
    for places in groups.values():
        size = max(1, STACK_BYTES // problems[places[0]].features.nbytes)
        for begin in range(0, len(places), size):
            some = places[begin : begin + size]
            stack = Stack([problems[place] for place in some])
            if stack.agrees():
                stacks.append((some, stack))
            else:
                alone += some

    def total(x: FloatArray) -> FloatArray:
        rows: list[FloatArray] = [x] * len(problems)
        for place in alone:
            rows[place] = problems[place].gradient(x)
        for places, stack in stacks:
            together = stack.gradient(np.broadcast_to(x, stack.shape))
            for place, row in zip(places, together, strict=True):
                rows[place] = row
        summed: FloatArray = np.sum(rows, axis=0)
        return summed

    return total


__all__ = ["LARGEST_MEMBER", "Observed", "Stack", "stack_key", "total_gradient"]
