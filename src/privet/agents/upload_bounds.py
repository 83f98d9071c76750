"""Bounds on the l2 norm of what an honest private agent uploads, from public numbers alone.

The norms of the vectors that both sides hold, and of what a clip and a noise can add to them, are
carried along an agent's own steps by the triangle inequality. A bound is passed with a chance of
less than 1e-12, that of the noise (`privet.kernel.norm_bound`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privet.kernel import Facts

_ROUNDING = 1e-6
"""Share of an iterate's norm that the rounding of a float32 step is at most."""


def norm_of(vector: Any) -> float:
    """Return ||v||, infinite where its square overflows."""
    return math.sqrt(np.vdot(vector, vector))


def is_bounded(facts: Facts) -> bool:
    """Whether all that a gradient has beside its clipped data term is known: an l2 term, or none.

    A problem of the user's may have terms of its own, and its training loop its own steps.
    """
    return facts.linear and facts.regularizer in ("none", "l2", "l2-slopes")


def decay_of(facts: Facts) -> float:
    """Return beta, by which a gradient has beta x of some or all coordinates (`is_bounded`)."""
    return max(facts.modulus, facts.penalty)


def data_term(facts: Facts, clip: float, rate: float = 1.0) -> float:
    """Return the largest norm of a clipped gradient: C n / (q D), or C of a whole clipped batch."""
    return max(facts.num_examples / (facts.divisor * rate), 1.0) * clip


def iterate_bound(start: float, keep: float, decay: float, moved: float, steps: int) -> float:
    """Return the largest ||w|| of the iterates w <- (c - e) w + m, the start included.

    ``keep`` is c, ``decay`` the e >= 0 of those coordinates that have any, ``moved`` bounds ||m||,
    ``start`` the norm of the first w.
    """
    factor = max(abs(keep), abs(keep - decay)) + _ROUNDING
    try:
        power = factor**steps
        sums = steps if factor == 1.0 else (power - 1.0) / (factor - 1.0)
    except OverflowError:
        return math.inf
    return max(start, power * start + sums * moved)


__all__ = ["data_term", "decay_of", "is_bounded", "iterate_bound", "norm_of"]
