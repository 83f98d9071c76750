"""Values as a few bits each: a dithered uniform quantiser of differences, Golomb-Rice coded.

Of values v and a reference r that both sides hold, in float64 whatever the dtype of v,

    c_j = round((v_j - r_j) / s + u_j),        decoded v_j = r_j + s (c_j - u_j),

with one step s and a dither u_j uniform in [-1/2, 1/2) that both sides draw from a seed. The error
is uniform in [-s/2, s/2], independent of the values, of mean 0 and variance s^2 / 12 (L. Schuchman,
"Dither signals and their effect on quantization noise", 1964; R. Zamir, M. Feder, "On universal
quantization by randomized uniform/lattice quantizers", 1992). For b bits

    s = sqrt(2 pi e) 2^-b * root mean square of v - r,

so that independent normal differences cost b bits each by their entropy, which is the largest for
their variance. This code needs 0.09 more for them, less than b for heavy tails, and up to 0.4 more
than b for other shapes, such as values of one size. The squared error over ||v - r||^2 is
(2 pi e / 12) 4^-b.

An integer c is numbered in the order of |c - u|: 0, 1, -1, 2, ... where u > 0, else 0, -1, 1, ...
The numbers are in Golomb-Rice code, its parameter chosen for each block of 1024. Layout,
little endian::

    "PVV" | u8 version | u32 count | f64 step | u64 seed
    of every 65,536 values: u8 parameter per block | u32 length | unary quotients | low bits

The low bits are those of the parameter: as many whole bytes as it has, one of all values after the
other, then the bits above them, one plane after the other.

A step of 0 stands for the reference itself, with nothing after it. Whatever decodes is used as
decoded by the side that encoded it, too, so that both hold the same numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError
from privet.kernel.streams import hash_of

from .unary import pack_ones, unpack_ones

MAGIC = b"PVV"
VERSION = 1
BLOCK = 1 << 10
"""Values that share a Rice parameter."""
CHUNK = 1 << 16
"""Values that are coded at a time: what is at work stays in the cache, and is little."""

_HEADER = struct.Struct("<3sBIdQ")
_LENGTH = struct.Struct("<I")
_NORMAL = math.sqrt(2.0 * math.pi * math.e)
_MOST = 2.0**52
"""Integers c stay below: floats hold them exactly."""

Buffer = bytes | NDArray[np.uint8]
Vector = NDArray[Any]


class Coded(NamedTuple):
    """Values as they travel, and as both sides go on with them."""

    data: bytes
    values: Vector


def dither_seed(seed: int, agent: str, round_: int, name: str = "") -> int:
    """Return the seed of the dither of one array in a round; it depends on no data."""
    return int.from_bytes(hash_of(8, seed, "dither", agent, round_, name), "little")


def encode_values(
    values: Vector,
    seed: int,
    reference: Vector | None = None,
    *,
    bits: int = 0,
    step: float = 0.0,
) -> Coded | None:
    """Return values as a few bits each, None where that is not shorter than their own bytes.

    It is None, too, for values that are not finite, or too large for the step.

    Parameters
    ----------
    values : float32 or float64 array (n,)
    seed : int
        Of the dither, 0 ... 2^64 - 1.
    reference : array (n,), optional
        What both sides hold; None is 0.
    bits : int
        b of the step, where ``step`` is not given.
    step : float
        s, if above 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of what travels as it is then
        return _encoded(values, seed, reference, bits, step)


def _encoded(
    values: Vector, seed: int, reference: Vector | None, bits: int, step: float
) -> Coded | None:
    difference = values.astype(np.float64)
    if reference is not None:
        difference -= reference
    count = values.size
    mean_square = float(np.vdot(difference, difference)) / max(1, count)
    step = step or _NORMAL * 2.0**-bits * math.sqrt(mean_square)
    head = _HEADER.pack(MAGIC, VERSION, count, step, seed)
    left = values.nbytes - len(head)
    if not math.isfinite(mean_square) or left <= 0:
        return None
    if step == 0.0:
        same = np.zeros_like(values) if reference is None else reference.astype(values.dtype)
        return Coded(head, same)
    decoded, parts, dither = np.empty_like(values), [head], _Dither(seed)
    for start in range(0, count, CHUNK):
        part = slice(start, min(start + CHUNK, count))
        drawn = dither.draw(part.stop - part.start)
        integers = difference[part]
        integers /= step
        integers += drawn
        np.rint(integers, out=integers)
        if not (integers.max() < _MOST and integers.min() > -_MOST):
            return None
        code = _code(_numbered(integers, drawn), left)
        if code is None:
            return None
        parts += code
        left -= sum(map(len, code))
        decoded[part] = _restored(integers, drawn, step, _part(reference, part))
    return Coded(b"".join(parts), decoded)


def decode_values(
    data: Buffer, count: int, dtype: np.dtype[Any], reference: Vector | None = None
) -> Vector:
    """Return the values of ``encode_values``, shape (count,), to the bit what the encoder kept.

    Parameters
    ----------
    data : bytes or uint8 array
        From anywhere: it is checked completely.
    count : int
        How many values there must be.
    dtype : dtype
        float32 or float64, of the values.
    reference : array (count,), optional

    Raises
    ------
    WireError
        Whatever the bytes are, nothing else is raised. What is allocated beside the values is no
        more than a few times CHUNK of them.
    """
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    most = max(count * dtype.itemsize, _HEADER.size + 1)
    if raw.ndim != 1 or not _HEADER.size <= raw.size < most:
        raise WireError(f"coded values: {raw.size} bytes cannot be {count} values in {dtype}")
    magic, version, declared, step, seed = _HEADER.unpack_from(raw.data)
    if magic != MAGIC or version != VERSION:
        raise WireError("coded values are of no known format")
    if declared != count or not 0.0 <= step < math.inf:
        raise WireError(f"coded values: {declared} with step {step:.3g}, expected {count}")
    decoded, at, dither = np.empty(count, dtype), _HEADER.size, _Dither(seed)
    if step == 0.0:
        decoded[:] = 0.0 if reference is None else reference
    for start in range(0, count if step else 0, CHUNK):
        part = slice(start, min(start + CHUNK, count))
        size = part.stop - part.start
        numbers, at = _read(raw, at, size)
        drawn = dither.draw(size)
        with np.errstate(over="ignore"):  # of numbers that are refused as not finite later
            decoded[part] = _restored(
                _unnumbered(numbers, drawn), drawn, step, _part(reference, part)
            )
    if at != raw.size:
        raise WireError(f"coded values have {raw.size - at} bytes left over")
    return decoded


def length_of(data: Buffer) -> int:
    """Return the number of values that a code declares (raises ``WireError`` if it is no code)."""
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    if raw.size < _HEADER.size or raw[: len(MAGIC)].tobytes() != MAGIC:
        raise WireError("coded values are of no known format")
    count: int = _HEADER.unpack_from(raw.data)[2]
    return count


class _Dither:
    """The dither of a seed, from raw Philox words, a stream numpy keeps stable."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.Philox(key=seed)

    def draw(self, count: int) -> Vector:
        """Return the next ones: odd multiples of 2^-33 between -1/2 and 1/2."""
        words = self._source.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")
        drawn: Vector = words[:count] + (0.5 - 2.0**31)
        drawn *= 2.0**-32
        return drawn


def _part(reference: Vector | None, part: slice) -> Vector | None:
    return None if reference is None else reference[part]


def _restored(integers: Vector, drawn: Vector, step: float, reference: Vector | None) -> Vector:
    """Return r + s (c - u), in the place of the integers; both sides compute it."""
    integers -= drawn
    integers *= step
    if reference is not None:
        integers += reference
    return integers


def _numbered(integers: Vector, drawn: Vector) -> NDArray[np.int64]:
    """Return 0, 1, 2, ... for the integers nearest to the dither, the next, ..."""
    numbers = integers.astype(np.int64)
    flip = -(drawn > 0).astype(np.int64)
    numbers ^= flip
    numbers -= flip
    sign = numbers >> 63
    numbers <<= 1
    numbers ^= sign
    return numbers


def _unnumbered(numbers: NDArray[np.int64], drawn: Vector) -> Vector:
    """Return the integers of `_numbered`, in float64."""
    sign = -(numbers & 1)
    numbers >>= 1
    numbers ^= sign
    integers = numbers.astype(np.float64)
    np.negative(integers, out=integers, where=drawn > 0)
    return integers


def _blocks(count: int) -> list[tuple[slice, slice, int]]:
    """Return the values and the parameters of the whole blocks, and of the rest; their length."""
    whole = count - count % BLOCK
    found = [(slice(0, whole), slice(0, whole // BLOCK), BLOCK)] if whole else []
    if whole < count:
        found.append((slice(whole, count), slice(whole // BLOCK, None), count - whole))
    return found


def _code(numbers: NDArray[np.int64], most: int) -> list[bytes] | None:
    """Return a chunk's code, None where that would be ``most`` bytes or more."""
    largest = int(numbers.max())
    kind = np.dtype("<u2" if largest < 1 << 16 else "<u4" if largest < 1 << 32 else "<u8")
    small: Vector = numbers.astype(kind)
    parameters, ones, planes = b"", np.empty(small.size, np.int64), []
    for values, _, length in _blocks(small.size):
        rows = small[values].reshape(-1, length)
        chosen = _cheapest(rows)
        parameters += chosen.astype(np.uint8).tobytes()
        ones[values] = (rows >> chosen[:, None].astype(kind)).reshape(-1)
        split = rows.view(np.uint8).reshape(*rows.shape, -1)
        split = np.ascontiguousarray(np.moveaxis(split[..., : (int(chosen.max()) + 7) // 8], 2, 0))
        for width, at, having in _planes(chosen):
            plane = split[at // 8] if having.all() else split[at // 8, having]
            if width == 1:
                plane = np.packbits((plane >> (at % 8)) & 1, axis=1, bitorder="little")
            planes.append(plane.tobytes())
    ones += 1
    np.cumsum(ones, out=ones)
    length = (int(ones[-1]) + 7) // 8
    if len(parameters) + _LENGTH.size + length + sum(map(len, planes)) >= most:
        return None
    ones -= 1
    return [parameters, _LENGTH.pack(length), pack_ones(ones), *planes]


def _planes(parameters: NDArray[np.int64]) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Yield width in bits and first bit of every plane, and which blocks have it."""
    whole = parameters & -8
    for at in range(0, int(whole.max()), 8):
        yield 8, at, whole > at
    for at in range(int(whole.min()), int(parameters.max())):
        having = (whole <= at) & (parameters > at)
        if having.any():
            yield 1, at, having


def _cheapest(rows: Vector) -> NDArray[np.int64]:
    """Return the Rice parameter of every row, the best of those next to log2(ln 2 * mean)."""
    length = rows.shape[1]
    mean = rows.sum(axis=1, dtype=np.float64) / length
    guess = np.floor(np.log2(np.maximum(mean * math.log(2), 1.0))).astype(np.int64)
    best: NDArray[np.int64] = guess.copy()
    fewest = np.full(len(rows), math.inf)
    for near in (-1, 0, 1):
        option = np.maximum(guess + near, 0)
        quotients = rows >> option[:, None].astype(rows.dtype)
        bits = quotients.sum(axis=1, dtype=np.float64) + option * length
        best[bits < fewest] = option[bits < fewest]
        fewest = np.minimum(bits, fewest)
    return best


def _read(raw: NDArray[np.uint8], at: int, count: int) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of the chunk that begins at a byte, and the byte after it."""
    blocks = -(-count // BLOCK)
    head = at + blocks + _LENGTH.size
    if head > raw.size:
        raise WireError("coded values end inside a chunk")
    parameters = raw[at : at + blocks].astype(np.int64)
    (length,) = _LENGTH.unpack_from(raw.data, at + blocks)
    planes = 0
    for _, block, size in _blocks(count):
        planes += int((parameters[block] // 8).sum()) * size
        planes += int((parameters[block] % 8).sum()) * ((size + 7) // 8)
    at, end = head + length, head + length + planes
    # Longer than float64 themselves no code is; so is what is unpacked here.
    if end > raw.size or parameters.max() >= 64 or length > 8 * count:
        raise WireError("coded values end inside a chunk, or are longer than values")
    ones = unpack_ones(raw[head:at], count, "values")
    numbers: NDArray[np.int64] = np.diff(ones, prepend=-1)
    numbers -= 1
    for values, block, size in _blocks(count):
        rows: NDArray[np.int64] = numbers[values].reshape(-1, size)
        shifts: NDArray[np.int64] = parameters[block]
        if (rows.max(axis=1) * 2.0**shifts >= 2 * _MOST).any() or shifts.max() > 53:
            raise WireError("coded values are too large")
        np.left_shift(rows, shifts[:, None], out=rows)
        split = np.zeros(((int(shifts.max()) + 7) // 8, *rows.shape), np.uint8)
        for width, bit, having in _planes(shifts):
            length = size if width == 8 else (size + 7) // 8
            stop = at + length * int(having.sum())
            bits: Vector = raw[at:stop].reshape(-1, length)
            if width == 1:
                bits = np.unpackbits(bits, axis=1, count=size, bitorder="little")
                bits <<= bit % 8
            if having.all():
                split[bit // 8] |= bits
            else:
                split[bit // 8, having] |= bits
            at = stop
        for number, part in enumerate(split):
            rows |= part.astype(np.int64) << (8 * number)
    return numbers, at
