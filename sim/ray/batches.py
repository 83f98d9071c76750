"""Batches of messages on their way between processes: a pickle, and memory for its large values.

Flower's messages pickle as fast as anything built for the purpose, and what several of them share,
such as the record of the broadcast, is in the pickle once. Ray's object store creates, seals and
looks up an object for every batch: with models of 10,000 parameters that takes longer than all
else, and `privet bench engine` misses its goal. An `Arena` stays mapped and is written again.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import secrets
import weakref
from collections.abc import Iterable, Iterator

from flwr.app import Message

LARGE = 1 << 12
"""Bytes from which a value goes to the arena."""
SIZE = 1 << 29
"""Bytes of an arena, which takes up as many as have been written; others stay in the pickle, where
each is copied several times more. What a round wrote stays: the next one needs as much, and pages
that are new take longer than the copy."""


class Arena:
    """Memory that two processes of one machine share; it is freed with the object.

    It has no name in any folder: the system frees it when the last process that holds it ends,
    however it ends.

    Parameters
    ----------
    address : str, optional
        ``Arena.address`` of the process that made it; by default a new, empty one is made.

    Raises
    ------
    OSError
        If the system has no such memory, or the address is on another machine.
    """

    def __init__(self, address: str = "") -> None:
        if address:
            path, _, name = address.partition(" ")
            # The same path may be some other file on another machine.
            if not os.readlink(path).startswith(f"/memfd:{name} "):
                raise OSError(f"{path} is not the expected shared memory")
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            if not hasattr(os, "memfd_create"):
                raise OSError("this system does not support anonymous files")
            name = f"privet-{secrets.token_hex(8)}"
            file = os.memfd_create(name)
            os.ftruncate(file, SIZE)
        self.address = f"/proc/{os.getpid()}/fd/{file} {name}"
        weakref.finalize(self, os.close, file)
        self.memory = mmap.mmap(file, SIZE)


def new_arena(address: str = "") -> Arena | None:
    """Return an arena, None where the system has no such memory or it is on another machine."""
    try:
        return Arena(address)
    except OSError:
        return None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._arena = arena
        self._end = 0

    def persistent_id(self, value: object) -> tuple[int, int] | None:
        if type(value) is not bytes or not LARGE <= len(value) <= SIZE - self._end:
            return None
        begin, self._end = self._end, self._end + len(value)
        self._arena.memory[begin : self._end] = value
        return begin, self._end


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arena: Arena | None) -> None:
        super().__init__(file)
        self._arena = arena

    def persistent_load(self, place: tuple[int, int]) -> bytes:
        assert self._arena is not None
        begin, end = place
        return self._arena.memory[begin:end]


def pack(messages: Iterable[Message], arena: Arena | None) -> bytes:
    """Return messages as pickles, their large values written to an arena that nobody reads now.

    Each is packed as it comes, while the processor still has it at hand.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, arena) if arena else pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    for message in messages:
        pickler.dump(message)
    return file.getvalue()


def unpack(batch: bytes, arena: Arena | None) -> Iterator[Message]:
    """Yield the messages of ``pack``, whose arena must be left as it is until the last one."""
    file = io.BytesIO(batch)
    unpickler = _Unpickler(file, arena)
    while file.tell() < len(batch):
        yield unpickler.load()
