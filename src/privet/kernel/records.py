"""Privacy-critical: the interface of an agent's records: clipped sums, values, gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
"""A float32 or float64 array."""

RowIndex: TypeAlias = npt.NDArray[np.integer[Any]] | None
"""Examples of a mini-batch (repetitions count); ``None`` stands for all of them."""

Norm: TypeAlias = Literal["l1", "l2"]
"""The norm in which a sensitivity is measured."""


@dataclass(frozen=True, slots=True)
class Moduli:
    """Bounds of the Hessian: ``strong_convexity * I <= hess f(x) <= smoothness * I`` for all x.

    ``strong_convexity`` (lambda of the Fed-PLT paper) is negative for a weakly convex f.
    """

    strong_convexity: float
    smoothness: float

    def __add__(self, other: Moduli) -> Moduli:
        return Moduli(
            self.strong_convexity + other.strong_convexity, self.smoothness + other.smoothness
        )


def best_step(moduli: Moduli, rho: float) -> float:
    """Return 2 / (L + lambda + 2/rho), the best fixed step on min_w f(w) + ||w - v||^2 / (2 rho).

    Fed-PLT paper, Section IV-B; ``moduli`` are those of f.
    """
    return 2.0 / (moduli.smoothness + moduli.strong_convexity + 2.0 / rho)


@runtime_checkable
class Problem(Protocol):
    """The smooth part f_i of one agent, as a function of a flat vector.

    Attributes
    ----------
    dim : int
        Length of x.
    dtype : np.dtype
        float32 or float64; x and every result have it.
    num_examples : int
        Examples the agent holds.
    """

    dim: int
    dtype: np.dtype[Any]
    num_examples: int

    def value(self, x: FloatArray) -> float:
        """Return f_i(x)."""
        ...

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Return the gradient, shape (dim,); with ``rows`` its estimate from a mini-batch."""
        ...


@runtime_checkable
class Samplable(Problem, Protocol):
    """A problem that can leave records out of a clipped sum in their place."""

    def sampled_term(
        self, x: FloatArray, clip: float, kept: npt.NDArray[np.bool_], expected: int
    ) -> tuple[npt.NDArray[np.float64], FloatArray | None]:
        """Return ``clipped_term`` of the records that are ``kept`` (n,), divided by D.

        ``expected`` is the public number of examples that are kept on average.

        Privacy: whoever writes one vouches that what a record adds has the same bits whichever
        others are kept, and that the sum is rounded no worse than `clipped_sensitivity` says.
        """
        ...


class BatchClippable(Problem, Protocol):
    """A problem that can bound the data term of a whole batch's gradient."""

    def batch_clipped_gradient(
        self, x: FloatArray, clip: float, rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with its data term scaled down to l2 norm ``clip`` as a whole."""
        ...


@runtime_checkable
class ClippableProblem(Problem, Protocol):
    """A problem whose per-example gradients can be bounded, as privacy needs it.

    A custom class has ``clipped_gradient``, all of which is then noised. It may also have

        clipped_term(x, clip, norm, rows, clipping) -> (value, rest)

    which gives the clipped data term in float64, and separately the part that does not depend on
    the data: the regulariser's gradient in the problem's dtype, or None. Noise then meets the data
    term alone.
    ``clipping`` is "example" or "batch" (the data term is scaled to l2 norm ``clip`` as a whole),
    and ``value`` + ``rest`` is ``clipped_gradient``. Every number must be finite, whatever the
    records are: examples whose gradient is not count as zero.

    Privacy: whoever writes one vouches that replacing one example moves ``clipped_gradient`` (or
    ``value``) by at most `clipped_sensitivity`, 2 clip / D and its margin for rounding, in
    ``norm``, at every x, where D is its attribute ``divisor`` (``num_examples`` without one).
    """

    def clipped_gradient(
        self, x: FloatArray, clip: float, norm: Norm = "l2", rows: RowIndex = None
    ) -> FloatArray:
        """Return the gradient with every example's data term clipped to norm ``clip``.

        With ``rows`` the data term is n/(D b) times the sum over the b examples of the batch.
        """
        ...


def can_clip(problem: Problem) -> TypeGuard[ClippableProblem]:
    """Return whether a problem can bound its per-example gradients: it has ``clipped_gradient``."""
    return callable(getattr(problem, "clipped_gradient", None))


def can_clip_batches(problem: Problem) -> TypeGuard[BatchClippable]:
    """Return whether a problem can bound the gradient of a whole batch."""
    return callable(getattr(problem, "batch_clipped_gradient", None))
