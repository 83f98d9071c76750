"""Memory that processes of one machine share, for the large values of a batch.

Ray's object store creates, seals and looks up an object for every batch; this memory stays mapped
and is written again. It has no name in any folder: the system takes it back when the last process
that holds it ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from pickle import PickleBuffer

LARGEST = 64 << 20
"""Bytes an arena has at most; what does not fit travels as it would without one."""


Placed = tuple[int, int]
"""Where a value lies in an arena: its first byte, and the one after its last."""
Carried = tuple[PickleBuffer]
"""A value that is in no arena and travels as a buffer."""


class Arena:
    """Bytes that two processes see; an object that is no longer used lets go of them.

    Parameters
    ----------
    address : str, optional
        ``Arena.address`` of the process that made it; by default a new, empty one is made.

    Raises
    ------
    OSError
        Where the system has no such memory, or the one that is meant is not on this machine.
    """

    def __init__(self, address: str = "") -> None:
        if address:
            path, _, name = address.partition(" ")
            # The same path may be some other file on another machine.
            if not os.readlink(path).startswith(f"/memfd:{name} "):
                raise OSError(f"{path} is not the memory that is meant")
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self.address = address
        else:
            if not hasattr(os, "memfd_create"):
                raise OSError("this system has no anonymous files")
            name = f"privet-{secrets.token_hex(8)}"
            self._file = os.memfd_create(name)
            self.address = f"/proc/{os.getpid()}/fd/{self._file} {name}"
        self._map: mmap.mmap | None = None
        self._size = 0
        weakref.finalize(self, os.close, self._file)

    def grow(self, size: int) -> int:
        """Make room for ``size`` bytes, or the most there may be, and return the room there is."""
        size = min(size, LARGEST)
        if size > self._size:
            os.ftruncate(self._file, size)
            self._size = size
        return self._size

    def write(self, begin: int, value: bytes) -> Placed:
        """Put a value where there is room for it."""
        end = begin + len(value)
        self._mapped(end)[begin:end] = value
        return begin, end

    def read(self, placed: Placed) -> bytes:
        """Return a copy of a value."""
        begin, end = placed
        return self._mapped(end)[begin:end]

    def _mapped(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self._file, 0)
        return self._map


def new_arena() -> Arena | None:
    """Return an empty arena, or None where the system has no such memory."""
    try:
        return Arena()
    except OSError:
        return None


class Tray:
    """Takes the large values of one batch: into an arena while they fit, as buffers otherwise.

    Parameters
    ----------
    arena : Arena, optional
    room : int
        Bytes of the arena that may be written.

    Attributes
    ----------
    needed : int
        Bytes of all values so far: the room with which they would all have fitted.
    """

    def __init__(self, arena: Arena | None = None, room: int = 0) -> None:
        self._arena = arena
        self._room = room
        self.needed = 0

    def place(self, value: bytes) -> Placed | Carried:
        """Return what stands for a value in the batch: a tuple, which no record holds otherwise."""
        begin, self.needed = self.needed, self.needed + len(value)
        if self._arena is None or self.needed > self._room:
            return (PickleBuffer(value),)
        return self._arena.write(begin, value)
