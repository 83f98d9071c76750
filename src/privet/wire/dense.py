"""Named dense arrays as one bytes value.

A Flower ``Array`` costs three objects on the wire and about 60 us to build and read; one bytes
field of one ``ConfigRecord`` costs a single object and a few microseconds. Layout, little endian::

    b"PVD1" | u16 count | per array: u8 len, name, u8 dtype, u8 ndim, u64 dims... | raw data...

Each array's data begin at a multiple of 8 bytes so that a view can be taken without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError

MAGIC = b"PVD1"
MAX_ARRAYS = 256
MAX_DIMS = 8
LARGE = 1 << 14

_OF_SUM, _OF_TAIL, _OF_LENGTH = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_WORD = 0xFFFFFFFFFFFFFFFF
_OF_NEXT, _OF_63_BITS = 0x27D4EB2F, 0x7FFFFFFFFFFFFFFF

_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f8"),
    1: np.dtype("<f4"),
    2: np.dtype("<i8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    5: np.dtype("<u8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the arrays as one bytes value.

    Parameters
    ----------
    arrays : mapping of name to array
        Any shape; float64, float32, int64, int32, uint64 or uint8. Kept in C order.

    Raises
    ------
    WireError
        If a dtype, a name or the number of arrays cannot be carried.
    """
    if len(arrays) > MAX_ARRAYS:
        raise WireError(f"{len(arrays)} arrays in one payload, at most {MAX_ARRAYS}")
    head = [MAGIC, struct.pack("<H", len(arrays))]
    body: list[bytes | memoryview] = []
    for name, array in arrays.items():
        code = _CODES.get(array.dtype)
        label = name.encode()
        if code is None or len(label) > 255 or array.ndim > MAX_DIMS:
            raise WireError(f"array {name!r} ({array.dtype}, {array.ndim}-d) cannot be packed")
        head.append(
            struct.pack(
                f"<B{len(label)}sBB{array.ndim}Q",
                len(label),
                label,
                code,
                array.ndim,
                *array.shape,
            )
        )
        # A large array is copied once, by the join.
        large = array.nbytes >= LARGE
        body.append(np.ascontiguousarray(array).data.cast("B") if large else array.tobytes())
        pad = -array.nbytes % 8
        if pad:
            body.append(bytes(pad))
    prefix = b"".join(head)
    return b"".join([prefix, bytes(-len(prefix) % 8), *body])


def unpack(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``pack`` as read-only views on ``data``.

    Raises
    ------
    WireError
        If the bytes are not a payload of exactly this format. Nothing is allocated beyond the
        views, whatever the header claims.
    """
    try:
        return _unpack(data)
    except WireError:
        raise
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise WireError(f"truncated or malformed dense payload ({error})") from None


def _unpack(data: bytes) -> dict[str, NDArray[Any]]:
    if data[:4] != MAGIC:
        raise WireError("not a dense payload (wrong magic bytes)")
    (count,) = struct.unpack_from("<H", data, 4)
    if count > MAX_ARRAYS:
        raise WireError(f"dense payload claims {count} arrays, at most {MAX_ARRAYS}")
    at = 6
    entries: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for _ in range(count):
        length = data[at]
        name = data[at + 1 : at + 1 + length].decode()
        at += 1 + length
        code, ndim = data[at], data[at + 1]
        if code not in _DTYPES or ndim > MAX_DIMS:
            raise WireError(f"dense payload has unknown dtype {code} or {ndim} dimensions")
        shape = struct.unpack_from(f"<{ndim}Q", data, at + 2)
        at += 2 + 8 * ndim
        entries.append((name, _DTYPES[code], shape))
    at += -at % 8
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype, shape in entries:
        items = prod(shape)
        if at + items * dtype.itemsize > len(data):
            raise WireError(f"dense payload ends inside array {name!r}")
        if name in arrays:
            raise WireError(f"dense payload names array {name!r} twice")
        arrays[name] = np.frombuffer(data, dtype, items, at).reshape(shape)
        at += items * dtype.itemsize
        at += -at % 8
    if at != len(data):
        raise WireError(f"dense payload has {len(data) - at} bytes left over")
    return arrays


class Digest:
    """A 63-bit checksum of an array's bytes that is made part by part.

    Not cryptographic: it detects two honest copies that have diverged. It is the sum of
    the bytes taken as 64-bit words, mixed with the rest and the length, at the speed of memory.
    """

    __slots__ = ("_size", "_tail", "_total")

    def __init__(self) -> None:
        self._total = self._tail = self._size = 0

    def add(self, part: NDArray[Any]) -> None:
        """Take the next part; all but the last are of whole 64-bit words."""
        flat = np.ascontiguousarray(part).reshape(-1)
        self._size += flat.nbytes
        if rest := flat.nbytes % 8:
            raw = flat.view(np.uint8)
            flat, self._tail = raw[:-rest], int.from_bytes(raw[-rest:].tobytes(), "little")
        self._total += int(np.add.reduce(flat.view(np.uint64)))

    @property
    def value(self) -> int:
        """The checksum of what was added."""
        mixed = self._total * _OF_SUM + self._tail * _OF_TAIL + self._size * _OF_LENGTH
        # The top bit is kept, the lowest dropped: a changed sign is a changed top bit, no more.
        return (mixed & _WORD) >> 1


def digest(array: NDArray[Any]) -> int:
    """Return the `Digest` of an array, for "both sides hold the same"."""
    made = Digest()
    made.add(array)
    return made.value


def digests(stack: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the ``digest`` of every row of a stack (N, d), shape (N,)."""
    if stack.dtype == object or len(stack) == 1:
        return np.array(list(map(digest, stack)), np.uint64)
    raw = np.ascontiguousarray(stack).view(np.uint8).reshape(len(stack), -1)
    size = raw.shape[1]
    whole = size - size % 8
    mixed = np.add.reduce(raw[:, :whole].view(np.uint64), axis=1, dtype=np.uint64)
    mixed *= np.uint64(_OF_SUM)
    if whole < size:
        tails = np.zeros((len(raw), 8), np.uint8)
        tails[:, : size - whole] = raw[:, whole:]
        mixed += tails.view("<u8")[:, 0] * np.uint64(_OF_TAIL)
    mixed += np.uint64(size * _OF_LENGTH & _WORD)
    result: NDArray[np.uint64] = mixed >> np.uint64(1)
    return result


def joined_digest(each: Iterable[Any]) -> Any:
    """Return one digest of several, in order: integers, or arrays (N,) of one for every row."""
    first, *others = each
    for other in others:
        first = (first * _OF_NEXT + other) & _OF_63_BITS
    return first
