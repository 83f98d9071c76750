"""The problem of an agent whose gradients the library never sees."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Self

from privet.core import ConfigError
from privet.kernel import Norm
from privet.wire import Layout

from ..half import Vector


class LoopProblem:
    """The public numbers of a problem whose gradients the library never sees.

    ``step_size`` is the length of a step of its loop, 0 where that is not known.
    """

    def __init__(
        self,
        layout: Layout,
        num_examples: int,
        buffers: Layout | None = None,
        tied: Mapping[str, str] | None = None,
        step_size: float = 0.0,
    ) -> None:
        self.dim, self.dtype, self.num_examples = layout.dim, layout.dtype, num_examples
        self.layout, self.divisor, self.buffers = layout, float(num_examples), buffers
        self.tied, self.step_size = tied or {}, step_size

    def value(self, x: Vector) -> float:
        """Refuse: the loss is the user's."""
        raise ConfigError("the loss of a custom training loop is unknown to this library")

    def gradient(self, x: Vector, rows: Vector | None = None) -> Vector:
        """Refuse: the gradient is the user's."""
        raise ConfigError("the gradient of a custom training loop is unknown to this library")

    def with_divisor(self, divisor: float) -> Self:
        """Return the problem divided by another number, of which `divisor` is the attribute."""
        other = copy.copy(self)
        other.divisor = divisor
        return other


class ClippableLoopProblem(LoopProblem):
    """The problem of a module, whose examples' gradients `LocalRound.private_step` can clip."""

    def clipped_gradient(
        self, x: Vector, clip: float, norm: Norm = "l2", rows: Vector | None = None
    ) -> Vector:
        """Refuse: the steps are the user's."""
        return self.gradient(x, rows)
