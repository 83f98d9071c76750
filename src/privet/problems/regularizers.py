"""Privacy-critical: smooth regularisers r(x) added to an agent's mean loss; no record enters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from privet.kernel.checks import check_non_negative
from privet.kernel.records import FloatArray, Moduli


class Regularizer(Protocol):
    """A separable smooth term r(x); every result has the dtype of x."""

    kind: ClassVar[str]
    """Its name, as in `make_regularizer`."""

    def value(self, x: FloatArray) -> float:
        """Return r(x)."""
        ...

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the gradient of r, shape of x."""
        ...

    def curvature(self, x: FloatArray) -> FloatArray:
        """Return the diagonal of the (diagonal) Hessian of r, shape of x."""
        ...

    @property
    def moduli(self) -> Moduli:
        """The exact range of the curvature over all x."""
        ...


@dataclass(frozen=True, slots=True)
class NoRegularizer:
    """r(x) = 0."""

    kind: ClassVar[str] = "none"

    def value(self, x: FloatArray) -> float:
        return 0.0

    def gradient(self, x: FloatArray) -> FloatArray:
        return np.zeros_like(x)

    def curvature(self, x: FloatArray) -> FloatArray:
        return np.zeros_like(x)

    @property
    def moduli(self) -> Moduli:
        return Moduli(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class L2:
    """r(x) = weight * ||x||^2 / 2."""

    kind: ClassVar[str] = "l2"

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_non_negative("regularizer weight", self.weight))

    def value(self, x: FloatArray) -> float:
        return 0.5 * self.weight * float(x.dot(x))

    def gradient(self, x: FloatArray) -> FloatArray:
        return x * self.weight

    def curvature(self, x: FloatArray) -> FloatArray:
        return np.full_like(x, self.weight)

    @property
    def moduli(self) -> Moduli:
        return Moduli(self.weight, self.weight)


@dataclass(frozen=True, slots=True)
class SlopesL2:
    """r(x) = weight * ||x||^2 / 2 without the last ``free`` coordinates, the intercepts.

    Its kind is not that of `L2`: no certificate may count on its strong convexity.
    """

    kind: ClassVar[str] = "l2-slopes"

    weight: float
    free: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_non_negative("regularizer weight", self.weight))

    def value(self, x: FloatArray) -> float:
        slopes = x[: x.size - self.free]
        return 0.5 * self.weight * float(slopes.dot(slopes))

    def gradient(self, x: FloatArray) -> FloatArray:
        result: FloatArray = x * self.weight
        result[..., x.shape[-1] - self.free :] = 0.0
        return result

    def curvature(self, x: FloatArray) -> FloatArray:
        diagonal = np.full_like(x, self.weight)
        diagonal[..., x.shape[-1] - self.free :] = 0.0
        return diagonal

    @property
    def moduli(self) -> Moduli:
        """The range of the curvature: from 0 where there are intercepts, which have none."""
        return Moduli(0.0 if self.free else self.weight, self.weight)


USUAL_WEIGHT = 0.05
"""Weight of the l2 term in place of a `PooledL2` in private runs, and of objectives without one."""


@dataclass(frozen=True, slots=True)
class PooledL2(SlopesL2):
    """The penalty of scikit-learn's LogisticRegression with some C on the rows of all agents.

    Its weight is 1 / (C D N), D the common divisor of the N agents' losses: C D sum_i f_i is then
    C times the sum of all losses plus ||x||^2 / 2 without the intercepts. An agent does not know D
    and N before a run; the run sends them to agents whose penalties are of this kind.
    """

    kind: ClassVar[str] = "l2-pooled"


@dataclass(frozen=True, slots=True)
class Nonconvex:
    """r(x) = weight * sum_j x_j^2 / (1 + x_j^2), the term of Fed-PLT and of BSDP-FedPDM (41).

    Its second derivative 2 (1 - 3 u) / (1 + u)^3, u = x_j^2, is largest (2) at u = 0 and
    smallest (-1/2) at u = 1.
    """

    kind: ClassVar[str] = "nonconvex"

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_non_negative("regularizer weight", self.weight))

    def value(self, x: FloatArray) -> float:
        square = x * x
        return self.weight * float(np.sum(square / (1.0 + square)))

    def gradient(self, x: FloatArray) -> FloatArray:
        # Multiplying by the inverse twice keeps (1 + x^2)^2 from overflowing in float32.
        inverse = 1.0 / (1.0 + x * x)
        result: FloatArray = x * inverse * inverse * (2.0 * self.weight)
        return result

    def curvature(self, x: FloatArray) -> FloatArray:
        square = x * x
        inverse = 1.0 / (1.0 + square)
        result: FloatArray = (
            (1.0 - 3.0 * square) * inverse * inverse * inverse * (2.0 * self.weight)
        )
        return result

    @property
    def moduli(self) -> Moduli:
        return Moduli(-0.5 * self.weight, 2.0 * self.weight)


CONVEX_KINDS = (NoRegularizer.kind, L2.kind, SlopesL2.kind, PooledL2.kind)
"""Kinds of the regularisers that are convex."""

_BUILDERS: dict[str, Callable[[float], Regularizer]] = {
    "none": lambda weight: NoRegularizer(),
    "l2": L2,
    "nonconvex": Nonconvex,
}

REGULARIZER_NAMES = tuple(_BUILDERS)
"""Names `make_regularizer` knows."""


def make_regularizer(name: str, weight: float = 0.0) -> Regularizer:
    """Build a regulariser by its name in the run config: none, l2 or nonconvex.

    Raises
    ------
    ValueError
        For an unknown name or a weight that is negative or not finite.
    """
    if name not in _BUILDERS:
        raise ValueError(f"regularizer = {name!r} is unknown; known: {', '.join(_BUILDERS)}")
    return _BUILDERS[name](weight)
