"""Privacy-critical: sets W with a projection; each is also the function h, 0 on it, else inf.

Every function keeps the dtype of its argument and returns a new array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from .checks import check_positive
from .records import FloatArray


@runtime_checkable
class ConvexSet(Protocol):
    """A closed convex set with a cheap projection."""

    def value(self, x: FloatArray) -> float:
        """Return 0 for x in the set, inf for others."""
        ...

    def project(self, v: FloatArray) -> FloatArray:
        """Return the point of the set nearest to v in the l2 norm."""
        ...


@dataclass(frozen=True, slots=True)
class Zero:
    """h = 0; as a set, the whole space."""

    def value(self, x: FloatArray) -> float:
        return 0.0

    def project(self, v: FloatArray) -> FloatArray:
        return v.copy()

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        return v  # as long as a model, and every caller has just made it

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        return float(np.linalg.norm(g))


@dataclass(frozen=True, slots=True)
class Box:
    """The set [-radius, radius]^d, or h = its indicator."""

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check_positive("radius", self.radius))

    def value(self, x: FloatArray) -> float:
        return 0.0 if bool(np.all(np.abs(x) <= self._bound(x))) else math.inf

    def project(self, v: FloatArray) -> FloatArray:
        bound = self._bound(v)
        return np.clip(v, -bound, bound)

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        return self.project(v)

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        if self.value(x) > 0.0:
            return math.inf
        bound = self._bound(x)
        blocked = np.where(x == bound, np.maximum(g, 0.0), g)
        blocked = np.where(x == -bound, np.maximum(-g, 0.0), blocked)
        return float(np.linalg.norm(blocked))

    def _bound(self, x: FloatArray) -> np.floating:
        # The radius as the dtype of x holds it, so that a projected point compares equal to it.
        return x.dtype.type(self.radius)


@dataclass(frozen=True, slots=True)
class L2Ball:
    """The set {x: ||x||_2 <= radius}, or h = its indicator.

    A norm above the radius by no more than rounding counts as inside, which makes the
    projection exactly idempotent.
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check_positive("radius", self.radius))

    def value(self, x: FloatArray) -> float:
        return 0.0 if _length(x) <= self.radius + self._rounding(x) else math.inf

    def project(self, v: FloatArray) -> FloatArray:
        norm = _length(v)
        return v.copy() if norm <= self.radius + self._rounding(v) else v * (self.radius / norm)

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        return self.project(v)

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        norm = _length(x)
        if norm > self.radius + self._rounding(x):
            return math.inf
        if norm < self.radius - self._rounding(x):
            return float(np.linalg.norm(g))
        outward = x / norm
        return float(np.linalg.norm(g + max(-float(g.dot(outward)), 0.0) * outward))

    def _rounding(self, x: FloatArray) -> float:
        return 64.0 * float(np.finfo(x.dtype).eps) * self.radius


def _length(x: FloatArray) -> float:
    """Return the l2 norm, also where squares leave the range of the dtype.

    A projection that takes a long vector for endless, or a short one for zero, moves two points
    further apart, which the certificate of output perturbation rules out.
    """
    length = float(np.linalg.norm(x))
    most = 2.0**400 if x.dtype == np.float64 else 2.0**50
    if 1.0 / most <= length <= most:
        return length
    largest = float(np.max(np.abs(x), initial=0.0))
    if not 0.0 < largest < math.inf:
        return largest
    return largest * float(np.linalg.norm(x / largest))


_SETS: dict[str, Callable[[float], ConvexSet]] = {"box": Box, "l2": L2Ball}

SET_NAMES = ("none", *_SETS)
"""Names `make_set` knows."""


def make_set(name: str, radius: float | None = None) -> ConvexSet:
    """Build W from its name in the run config: none, box ([-radius, radius]) or l2 (ball).

    Raises
    ------
    ValueError
        For an unknown name, or a radius that is missing, not finite or not positive.
    """
    if name == "none":
        return Zero()
    if name not in _SETS:
        raise ValueError(f"set = {name!r} is unknown; known: {', '.join(SET_NAMES)}")
    if radius is None:
        raise ValueError(f"set = {name!r} needs set-radius")
    return _SETS[name](check_positive("set-radius", radius))
