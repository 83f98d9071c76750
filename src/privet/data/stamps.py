"""When the files that data are read from were changed: what is read from them is cached by that."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISDIR
from typing import Any

Stamp = tuple[Any, ...]
"""Of a file its path, size, inode, and times of the last change of contents and of status."""


def stamps(sources: Iterable[str | Path], most: float = float("inf")) -> tuple[Stamp, ...] | None:
    """Return the stamps of files, and of all files below folders.

    None where one is missing, or where there are more than ``most``.
    """
    files: list[Path] = []
    try:
        for source in map(Path, sources):
            if S_ISDIR(source.stat().st_mode):
                for where, folders, names in os.walk(source, followlinks=True):
                    folders.sort()
                    files += [Path(where, name) for name in sorted(names)]
                    if len(files) > most:
                        return None
            else:
                files.append(source)
        return tuple(map(stamp, files))
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None


def has_more(folder: str | Path, most: int) -> bool:
    """Return whether more than ``most`` files are below a folder; it looks at no more than these.

    Links are followed, as `stamps` does: some of a file system lead back to where they are.
    """
    count = 0
    try:
        for _, _, names in os.walk(folder, followlinks=True):
            count += len(names)
            if count > most:
                return True
    except ValueError:  # a NUL in the path, at which there is nothing
        return False
    return False


def stamp(file: Path) -> Stamp:
    """Return the stamp of a file (raises ``OSError``)."""
    found = file.stat()
    return str(file), found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
