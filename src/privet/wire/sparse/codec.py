"""Sparse vectors as one bytes value: an index set and its values.

Layout, little endian, 24 bytes and then the values, so that they can be read in place::

    "PVS" | u8 version | u8 kind | u8 dtype | u8 Rice parameter | u8 0 | u32 CRC-32 | u32 k | u64 d
    k float32 or float64 values | index code
    u32 length, code of the values (`privet.wire.value_coding`) | index code

======== ======================== =========================================================
kind     index code               used for
======== ======================== =========================================================
whole    none                     k = d: the dense vector
gaps     `index_coding`           k <= d/2
rest     the d - k others, coded  d/2 < k < d: below the dense vector's size for every k
seeded   u64 seed                 index sets that both sides draw (`selection.rand_k`)
======== ======================== =========================================================

For random sets a payload stays within 1.005 (4 k + entropy) + 32 bytes for k <= d/2 and within
1.03 of 4 k + entropy above, in float32, where entropy is log2(d choose k) / 8 bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import WireError

from ..value_coding import decode_values
from .index_coding import Indices, SparseError, decode_indices, encode_indices
from .selection import rand_k

MAGIC = b"PVS"
VERSION = 1
WHOLE, GAPS, REST, SEEDED = range(4)

_HEADER = struct.Struct("<3sBBBBBIIQ")
_LENGTH = struct.Struct("<I")
_DTYPE_AT, _CHECKSUM_AT = 5, 8
_DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
_MAX_DIM = 2**32 - 1

Buffer = bytes | bytearray | NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SparseVector:
    """k entries of a vector of length ``dim``.

    Attributes
    ----------
    dim : int
    values : float32 or float64 array (k,)
        Read-only when it was decoded.
    positions : array (k,) or None
        Strictly increasing indices; None stands for all of them, k = dim.
    """

    dim: int
    values: NDArray[Any]
    positions: Indices | None = None

    @property
    def indices(self) -> Indices:
        """The strictly increasing indices of the values, shape (k,)."""
        return np.arange(self.dim, dtype=np.intp) if self.positions is None else self.positions

    def to_dense(self) -> NDArray[Any]:
        """Return the vector of length ``dim`` with zeros elsewhere, as a new array."""
        if self.positions is None:
            return self.values.copy()
        vector = np.zeros(self.dim, self.values.dtype)
        vector[self.positions] = self.values
        return vector


def encode(
    values: NDArray[Any],
    indices: NDArray[np.integer[Any]] | None = None,
    dim: int | None = None,
    *,
    seed: int | None = None,
    code: bytes = b"",
) -> bytes:
    """Return the bytes of a sparse (or, with values alone, of a dense) vector.

    Parameters
    ----------
    values : float32 or float64 array (k,)
    indices : integer array (k,), optional
        Where the values belong, each once, in any order.
    dim : int, optional
        Length of the vector; needed with ``indices`` or ``seed``.
    seed : int, optional
        Instead of indices: the values belong to ``rand_k(seed, dim, k)``.
    code : bytes, optional
        Code of the values, in the order of ascending indices, which travels in their place.

    Raises
    ------
    SparseError
        If dtypes, shapes or indices do not fit.
    """
    if values.dtype not in _DTYPES or values.ndim != 1:
        raise SparseError(f"values are {values.ndim}-d {values.dtype}, expected 1-d float32/64")
    count = values.size
    length = count if dim is None else int(dim)
    if not count <= length <= _MAX_DIM or (dim is None and indices is not None):
        raise SparseError(f"{count} values cannot belong to a vector of length {dim}")
    if seed is not None:
        if indices is not None or not 0 <= seed < 2**64:
            raise SparseError(f"seed {seed}: expected a 64-bit number, and no indices beside it")
        return _assemble(SEEDED, 0, values, length, struct.pack("<Q", seed), code)
    if indices is None:
        if count != length:
            raise SparseError(f"{count} values of {length} need indices or a seed")
        return _assemble(WHOLE, 0, values, length, b"", code)
    given = values
    values, places = _in_order(values, indices, length)
    if code and values is not given:
        raise SparseError("the indices of coded values do not ascend")
    if count == length:
        return _assemble(WHOLE, 0, values, length, b"", code)
    if count == 0:
        return _assemble(GAPS, 0, values, length, b"")
    if 2 * count > length:
        absent = np.ones(length, np.bool_)
        absent[places] = False
        return _assemble(REST, *_coded(np.flatnonzero(absent), values, length), code)
    return _assemble(GAPS, *_coded(places, values, length), code)


def _coded(places: Indices, values: NDArray[Any], dim: int) -> tuple[int, NDArray[Any], int, bytes]:
    parameter, code = encode_indices(places, dim)
    return parameter, values, dim, code


def decode(data: Buffer, *, max_dim: int, reference: NDArray[Any] | None = None) -> SparseVector:
    """Return the vector of ``encode``; values that are not coded are a read-only view on ``data``.

    Parameters
    ----------
    data : bytes or uint8 array
        From anywhere: it is checked completely.
    max_dim : int
        Longer vectors are refused; memory stays within a few times this many numbers.
    reference : array (d,), optional
        What coded values are differences to; None is 0.

    Raises
    ------
    SparseError
        Whatever the bytes are, nothing else is raised, and no index is out of range or repeated.
    """
    if len(data) < _HEADER.size:
        raise SparseError(f"sparse payload of {len(data)} bytes is shorter than its header")
    raw = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    header = _HEADER.unpack_from(raw.data)
    magic, version, kind, code, parameter, zero, checksum, count, dim = header
    if magic != MAGIC:
        raise SparseError("not a sparse payload (wrong magic bytes)")
    if version != VERSION:
        raise SparseError(f"sparse payload of version {version}, this side reads {VERSION}")
    coded = code >= len(_DTYPES)
    if (
        code >= 2 * len(_DTYPES)
        or zero
        or kind > SEEDED
        or (parameter and kind not in (GAPS, REST))
    ):
        raise SparseError("sparse payload has an unknown header")
    if dim > max_dim or count > dim:
        raise SparseError(f"sparse payload claims {count} of {dim} numbers, at most {max_dim}")
    dtype, begin = _DTYPES[code % len(_DTYPES)], _HEADER.size
    size = count * dtype.itemsize
    if coded:
        begin += _LENGTH.size
        size = _LENGTH.unpack_from(raw.data, _HEADER.size)[0] if raw.size >= begin else 0
    end = begin + size
    if raw.size < end:
        raise SparseError(f"sparse payload ends inside its {count} values")
    if _checksum(raw) != checksum:
        raise SparseError("sparse payload is damaged (wrong checksum)")
    positions = _positions(kind, raw[end:], count, dim, parameter)
    if coded:
        if reference is not None and reference.size != dim:
            raise SparseError(f"coded sparse payload of {dim} numbers, expected {reference.size}")
        near = reference if reference is None or positions is None else reference[positions]
        return SparseVector(dim, _decoded(raw[begin:end], count, dtype, near), positions)
    values = np.frombuffer(raw, dtype, count, begin)
    values.flags.writeable = False
    return SparseVector(dim, values, positions)


def is_sparse(data: Buffer) -> bool:
    """Whether bytes begin as those of ``encode``."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def _decoded(
    code: NDArray[np.uint8], count: int, dtype: np.dtype[Any], reference: NDArray[Any] | None
) -> NDArray[Any]:
    try:
        return decode_values(code, count, dtype, reference)
    except WireError as error:
        raise SparseError(str(error)) from None


def _positions(
    kind: int, code: NDArray[np.uint8], count: int, dim: int, parameter: int
) -> Indices | None:
    if kind == SEEDED:
        if code.size != 8:
            raise SparseError(f"seed of {code.size} bytes, expected 8")
        return rand_k(int.from_bytes(code.tobytes(), "little"), dim, count)
    if kind == WHOLE or count == 0:
        if code.size or (kind == WHOLE and count != dim) or kind == REST or parameter:
            raise SparseError(f"sparse payload of {count} of {dim} values has a wrong index code")
        return None if kind == WHOLE else np.zeros(0, np.intp)
    if (2 * count > dim) != (kind == REST) or count == dim:
        raise SparseError(f"{count} of {dim} indices are coded as the wrong kind")
    if kind == GAPS:
        return decode_indices(code, count, dim, parameter)
    present = np.ones(dim, np.bool_)
    present[decode_indices(code, dim - count, dim, parameter)] = False
    return np.flatnonzero(present)


def _in_order(
    values: NDArray[Any], indices: NDArray[np.integer[Any]], dim: int
) -> tuple[NDArray[Any], Indices]:
    """Return values and indices sorted by index, checked."""
    places = np.asarray(indices)
    if places.shape != values.shape or places.dtype.kind not in "iu":
        raise SparseError(
            f"indices are {places.dtype} of shape {places.shape}, expected "
            f"integers of shape {values.shape}"
        )
    places = places.astype(np.intp, copy=False)
    if not (places[1:] > places[:-1]).all():
        order = np.argsort(places, kind="stable")
        values, places = values[order], places[order]
        if not (places[1:] > places[:-1]).all():
            raise SparseError("an index is given twice")
    if places.size and not (places[0] >= 0 and places[-1] < dim):
        raise SparseError(f"indices {places[0]} ... {places[-1]} are not within 0 ... {dim - 1}")
    return values, places


def _assemble(
    kind: int, parameter: int, values: NDArray[Any], dim: int, places: bytes, code: bytes = b""
) -> bytes:
    dtype = _DTYPES.index(values.dtype) + (len(_DTYPES) if code else 0)
    header = _HEADER.pack(MAGIC, VERSION, kind, dtype, parameter, 0, 0, values.size, dim)
    body = [_LENGTH.pack(len(code)), code] if code else [values.tobytes()]
    data = bytearray(b"".join([header, *body, places]))
    struct.pack_into("<I", data, _CHECKSUM_AT, _checksum(np.frombuffer(data, np.uint8)))
    return bytes(data)


def _checksum(raw: NDArray[np.uint8]) -> int:
    """Return the CRC-32 of everything but the checksum itself."""
    return zlib.crc32(raw[_CHECKSUM_AT + 4 :].data, zlib.crc32(raw[:_CHECKSUM_AT].data))
