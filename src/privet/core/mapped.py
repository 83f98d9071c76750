"""Arrays too large to be kept in memory: in files that the system pages in and out.

An array above `LIMIT` bytes is mapped from a file without a name in a given folder, so that it goes
with its process. What is touched of it is resident until `release` gives the pages back, which
whoever walks over such an array does as it goes.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import finalize, ref

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import RunError

LIMIT = 1 << 29
"""Bytes above which an array is in a file."""
BLOCK = 1 << 24
"""Bytes that are worked on at a time."""
SPARSE = 1 << 20
"""Bytes from which a table takes care that rows of zeros take up no memory."""

_mapped: list[ref[mmap.mmap]] = []
"""A list, which costs nothing to walk over while it is empty: every message does."""


def empty(shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None) -> NDArray[Any]:
    """Return an array of any contents, in a file of the folder where it is large.

    Raises
    ------
    RunError
        If the disk has no room for it: later that would be a signal and no error.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if folder is None or size <= LIMIT:
        return np.empty(shape, dtype)
    return _in_file(shape, dtype, folder)


def _in_file(shape: tuple[int, ...], dtype: DTypeLike, folder: Path) -> NDArray[Any]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            pages = mmap.mmap(file.fileno(), size)
    except OSError as error:
        why = f"no room for a table of {size:,} bytes ({error.strerror})"
        raise RunError(f"{folder}: {why}") from None
    watch(pages)
    return np.frombuffer(pages, dtype).reshape(shape)


def watch(pages: mmap.mmap) -> None:
    """Have `release` give back the pages of a file that somebody else has mapped."""
    _mapped[:] = [other for other in _mapped if other() is not None]
    _mapped.append(ref(pages))


def scratch(shape: tuple[int, ...], dtype: DTypeLike, whole: int = 0) -> NDArray[Any]:
    """Return an array of any contents that is of use to this process alone, such as rows of data.

    Where it is large, or the ``whole`` of so many bytes that it is a part of, it is in a file
    without a name in the system's temporary folder (``TMPDIR``), which nobody else can open; in
    memory where that has no room.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if max(size, whole) > LIMIT and size:
        with suppress(RunError):
            return _in_file(shape, dtype, Path(tempfile.gettempdir()))
    return np.empty(shape, dtype)


def alike(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of any contents of the shape and dtype of another, in a file where that is,
    which may be a part of a large whole."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    there = isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)
    return scratch(array.shape, array.dtype, (LIMIT + 1) * there)


def kept(array: NDArray[Any], whole: int) -> NDArray[Any]:
    """Return a copy in a file where the whole that an array is part of is large; else itself."""
    if whole <= LIMIT:
        return array
    copy = scratch(array.shape, array.dtype, whole)
    copy[...] = array
    release()
    return copy


def are_all(chosen: NDArray[np.intp], count: int) -> bool:
    """Return whether chosen places are 0, 1, ..., count - 1."""
    step = BLOCK // 8
    parts = ((at, chosen[at : at + step]) for at in range(0, count, step))
    return len(chosen) == count and all(
        bool((part == np.arange(at, at + len(part))).all()) for at, part in parts
    )


def rows_of(table: NDArray[Any], chosen: NDArray[np.intp]) -> NDArray[Any]:
    """Return some rows of a table (N, ...), by their places: the table itself where all are."""
    if are_all(chosen, len(table)):
        return table
    size = table.itemsize * math.prod((len(chosen), *table.shape[1:]))
    # Parts are many files of a table only where each is worth one.
    found = scratch((len(chosen), *table.shape[1:]), table.dtype, table.nbytes * (size >= BLOCK))
    # Places are right, as they were dealt: checked ones would be taken into memory first.
    return np.take(table, chosen, axis=0, out=found, mode="clip")


def repeated(row: NDArray[Any], count: int, folder: Path | None) -> NDArray[Any]:
    """Return a table (count, ...) whose rows are this one; raises as ``empty``.

    Rows of zeros take up memory when something is written to them, so that those of agents that
    never took part are one page of the system's.
    """
    shape = (count, *np.atleast_1d(row).shape)
    size = math.prod(shape) * row.itemsize
    if size >= SPARSE and (folder is None or size <= LIMIT) and not _bits(row).any():
        return zeros(shape, row.dtype)
    table = empty(shape, row.dtype, folder)
    for part in blocks(table):
        table[part] = row
    return table


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a table of zeros, of which a large one takes up memory where it is written to."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < SPARSE or np.dtype(dtype).hasobject:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # where one row would take up 2 MB
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


def written(table: NDArray[Any]) -> NDArray[np.intp]:
    """Return the rows of a table (N, d), d > 1, that are not zeros bit for bit."""
    bits = _bits(table)
    parts = [np.bitwise_or.reduce(bits[part], axis=1) != 0 for part in blocks(bits)]
    return np.flatnonzero(np.concatenate(parts))


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.atleast_1d(array).view(f"u{array.itemsize}")


def release() -> None:
    """Give the resident pages of all mapped arrays back to the system; their contents stay."""
    for other in _mapped:
        if pages := other():
            pages.madvise(mmap.MADV_DONTNEED)


def trim() -> None:
    """Give memory that was freed back to the system, where the C library can: it keeps what many
    arrays of some MB took, which is as much as a table may take after it was read."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def blocks(table: NDArray[Any]) -> Iterator[slice]:
    """Yield the rows of a table, some at a time; mapped arrays are released after each."""
    step = max(1, BLOCK * len(table) // max(1, table.nbytes))
    for begin in range(0, len(table), step):
        yield slice(begin, begin + step)
        release()


def column_sums(table: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of the rows of a table (N, d), d > 1, in order: that of np.add.reduce."""
    if table.nbytes <= LIMIT:
        total: NDArray[Any] = np.add.reduce(table, axis=0)
        return total
    total = np.zeros_like(table[0])
    for part in blocks(table):
        for row in table[part]:
            total += row
    return total


def sum_of(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of the rows of a table (N, d), d > 1, that comes in parts of some rows, one at
    least: that of np.add.reduce over the whole table, which adds rows in their order.

    The parts are written to.
    """
    total: NDArray[Any] | None = None
    for part in parts:
        if total is not None:
            part[0] += total
        total = np.add.reduce(part, axis=0)
    assert total is not None
    return total


class Spool:
    """Arrays that wait on the disk until somebody loads them: a file without a name."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._size = 0
        finalize(self, self._file.close)

    def keep(self, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], dict[str, NDArray[Any]]]:
        """Write arrays, and return what reads them again (raises ``OSError``)."""
        places = {}
        for name, array in arrays.items():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            places[name] = self._size, array.shape, array.dtype
            while data:
                written = os.pwrite(self._file.fileno(), data, self._size)
                self._size, data = self._size + written, data[written:]

        def load() -> dict[str, NDArray[Any]]:
            return {name: self._read(*place) for name, place in places.items()}

        return load

    def _read(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8).data
        while data:
            read = os.preadv(self._file.fileno(), [data], at)
            if not read:
                raise OSError("a spooled array is not there")
            at, data = at + read, data[read:]
        return array
