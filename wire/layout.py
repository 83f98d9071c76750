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

from privet.core.errors import ConfigError

_MOST_DIMS, _LARGEST_SIZE = 32, 1 << 53


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

    @classmethod
    def of_floats(cls, arrays: ArrayRecord) -> Layout:
        """Return the layout of a record's arrays of floats (raises ``ConfigError`` for none)."""
        floats = {n: array for n, array in arrays.items() if np.dtype(array.dtype).kind == "f"}
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
            more = name.removesuffix(first) if f".{name}".endswith(f".{first}") else ""
            less = first.removesuffix(name) if f".{first}".endswith(f".{name}") else ""
            if not (_all_begin(self.names, more) and _all_begin(part.names, less)):
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
            if type(name) is not str or len(shape) > _MOST_DIMS or not all(map(_is_size, shape)):
                raise ValueError("its layout has an array of no name or shape")
        return cls(
            tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs), ("",) * len(pairs)
        )

    def flatten(self, arrays: ArrayRecord) -> NDArray[Any]:
        """Return the arrays as one flat vector, in the order of the layout."""
        vector, at = np.empty(self.dim, self.dtype), 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            part = arrays[name].numpy().reshape(-1)
            vector[at : at + prod(shape)] = part
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


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_SIZE


def _all_begin(names: tuple[str, ...], prefix: str) -> bool:
    return all(name.startswith(prefix) for name in names)


def _described(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]!r} of shape {entry[1]}"
