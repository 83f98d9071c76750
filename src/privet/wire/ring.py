"""Privacy-critical: fixed-point numbers in the ring of integers modulo 2^64: sums are exact.

A number x becomes the integer nearest to 2^40 x. Integers add without rounding and wrap around
modulo 2^64, so that masks which are added by one agent and subtracted by another cancel to the
last bit, and the sum of what K agents encoded is exactly the encoding of the sum as long as that
stays below 2^63. Every number must therefore be at most ``largest(K)`` = 2^23 / K in magnitude.

Layout of the bytes, little endian, 8 bytes a number::

    b"PVR1" | u32 fractional bits | u64 checksum of the rest | uint64 arrays as in ``dense``

The checksum finds damage, not forgery: a masked word looks like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privet.core.errors import NotFiniteError, WireError
from privet.kernel import Told

from .dense import digest, pack, unpack

MAGIC = b"PVR1"
FRACTION_BITS = 40

MEMBERS = "members"
"""An array that every masked upload has beside the algorithm's: the number 1. Its sum is the number
of agents exactly if all masks cancelled."""

UNIT = 2.0**FRACTION_BITS
"""Integers that stand for 1."""
_HEAD = struct.Struct("<4sIQ")
_CHUNK = 1 << 14

Word: TypeAlias = NDArray[np.uint64]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Overflow: TypeAlias = Literal["refuse", "wrap", "clip"]
"""What becomes of an upload with numbers that are too large to be added."""


@dataclass(frozen=True, slots=True)
class Words:
    """Named arrays as one vector of ring elements.

    Attributes
    ----------
    layout : tuple of (name, shape)
        In the order in which the arrays lie in ``words``.
    words : uint64 array (n,)
    """

    layout: tuple[tuple[str, tuple[int, ...]], ...]
    words: Word

    def arrays(self) -> dict[str, Word]:
        """Return the arrays by name, as views."""
        found: dict[str, Word] = {}
        at = 0
        for name, shape in self.layout:
            size = prod(shape)
            found[name] = self.words[at : at + size].reshape(shape)
            at += size
        return found

    def to_bytes(self) -> bytes:
        """Return the words as they travel."""
        body = pack(self.arrays())
        return _HEAD.pack(MAGIC, FRACTION_BITS, digest(np.frombuffer(body, "u1"))) + body


def largest(count: int) -> float:
    """Return the magnitude up to which numbers of ``count`` agents can be added: 2^23 / count."""
    return 2.0 ** (63 - FRACTION_BITS) / count


def encode(arrays: Mapping[str, NDArray[Any]], count: int, overflow: Overflow = "refuse") -> Words:
    """Return floating-point arrays as ring elements, each number rounded to nearest (ties to even).

    Parameters
    ----------
    arrays : mapping of name to float array
        Any shapes; the order of the names is that of the words.
    count : int
        How many agents' encodings will be added.
    overflow
        What becomes of numbers that are too large: they are refused; taken modulo 2^24, in which
        all is added, so that a sum is one of the pooled numbers modulo 2^24 whichever agent's were
        too large; or bounded by ``largest(count)``. What is not finite then is 0, or the bound.

    Privacy: that an upload is refused says something of the agent's own numbers, which no sum is to
    show. Where their size is the coordinator's choice, they are not refused.

    Raises
    ------
    WireError
        If an array is not of floats.
    NotFiniteError
        If a number is not finite or too large to be added ``count`` times, and is refused. The text
        names the limit and no number of the arrays: they are an agent's own.
    """
    layout = tuple((name, array.shape) for name, array in arrays.items())
    words = np.empty(sum(array.size for array in arrays.values()), np.int64)
    most = (2**63 - 1) // count
    at = 0
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise WireError(f"array {name!r} is {array.dtype}: only floats can be summed")
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            scaled = _scaled(flat[start : start + _CHUNK])
            if overflow != "refuse":
                scaled = _within(scaled, float(most), overflow)
            elif not (float(scaled.max()) <= most and float(scaled.min()) >= -most):
                raise NotFiniteError(
                    f"array {name!r} does not fit the secure sum: numbers are not finite, or not "
                    f"at most {largest(count):.6g} in magnitude with {count} agents",
                    Told.OVERFLOW,
                )
            words[at : at + scaled.size] = scaled
            at += scaled.size
    return Words(layout, words.view(np.uint64))


def _scaled(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return the integers nearest to 2^40 times the numbers, as float64."""
    with np.errstate(all="ignore"):
        scaled: NDArray[np.float64] = np.multiply(array, UNIT, dtype=np.float64)
    return np.rint(scaled, out=scaled)


def _within(scaled: NDArray[np.float64], most: float, overflow: Overflow) -> NDArray[np.float64]:
    """Return integers as float64, modulo 2^64 or bounded; all steps modulo 2^64 are exact."""
    if overflow == "clip":
        bound = np.nextafter(most, 0.0)  # as a float the bound itself may be above it
        return np.nan_to_num(np.clip(scaled, -bound, bound), nan=-bound)
    whole = np.fmod(np.where(np.isfinite(scaled), scaled, 0.0), 2.0**64)
    whole = np.where(whole >= 2.0**63, whole - 2.0**64, whole)
    return np.where(whole < -(2.0**63), whole + 2.0**64, whole)


def rounded(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers rounded as ``encode`` does, in their own dtype (float32 or float64).

    What an agent keeps of a rounded array is then exactly what the server's sum contains.
    """
    nearest = _scaled(array)
    nearest /= UNIT
    return nearest.astype(array.dtype, copy=False)


def add(sums: Words, part: Words) -> None:
    """Add ring elements to others modulo 2^64, in place (raises ``WireError`` for other arrays)."""
    if part.layout != sums.layout:
        raise WireError(f"cannot add {_said(part.layout)} to {_said(sums.layout)}")
    np.add(sums.words, part.words, out=sums.words)


def decode(words: Words, dtype: DTypeLike = np.float64) -> dict[str, NDArray[Any]]:
    """Return ring elements, taken as signed, as floating-point arrays.

    Below 2^13 in magnitude float64 holds every one exactly; above, the nearest number.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, array in words.arrays().items():
        numbers = array.view(np.int64).astype(np.float64)
        numbers /= UNIT
        found[name] = numbers.astype(dtype, copy=False)
    return found


def from_bytes(data: bytes, expected: Shapes | None = None) -> Words:
    """Return the words of ``Words.to_bytes``.

    Parameters
    ----------
    data : bytes
    expected : mapping of name to shape, optional
        What the arrays must be, in this order.

    Raises
    ------
    WireError
        If the bytes are damaged, not of this format, or hold other arrays.
    """
    if len(data) < _HEAD.size:
        raise WireError("truncated payload of ring elements")
    magic, bits, checksum = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireError("payload is not of ring elements: this agent does not mask its upload")
    if bits != FRACTION_BITS:
        raise WireError(f"ring elements have {bits} fractional bits, expected {FRACTION_BITS}")
    body = data[_HEAD.size :]
    if digest(np.frombuffer(body, "u1")) != checksum:
        raise WireError("payload of ring elements is damaged (wrong checksum)")
    arrays = unpack(body)
    for name, array in arrays.items():
        if array.dtype != np.uint64:
            raise WireError(f"array {name!r} is {array.dtype}, expected ring elements")
    layout = tuple((name, array.shape) for name, array in arrays.items())
    if expected is not None and layout != tuple(expected.items()):
        raise WireError(f"upload holds {_said(layout)}, expected {_said(tuple(expected.items()))}")
    flat = [array.reshape(-1) for array in arrays.values()]
    return Words(layout, np.concatenate(flat) if flat else np.empty(0, np.uint64))


def _said(layout: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in layout) or "nothing"
