"""Noise must not be lost in rounding: beside huge numbers a small draw adds nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.wire import ConfigError

UNITS = 16.0


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
    size = max(float(np.abs(array).max()) for array in arrays)
    unit = float(np.finfo(arrays[0].dtype).eps)
    if not scale >= UNITS * unit * size:
        raise ConfigError(f"noise of scale {scale:.3g} would be lost in rounding at {size:.3g}")
