"""Privacy-critical: how large the numbers of an array are, in one pass where that settles it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = {8: 1e100, 4: 1e15}
"""Magnitude of received numbers at most, by size of a float in bytes: squares stay finite."""
_SMALLEST = 1e-18
"""Below it the squares of float32 lose their digits."""


def magnitude_bound(array: NDArray[Any]) -> float:
    """Return a number that no magnitude in an array of floats exceeds.

    It is about twice the Euclidean norm; infinite or not a number where an entry is so, or where
    the squares overflow. One pass and no copy, which the largest magnitude itself would take.
    """
    # Unlike `dot`, `vdot` does not warn where squares overflow.
    return 2.0 * math.sqrt(np.vdot(array, array)) + _SMALLEST


def finite(array: NDArray[Any]) -> bool:
    """Whether every entry is a finite number."""
    if array.dtype.kind == "f" and math.isfinite(magnitude_bound(array)):
        return True
    return bool(np.isfinite(array).all())
