"""Noise must not be lost in rounding: beside huge numbers a small draw adds nothing at all."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privet.wire import ConfigError, magnitude_bound

UNITS = 16.0

Real = TypeVar("Real", bound=np.floating[Any])


def require_audible(scale: float, *arrays: NDArray[Any]) -> None:
    """Refuse noise that rounding would swallow, as beside numbers sent to be too large for it.

    Raises
    ------
    ConfigError
        If the standard deviation is below 16 units in the last place of the largest number, or a
        number is not finite. Give it only what the server knows or what has been noised before,
        so that the refusal betrays nothing.
    """
    if not scale > 0:
        return
    unit = float(np.finfo(arrays[0].dtype).eps)
    limit = scale / (UNITS * unit)
    unclear = [a for a in arrays if a.dtype.kind != "f" or not magnitude_bound(a) <= limit]
    if not unclear:
        return
    # Through float64, because -2^63 has no absolute value among the integers; one array after the
    # other, because Python's max() overlooks what is not a number.
    sizes = [float(np.abs(array.astype(np.float64, copy=False)).max()) for array in unclear]
    size = max(sizes)
    if not all(scale >= UNITS * unit * each for each in sizes):
        raise ConfigError(f"noise of scale {scale:.3g} would be lost in rounding at {size:.3g}")


def within_earshot(scale: float, array: NDArray[Real]) -> NDArray[Real]:
    """Return the array with its numbers held to where noise of this scale can still be heard.

    For numbers that nobody else may know: a refusal would betray them. No two arrays are further
    apart afterwards than before.
    """
    limit = scale / (UNITS * float(np.finfo(array.dtype).eps))
    held: NDArray[Real] = np.clip(array, -limit, limit)
    return held
