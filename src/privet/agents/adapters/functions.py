"""Privacy-critical: plain Python functions as a Problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from privet.core import ConfigError
from privet.kernel import Moduli, Norm, RowIndex
from privet.problems import Regularizer

from ..inputs import Vector
from .finite_sum import FiniteSum


class CallableProblem(FiniteSum):
    """f_i given by two functions of a flat vector.

    Parameters
    ----------
    value : callable
        ``x -> float``, the mean loss over the agent's examples.
    gradient : callable
        ``x -> array (dim,)``, or ``(x, rows) -> array (dim,)`` where ``rows`` is None for all
        examples, else the indices of a mini-batch: the mean gradient over them.
    dim, num_examples : int
        Length of x, and examples the agent holds.
    dtype : dtype-like
        float32 or float64.
    per_example_gradient : callable, optional
        ``(x, rows) -> array (len(rows), dim)``: with it the problem offers
        ``clipped_gradient`` and can take part in private runs; without, it is refused there.
    regularizer, divisor, moduli
        As in `FiniteSum`; the regulariser is added to what the functions give.

    Notes
    -----
    A ``gradient`` of one argument serves full batches only; a mini-batch is a `ConfigError`.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.array([1.0, 3.0])
    >>> f = CallableProblem(lambda x: float(np.mean((x - t) ** 2)) / 2,
    ...                     lambda x: np.array([np.mean(x - t)]), dim=1, num_examples=2)
    >>> f.value(np.array([2.0])), f.gradient(np.array([5.0]))
    (0.5, array([3.]))
    """

    def __init__(
        self,
        value: Callable[[Vector], float],
        gradient: Callable[..., npt.ArrayLike],
        dim: int,
        num_examples: int,
        dtype: npt.DTypeLike = "float64",
        *,
        per_example_gradient: Callable[[Vector, Vector], npt.ArrayLike] | None = None,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
        moduli: Moduli | None = None,
    ) -> None:
        super().__init__(
            dim, num_examples, dtype, regularizer=regularizer, divisor=divisor, moduli=moduli
        )
        self._value, self._gradient = value, gradient
        self._takes_rows = _takes_two(gradient)
        self._per_example = per_example_gradient
        if per_example_gradient is not None:
            # Set on the instance: having the method is what says that a problem can be clipped.
            self.clipped_gradient = self._clip

    def with_divisor(self, divisor: float) -> Self:
        """Return the problem on the same data with another divisor; see `FiniteSum`."""
        other = super().with_divisor(divisor)
        if self._per_example is not None:
            other.clipped_gradient = other._clip  # the copied one is bound to this problem
        return other

    def _mean_loss(self, x: Vector) -> float:
        return float(self._value(x))

    def _mean_gradient(self, x: Vector, rows: RowIndex) -> Vector:
        if self._takes_rows:
            return np.asarray(self._gradient(x, rows))
        if rows is not None:
            raise ConfigError(
                "this problem's gradient takes no rows: use full batches, or gradient(x, rows)"
            )
        return np.asarray(self._gradient(x))

    def _example_gradients(self, x: Vector, rows: RowIndex) -> Iterator[Vector]:
        if self._per_example is None:
            yield from super()._example_gradients(x, rows)
            return
        wanted = np.arange(self.num_examples) if rows is None else np.asarray(rows)
        gradients = np.asarray(self._per_example(x, wanted))
        if gradients.shape != (len(wanted), self.dim):
            raise ConfigError(
                f"per_example_gradient has shape {gradients.shape}, "
                f"expected ({len(wanted)}, {self.dim})"
            )
        yield gradients

    def _clip(self, x: Vector, clip: float, norm: Norm = "l2", rows: RowIndex = None) -> Vector:
        return self._joined(*self.clipped_term(x, clip, norm, rows))


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two positional arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
