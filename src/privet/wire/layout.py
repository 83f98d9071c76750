"""One flat vector for the algorithms, the user's own named arrays for the user."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core.errors import ConfigError, WireError, one_line

_MOST_DIMS, _LARGEST_SIZE = 32, 1 << 53
_FLOATS = {
    str(dtype): dtype.itemsize
    for dtype in (np.dtype(order + kind) for order in "<>" for kind in "efdg")
}
"""Bytes of a number by the names of the dtypes of floats; no other text is read as a dtype."""


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
            If there is no array, or one does not hold floating-point numbers or has no shape.
        """
        if not arrays:
            raise ConfigError("initial arrays are empty: give the model's starting parameters")
        for name, array in arrays.items():
            if array.dtype not in _FLOATS:
                raise ConfigError(
                    f"array {one_line(name)!r} is {one_line(array.dtype)}: "
                    "parameters must be floats"
                )
            if not _is_shape(array.shape):
                raise ConfigError(f"array {one_line(name)!r} has a shape that no array has")
        return cls(
            tuple(arrays.keys()),
            tuple(tuple(array.shape) for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )

    @classmethod
    def of_floats(cls, arrays: ArrayRecord) -> Layout:
        """Return the layout of a record's arrays of floats (raises ``ConfigError`` for none)."""
        floats = {name: array for name, array in arrays.items() if array.dtype in _FLOATS}
        return cls.of(ArrayRecord(floats) if floats else arrays)

    @property
    def dim(self) -> int:
        """Number of scalars in the flat vector."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the flat vector: float64 if an array is, else float32."""
        return np.dtype(self.dtype_name)

    @property
    def dtype_name(self) -> str:
        """The name of ``dtype``."""
        return "float64" if "float64" in self.dtypes else "float32"

    def difference(self, expected: Layout) -> str:
        """Return the first array that is not the one expected, empty where all are.

        A name may have more in front, as those of a wrapped module do; one flat array stands for
        any. Dtypes are not compared: they may differ from the wire's.
        """
        if self.is_flat or expected.is_flat:
            return ""
        pairs = zip_longest(
            zip(self.names, self.shapes, strict=True),
            zip(expected.names, expected.shapes, strict=True),
        )
        for ours, other in pairs:
            if ours is None or other is None:
                return f"{_described(ours)} where {_described(other)} is expected"
            (name, shape), (known, planned) = ours, other
            alike = f".{name}".endswith(f".{known}") or f".{known}".endswith(f".{name}")
            if not alike or shape != planned:
                return f"{_described(ours)} where {_described(other)} is expected"
        return ""

    def chosen(self, part: Layout) -> Layout | None:
        """Return those of these arrays that ``part`` names, None where they are not all here.

        They are in the same order. All names of one side may have the same prefix more, as those of
        a wrapped module do.
        """
        places = {each: i for i, each in enumerate(zip(self.names, self.shapes, strict=True))}
        for name in self.names if 0 < len(part.names) <= len(self.names) else ():
            first = part.names[0]
            ends = f".{name}".endswith(f".{first}"), f".{first}".endswith(f".{name}")
            more = name.removesuffix(first) if ends[0] else ""
            less = first.removesuffix(name) if ends[1] else ""
            if not (any(ends) and _all_begin(self.names, more) and _all_begin(part.names, less)):
                continue
            names = (more + each.removeprefix(less) for each in part.names)
            found = [places.get(each, -1) for each in zip(names, part.shapes, strict=True)]
            if found[0] >= 0 and found == sorted(set(found)):
                return Layout(
                    tuple(self.names[i] for i in found),
                    tuple(self.shapes[i] for i in found),
                    tuple(self.dtypes[i] for i in found),
                )
        return None

    @property
    def is_flat(self) -> bool:
        """Whether it is one array of one dimension."""
        return len(self.shapes) == 1 and len(self.shapes[0]) == 1

    def to_json(self) -> str:
        """Return names and shapes as one JSON text, for the enrolment."""
        return json.dumps(list(zip(self.names, self.shapes, strict=True)), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Return the layout of ``to_json``, without dtypes (raises ``ValueError``)."""
        try:
            pairs = [(name, tuple(shape)) for name, shape in json.loads(text)]
        except (ValueError, TypeError, RecursionError):
            raise ValueError("its layout is no list of names and shapes") from None
        for name, shape in pairs:
            if type(name) is not str or not _is_shape(shape):
                raise ValueError("its layout has an array of no name or shape")
        return cls(
            tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs), ("",) * len(pairs)
        )

    def flatten(self, arrays: ArrayRecord) -> NDArray[Any]:
        """Return the arrays as one flat vector, in the order of the layout.

        Nothing is allocated for numbers that a shape claims and the array's bytes do not hold.

        Raises
        ------
        WireError
            If an array does not hold what its own shape and dtype say.
        """
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            if prod(shape) * _FLOATS[dtype] > len(arrays[name].data):
                raise WireError(f"array {one_line(name)!r} holds fewer numbers than its shape says")
        vector, at = np.empty(self.dim, self.dtype), 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            part = arrays[name].numpy()
            if part.shape != shape or part.dtype.kind != "f":
                raise WireError(f"array {one_line(name)!r} does not hold what its shape says")
            vector[at : at + part.size] = part.reshape(-1)
            at += part.size
        return vector

    def restore(self, vector: NDArray[Any]) -> ArrayRecord:
        """Return the vector as the named arrays, in their own shapes and dtypes."""
        record: dict[str, Array] = {}
        at = 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            size = prod(shape)
            part = vector[at : at + size].astype(dtype, copy=False).reshape(shape)
            record[name] = Array(part)  # which copies
            at += size
        return ArrayRecord(record)


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return len(shape) <= _MOST_DIMS and all(
        type(size) is int and 0 <= size <= _LARGEST_SIZE for size in shape
    )


def _all_begin(names: tuple[str, ...], prefix: str) -> bool:
    return all(name.startswith(prefix) for name in names)


def _described(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]!r} of shape {entry[1]}"
