"""Ones at given places of a bit string: the unary part of a Golomb-Rice code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError

Places = NDArray[np.intp]


def pack_ones(places: NDArray[np.signedinteger[Any]]) -> bytes:
    """Return the bit string, low bits first, that has ones at these increasing places alone."""
    bits = np.zeros(int(places[-1]) + 1, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_ones(
    code: NDArray[np.uint8], count: int, what: str, error: type[WireError] = WireError
) -> Places:
    """Return the places of ``pack_ones``.

    Raises
    ------
    WireError
        Or the ``error`` given, if there are not ``count`` of ``what``, or bytes behind the last.
    """
    places: Places = np.flatnonzero(np.unpackbits(code, bitorder="little").view(np.bool_))
    if len(places) != count or places[-1] >> 3 != len(code) - 1:
        raise error(f"{len(places)} {what} are coded, expected {count}")
    return places
