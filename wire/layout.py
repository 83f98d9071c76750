"""One flat vector for the algorithms, the user's own named arrays for the user."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and dtypes of the arrays of a model, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Return the layout of an ``ArrayRecord``.

        Raises
        ------
        ConfigError
            If there is no array or one does not hold floating-point numbers.
        """
        if not arrays:
            raise ConfigError("initial arrays are empty: give the model's starting parameters")
        for name, array in arrays.items():
            if np.dtype(array.dtype).kind != "f":
                raise ConfigError(f"array {name!r} is {array.dtype}: parameters must be floats")
        return cls(
            tuple(arrays.keys()),
            tuple(tuple(array.shape) for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )

    @property
    def dim(self) -> int:
        """Number of scalars in the flat vector."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the flat vector: float32 if all arrays are, else float64."""
        return np.dtype("f4") if set(self.dtypes) == {"float32"} else np.dtype("f8")

    def flatten(self, arrays: ArrayRecord) -> NDArray[Any]:
        """Return the arrays as one flat vector, in the order of the layout."""
        parts = [arrays[name].numpy().reshape(-1) for name in self.names]
        return np.concatenate(parts).astype(self.dtype, copy=False)

    def restore(self, vector: NDArray[Any]) -> ArrayRecord:
        """Return the vector as the named arrays, in their own shapes and dtypes."""
        record: dict[str, Array] = {}
        at = 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            size = prod(shape)
            part = np.array(vector[at : at + size], dtype=dtype).reshape(shape)
            record[name] = Array(part)
            at += size
        return ArrayRecord(record)
