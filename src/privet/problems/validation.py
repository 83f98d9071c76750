"""Checks of an agent's data, each with a one-line error that describes the fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from privet.kernel.records import FloatArray


def check_signs(labels: npt.ArrayLike, features: FloatArray) -> FloatArray:
    """Return labels -1 and +1 as a vector with the dtype of the features."""
    array = _one_per_example(labels, features, "labels")
    wrong = (array != 1) & (array != -1)
    if wrong.any():
        raise ValueError(f"labels must be -1 or +1, found {array[wrong][0]}")
    result: FloatArray = array.astype(features.dtype)
    return result


def check_classes(
    labels: npt.ArrayLike, features: FloatArray, classes: int
) -> npt.NDArray[np.intp]:
    """Return class numbers 0..classes-1 as an integer vector."""
    if classes < 2:
        raise ValueError(f"classes must be at least 2, found {classes}")
    array = _one_per_example(labels, features, "labels")
    wrong = ~((array >= 0) & (array < classes) & (array == np.floor(array)))
    if wrong.any():
        raise ValueError(f"labels must be integers 0..{classes - 1}, found {array[wrong][0]}")
    return array.astype(np.intp)


def check_targets(targets: npt.ArrayLike, features: FloatArray) -> FloatArray:
    """Return finite regression targets as a vector with the dtype of the features."""
    array = _one_per_example(targets, features, "targets")
    with np.errstate(over="ignore"):
        result: FloatArray = array.astype(features.dtype)
    wrong = ~np.isfinite(result)
    if wrong.any():
        raise ValueError(f"targets must be finite in {features.dtype}, found {array[wrong][0]}")
    return result


def _one_per_example(values: npt.ArrayLike, features: FloatArray, name: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.shape != features.shape[:1]:
        raise ValueError(
            f"{name} must have shape ({features.shape[0]},) as features have "
            f"{features.shape[0]} rows, found {array.shape}"
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real numbers, found dtype {array.dtype}")
    return array
