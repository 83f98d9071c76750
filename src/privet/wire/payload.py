"""The arrays of a half as the one bytes value of a message, and back.

Named arrays travel in the dense format. A half that has encoded its numbers itself (as a sparse
vector) hands over a single uint8 array named ``ENCODED``; its bytes travel as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError

from . import dense
from .sparse import codec

ENCODED = "encoded"
BUFFERS = "buffers"
"""Name of the array beside a half's own that holds a model's statistics, such as BatchNorm's."""
OF_LOOP = "loop."
"""Beginning of the names of bytes in an agent's state that its own training loop keeps there, such
as a personal layer. They never travel."""


def encoded(data: bytes) -> dict[str, NDArray[Any]]:
    """Return encoded bytes in the form in which halves exchange arrays."""
    return {ENCODED: np.frombuffer(data, np.uint8)}


def opened(arrays: Mapping[str, NDArray[Any]], dim: int) -> dict[str, NDArray[Any]]:
    """Return arrays with an encoded vector, of at most ``dim`` numbers, decoded as ``x`` (d,).

    Raises
    ------
    WireError
        If the bytes are no vector.
    """
    if ENCODED not in arrays:
        return dict(arrays)
    vector = codec.decode(arrays[ENCODED], max_dim=dim)
    x = vector.values if vector.positions is None else vector.to_dense()
    return {"x": x, **{name: array for name, array in arrays.items() if name != ENCODED}}


def to_payload(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes that travel (raises ``WireError`` for arrays that cannot be packed)."""
    if arrays.keys() == {ENCODED}:
        return arrays[ENCODED].tobytes()
    return dense.pack(arrays)


def from_payload(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``to_payload`` as read-only views.

    Raises
    ------
    WireError
        If the bytes are of no format that is known here.
    """
    if data[: len(codec.MAGIC)] == codec.MAGIC:
        return encoded(data)
    if data[: len(dense.MAGIC)] != dense.MAGIC:
        raise WireError("payload is of no known format (wrong magic bytes)")
    return dense.unpack(data)
