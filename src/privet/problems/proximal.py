"""The shared non-smooth term h: values, proximal operators and optimality residuals.

Every function keeps the dtype of its argument and returns a new array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from privet.kernel.checks import check_non_negative, check_positive
from privet.kernel.records import FloatArray
from privet.kernel.sets import Box, L2Ball, Zero


@runtime_checkable
class ProximalFunction(Protocol):
    """A closed convex function h with a cheap proximal operator."""

    def value(self, x: FloatArray) -> float:
        """Return h(x), inf outside its domain."""
        ...

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        """Return argmin_x h(x) + ||x - v||^2 / (2 step), for step > 0; it may be v itself."""
        ...

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        """Return the l2 distance of -g to the subdifferential of h at x.

        With g the gradient of f at x it is 0 iff x minimises f + h (f convex); inf when x is
        outside the domain.
        """
        ...


@dataclass(frozen=True, slots=True)
class ElasticNet:
    """h(x) = weight * (ratio ||x||_1 + (1 - ratio) ||x||^2 / 2), scikit-learn's convention.

    ratio = 1 is the l1 norm.
    """

    weight: float
    ratio: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_non_negative("h-weight", self.weight))
        object.__setattr__(self, "ratio", check_non_negative("h-ratio", self.ratio))
        if self.ratio > 1.0:
            raise ValueError(f"h-ratio must be in [0, 1], found {self.ratio}")

    @property
    def _threshold(self) -> float:
        return self.weight * self.ratio

    @property
    def _curvature(self) -> float:
        return self.weight * (1.0 - self.ratio)

    def value(self, x: FloatArray) -> float:
        return self._threshold * float(np.abs(x).sum()) + 0.5 * self._curvature * float(x.dot(x))

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        result = soft_threshold(v, float(step) * self._threshold)
        result /= 1.0 + float(step) * self._curvature
        return result

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        smooth = g + self._curvature * x
        at_zero = np.maximum(np.abs(smooth) - self._threshold, 0.0)
        return float(
            np.linalg.norm(np.where(x == 0.0, at_zero, smooth + self._threshold * np.sign(x)))
        )


@dataclass(frozen=True, slots=True)
class GroupL1:
    """h(x) = weight * sum_g ||x_g||_2 over consecutive groups of ``group_size`` coordinates.

    ``group_size`` must divide the length of x. With a multinomial model flattened in C order,
    ``group_size`` = classes makes one group a feature.
    """

    weight: float
    group_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_non_negative("h-weight", self.weight))
        if self.group_size != int(self.group_size) or self.group_size < 1:
            raise ValueError(f"h-group-size must be a positive integer, found {self.group_size}")
        object.__setattr__(self, "group_size", int(self.group_size))

    def _groups(self, x: FloatArray) -> FloatArray:
        if x.size % self.group_size:
            raise ValueError(f"h-group-size {self.group_size} does not divide {x.size} parameters")
        return x.reshape(-1, self.group_size)

    def value(self, x: FloatArray) -> float:
        return self.weight * float(np.linalg.norm(self._groups(x), axis=1).sum())

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        groups = self._groups(v)
        norms = np.linalg.norm(groups, axis=1, keepdims=True)
        threshold = float(step) * self.weight
        kept = np.maximum(norms - threshold, 0.0)
        # Where nothing is kept the norm may be 0; any other divisor serves.
        result: FloatArray = groups * (kept / np.where(kept > 0.0, norms, 1.0))
        return result.reshape(v.shape)

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        groups, slopes = self._groups(x), self._groups(g)
        norms = np.linalg.norm(groups, axis=1, keepdims=True)
        zero = norms == 0.0
        direction = groups / np.where(zero, 1.0, norms)
        elsewhere = np.linalg.norm(slopes + self.weight * direction, axis=1)
        at_zero = np.maximum(np.linalg.norm(slopes, axis=1) - self.weight, 0.0)
        return float(np.linalg.norm(np.where(zero[:, 0], at_zero, elsewhere)))


@dataclass(frozen=True, slots=True)
class Scaled:
    """The function factor * h, for factor > 0."""

    h: ProximalFunction
    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", check_positive("factor", self.factor))

    def value(self, x: FloatArray) -> float:
        return self.factor * self.h.value(x)

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        return self.h.prox(v, step * self.factor)

    def subgradient_residual(self, x: FloatArray, g: FloatArray) -> float:
        return self.factor * self.h.subgradient_residual(x, g / self.factor)


def soft_threshold(v: FloatArray, threshold: float) -> FloatArray:
    """Return sign(v) max(|v| - threshold, 0), with exact zeros, as a new array."""
    result: FloatArray = v - np.clip(v, -threshold, threshold)
    return result


_H_KEYS = ("h-weight", "h-ratio", "h-radius", "h-group-size")

_H: dict[str, tuple[Callable[..., ProximalFunction], tuple[str, ...]]] = {
    "zero": (Zero, ()),
    "l1": (ElasticNet, ("h-weight",)),
    "elastic-net": (ElasticNet, ("h-weight", "h-ratio")),
    "box": (lambda radius: Box(check_positive("h-radius", radius)), ("h-radius",)),
    "l2-ball": (lambda radius: L2Ball(check_positive("h-radius", radius)), ("h-radius",)),
    "group-l1": (GroupL1, ("h-weight", "h-group-size")),
}

H_NAMES = tuple(_H)
"""Names `make_h` knows."""


def make_h(name: str, **params: float | None) -> ProximalFunction:
    """Build h from its name and parameters in the run config.

    Parameters
    ----------
    name : str
        zero; l1 (needs ``h-weight``); elastic-net (``h-weight``, ``h-ratio``); box or l2-ball
        (``h-radius``); group-l1 (``h-weight``, ``h-group-size``).
    **params
        Values by those keys. Keys the function does not need are ignored, None counts as absent.

    Raises
    ------
    ValueError
        For an unknown name or key, a missing key, or a value out of range.
    """
    if name not in _H:
        raise ValueError(f"h = {name!r} is unknown; known: {', '.join(H_NAMES)}")
    for key in params:
        if key not in _H_KEYS:
            raise ValueError(f"{key} is not a parameter of h; known: {', '.join(_H_KEYS)}")
    builder, needed = _H[name]
    for key in needed:
        if params.get(key) is None:
            raise ValueError(f"h = {name!r} needs {key}")
    return builder(*(params[key] for key in needed))
