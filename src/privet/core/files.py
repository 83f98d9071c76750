"""Files that are whole or not there, and their owner's alone: temporary name, fsync, rename.

States, checkpoints, models and histories can hold what no noise covers, so no other account of the
machine may read them, whatever the umask is.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from . import mapped
from .errors import ConfigError, said_of

_DAMAGE = (
    ValueError, KeyError, EOFError, TypeError, RuntimeError, MemoryError, SyntaxError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


LONGEST_TEXT = 1 << 30
"""Bytes of a text that `read_text` takes."""


LONGEST_GIVEN = 1 << 25
"""Bytes of a text that `read_given` takes."""


def state_path(node_config: Mapping[str, Any]) -> Path | None:
    """Return a node config's ``state-path``, None without one (raises ``ConfigError``).

    What else a node keeps from message to message is beside that file.
    """
    text = str(node_config.get("state-path", ""))
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute():
        raise ConfigError(f"state-path = {text!r}: must be an absolute path")
    return path


def write_npz(path: Path, members: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as `write_whole` does, as np.savez would, but a block at a time."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in members.items():
                whole = np.ascontiguousarray(array)
                head = npy.header_data_from_array_1_0(whole.reshape(array.shape))
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, head)
                    for part in mapped.blocks(whole):
                        member.write(whole[part].reshape(-1).view(np.uint8).data)

    write_by(path, write)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that ``path`` always holds a whole one (raises ``OSError``).

    A full disk or a killed process leaves the previous file as it was.
    """
    write_by(path, lambda file: file.write(data))


def write_named(path: Path, data: bytes) -> None:
    """Write a file that a user named as an output: whole, as `write_whole` does, or into what is
    there already where that is a device or pipe, such as /dev/stdout (raises ``OSError``)."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
    else:
        write_whole(path, data)


def require_room(path: Path, size: int) -> None:
    """Raise ``OSError`` where no file of ``size`` bytes can be written in the place of ``path``."""
    temporary, descriptor = _new_beside(path)
    try:
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _new_beside(path: Path) -> tuple[Path, int]:
    """Return the path of a new file beside another one, and its descriptor.

    Raises
    ------
    OSError
        If it cannot be made, or a device or pipe would be replaced by it.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    # Nobody can have made a file or a link of this name before: O_EXCL refuses both.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return temporary, os.open(temporary, flags, 0o600)


def write_by(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as `write_whole` does, by a function that is given it open."""
    temporary, descriptor = _new_beside(path)
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_npz(
    path: Path, folder: Path | None = None, only: str = "", *, compressed: bool = False
) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a file, without ever unpickling; large ones mapped in a folder.

    With ``only``, no other than this one is read. No more memory is taken than the file has bytes:
    members are not compressed, but in a file of the operator's own data (``compressed``), a header
    must agree with the length of its member, and no two members have a byte in common.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is damaged, or is no archive of arrays.
    """
    try:
        # numpy leaves a file it opened itself open when the archive is damaged.
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):  # numpy would take it for a pickle
                raise zipfile.BadZipFile("not an .npz file")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                held = sum(entry.compress_size for entry in archive.infolist())
                if held > os.fstat(file.fileno()).st_size:  # else each could be as long as the file
                    raise ValueError("its members overlap")
                named = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
                arrays = {
                    name: _read_member(archive, entry, folder, compressed)
                    for name, entry in named.items()
                    if only in ("", name)
                }
    except _DAMAGE as error:
        raise ValueError(said_of(error)) from None
    return arrays


def _read_member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path | None, compressed: bool
) -> NDArray[Any]:
    name, size = entry.filename, entry.file_size
    if not name.endswith(".npy"):
        raise ValueError(f"{name} is not an array")
    stored = entry.compress_type == zipfile.ZIP_STORED and size <= entry.compress_size
    if not (stored or compressed):
        raise ValueError(f"{name} is compressed")
    with archive.open(entry) as member:
        version = npy.read_magic(member)
        if version == (1, 0):
            shape, fortran, dtype = npy.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, fortran, dtype = npy.read_array_header_2_0(member)
        else:
            raise ValueError(f"{name} is of another format")
        if dtype.hasobject or member.tell() + math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{name} is of another format")
        array = mapped.empty(shape[::-1] if fortran else shape, dtype, folder)
        flat = array.reshape(-1)
        for part in mapped.blocks(flat):
            flat[part] = np.frombuffer(member.read(flat[part].nbytes), dtype)
        if member.read(1):  # at its end the checksum is looked at
            raise ValueError(f"{name} is too long")
        return array.T if fortran else array


def open_regular(path: Path) -> BinaryIO:
    """Return a file to read, without waiting for a writer (raises ``OSError``).

    A pipe or device, to which a link in a folder that was handed on may lead, never ends.
    """
    file = open(  # noqa: SIM115 - handed to the caller
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_whole(path: Path, longest: int = LONGEST_TEXT) -> bytes:
    """Return the content of a regular file of at most ``longest`` bytes (raises ``OSError``)."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > longest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def read_text(path: Path, longest: int = LONGEST_TEXT) -> str:
    """Return the text of a regular file of at most ``longest`` bytes.

    Raises
    ------
    OSError
        If it cannot be read, or is no such file.
    ValueError
        If it is not UTF-8.
    """
    return read_whole(path, longest).decode()


def read_given(path: Path) -> str:
    """Return the text of a file that a person named on a command line or in a key, or of a pipe.

    No more is read than `LONGEST_GIVEN` bytes: a device such as /dev/zero never ends.

    Raises
    ------
    OSError
        If it cannot be read, or is longer.
    ValueError
        If it is not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(LONGEST_GIVEN + 1)
    if len(data) > LONGEST_GIVEN:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data.decode()


def open_own(path: Path) -> int:
    """Return a descriptor of a file to lock, append to or protect, made with mode 0600 if need be.

    Raises
    ------
    OSError
        Where it cannot be used: a link, or no regular file, which somebody else may have put there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
