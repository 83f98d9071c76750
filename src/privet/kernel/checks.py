"""Privacy-critical: checks of the plain numbers and the rows that the kernel is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .records import FloatArray

_NUMBERS = 1 << 21
"""Numbers of a table that are looked at a time."""


def positive(**numbers: float) -> None:
    """Raise ValueError naming the first argument that is not a finite number > 0."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, expected a finite number > 0")


def non_negative(**numbers: float) -> None:
    """Raise ValueError naming the first argument that is not a finite number >= 0."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}, expected a finite number >= 0")


def at_least_one(**numbers: int) -> None:
    """Raise ValueError naming the first argument that is not an integer >= 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, expected an integer >= 1")


def count_in(mapping: Mapping[str, Any], key: str, default: int) -> int:
    """Return a whole number >= 1 of a node config, or the default (raises ``ValueError``)."""
    value = mapping.get(key, default)
    if type(value) is not int or (key in mapping and value < 1):
        raise ValueError(f"node-config: {key} = {value!r}, expected a number >= 1")
    return value


def flag_in(mapping: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Return true or false of a node config, or the default (raises ``ValueError``)."""
    value = mapping.get(key, default)
    if type(value) is not bool:
        raise ValueError(f"node-config: {key} = {value!r}, expected true or false")
    return value


def check_features(features: npt.ArrayLike) -> FloatArray:
    """Return the features as a read-only C-contiguous (n, d) float32 or float64 array.

    Integers and booleans become float64. An array that already qualifies is not copied.
    """
    array = np.asarray(features)
    if array.shape[:1] == (0,):
        raise ValueError("agent has no data")
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"features must have shape (examples, features), found {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"features must be real numbers, found dtype {array.dtype}")
    dtype = array.dtype if array.dtype in (np.float32, np.float64) else np.float64
    result: FloatArray = np.ascontiguousarray(array, dtype=dtype).view()
    step = max(1, _NUMBERS // result.shape[1])
    if not all(np.isfinite(result[at : at + step]).all() for at in range(0, len(result), step)):
        row, column = np.argwhere(~np.isfinite(result))[0]
        found = result[row, column]
        raise ValueError(f"features must be finite, found {found} in row {row}, column {column}")
    result.flags.writeable = False
    return result


def check_positive(name: str, value: float) -> float:
    """Return ``value`` as a float, refusing what is not finite and positive."""
    number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise ValueError(f"{name} must be finite and positive, found {value}")
    return number


def check_non_negative(name: str, value: float) -> float:
    """Return ``value`` as a float, refusing what is not finite or below 0."""
    number = float(value)
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(f"{name} must be finite and at least 0, found {value}")
    return number
