"""Files that are whole or not there: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_DAMAGE = (
    ValueError, KeyError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def write_npz(path: Path, members: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as `write_whole` does."""
    _write(path, lambda file: np.savez(file, allow_pickle=False, **members))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that ``path`` always holds a whole one (raises ``OSError``).

    A full disk or a killed process leaves the previous file as it was.
    """
    _write(path, lambda file: file.write(data))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a file, without ever unpickling.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is damaged, or is no archive of arrays.
    """
    try:
        # numpy leaves a file it opened itself open when the archive is damaged.
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # numpy would take it for a pickle
                raise zipfile.BadZipFile("not an .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                arrays = {name: members[name] for name in members.files}
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member that is no .npy comes as its bytes
            raise ValueError(f"{name} is not an array")
    return arrays


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
