"""Sorted index sets as few bits: Golomb-Rice coded gaps, whose zero parameter is the bitmap.

Of k indices in ascending order the gaps g_i = idx_i - idx_{i-1} - 1 >= 0 are split into a quotient
g_i >> b and b remainder bits. Quotients are in unary (that many zeros, then a one) in one bit
string; with b = 0 that string *is* the bitmap of the set. The remainders follow as b bit planes of
k bits. S. W. Golomb, "Run-length encodings" (1966); R. F. Rice, "Some practical universal noiseless
coding techniques" (1979).

A decoded set is strictly increasing by construction: a gap cannot be negative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError

from ..unary import pack_ones, unpack_ones

Indices = NDArray[np.intp]
Octets = NDArray[np.uint8]


class SparseError(WireError):
    """Bytes that are not a sparse payload of this format, or values that cannot become one."""


def encode_indices(indices: Indices, dim: int) -> tuple[int, bytes]:
    """Return the Rice parameter b and the coded set.

    Parameters
    ----------
    indices : array (k,), k >= 1
        Strictly increasing, in 0 ... dim - 1.

    Returns
    -------
    b : int
        The cheapest parameter; 0 is the bitmap.
    code : bytes
        k (b + 1) + sum(g_i >> b) bits, each of the two bit strings rounded up to bytes.
    """
    gaps = np.diff(indices.astype(np.int32 if dim < 2**31 else np.int64), prepend=-1)
    gaps -= 1
    parameter = _cheapest(gaps, dim)
    count = len(gaps)
    ends = indices if parameter == 0 else np.cumsum((gaps >> parameter) + 1, dtype=np.int64) - 1
    code = pack_ones(ends)
    if parameter == 0:
        return 0, code
    planes = np.empty((parameter, count), np.uint8)
    for bit in range(parameter):
        np.bitwise_and(gaps >> bit, 1, out=planes[bit], casting="unsafe")
    return parameter, code + np.packbits(planes.reshape(-1), bitorder="little").tobytes()


def decode_indices(code: Octets, count: int, dim: int, parameter: int) -> Indices:
    """Return the set of ``encode_indices``, strictly increasing and below ``dim``.

    Parameters
    ----------
    code : uint8 array
        Nothing but the coded set.
    count : int
        k >= 1.

    Raises
    ------
    SparseError
        If the code is not exactly one that ``encode_indices`` can make for these numbers. Before
        that is known no more than count + dim + 8 bytes are allocated.
    """
    if count << parameter > 2 * dim:
        raise SparseError(f"Rice parameter {parameter} does not fit {count} of {dim} indices")
    tail = (count * parameter + 7) // 8
    head = len(code) - tail
    if not 0 < head <= (count + (dim >> parameter) + 7) // 8:
        raise SparseError(f"{len(code)} bytes cannot code {count} of {dim} indices")
    ends: Indices = unpack_ones(code[:head], count, "indices", SparseError)
    if parameter == 0:
        found = ends
    else:
        order = np.arange(count, dtype=np.intp)
        ends -= order
        if int(ends[-1]) << parameter > dim:
            raise SparseError(f"an index is coded that is not below {dim}")
        found = np.cumsum(_remainders(code[head:], count, parameter), dtype=np.intp)
        ends <<= parameter
        found += ends
        found += order
    if found[-1] >= dim:
        raise SparseError(f"index {found[-1]} is not below {dim}")
    return found


def _cheapest(gaps: NDArray[np.signedinteger[Any]], dim: int) -> int:
    """Return the parameter with the fewest bits among those next to log2(ln 2 * mean gap)."""
    count = len(gaps)
    mean = float(gaps.sum(dtype=np.int64)) / count
    guess = max(0, math.floor(math.log2(max(mean * math.log(2), 1.0))))
    options = [b for b in range(max(0, guess - 1), guess + 2) if count << b <= 2 * dim]
    return min(options, key=lambda b: count * b + int((gaps >> b).sum(dtype=np.int64)))


def _remainders(code: Octets, count: int, parameter: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return the k remainders from their bit planes."""
    bits = np.unpackbits(code, bitorder="little")
    if bits[count * parameter :].any():
        raise SparseError("padding bits are set")
    planes = bits[: count * parameter].reshape(parameter, count)
    kind = np.min_scalar_type((1 << parameter) - 1)
    found: NDArray[np.unsignedinteger[Any]] = planes[0].astype(kind)
    for bit in range(1, parameter):
        found |= planes[bit].astype(kind) << kind.type(bit)
    return found
