"""Batches of messages on their way between processes: a pickle, and its large values beside it.

Flower's messages pickle as fast as anything built for the purpose, and what several of them share,
such as the record of the broadcast, is in the pickle once. Ray's object store creates, seals and
looks up an object for every batch: with models of 10,000 parameters that takes longer than all
else, and `privet bench engine` misses its goal. An `Arena` stays mapped and is written again.

Actors on other machines see no arena. There the object store is worth its price for what is as
large as a model and sent to several actors: a machine fetches it once for all of them (`Common`).
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import secrets
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, Message

LARGE = 1 << 12
"""Bytes from which a value goes to the arena."""
SIZE = 1 << 29
"""Bytes of an arena, which takes up as many as have been written; others stay in the pickle, where
each is copied several times more. What a round wrote stays: the next one needs as much, and pages
that are new take longer than the copy."""
AT_WORK = struct.Struct("<Q")
"""The id of the node at work, behind the values; 0 while none is."""
CROSSES_ONCE = 1 << 17
"""Bytes from which a value for several actors goes to the object store; below, Ray copies it to
each of them within the call."""


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
            os.ftruncate(file, SIZE + AT_WORK.size)
            # Reserved, as `write` does, before anybody writes it.
            os.posix_fallocate(file, SIZE, AT_WORK.size)
        self.address = f"/proc/{os.getpid()}/fd/{file} {name}"
        weakref.finalize(self, os.close, file)
        self._file, self._reserved = file, 0
        self.memory = mmap.mmap(file, SIZE + AT_WORK.size)

    def write(self, begin: int, value: bytes) -> bool:
        """Write a value at a place; return whether there is room for it.

        Memory is reserved first. Where the system refuses it, as under strict overcommit, the write
        itself would end the process with SIGBUS.
        """
        end = begin + len(value)
        if end > SIZE:
            return False
        if end > self._reserved:
            try:
                os.posix_fallocate(self._file, self._reserved, end - self._reserved)
            except OSError:
                return False
            self._reserved = end
        self.memory[begin:end] = value
        return True

    @property
    def at_work(self) -> int:
        """The node whose message is being answered, 0 for none; it outlives the process."""
        (node,) = AT_WORK.unpack_from(self.memory, SIZE)
        return int(node)

    @at_work.setter
    def at_work(self, node: int) -> None:
        AT_WORK.pack_into(self.memory, SIZE, node)


def new_arena(address: str = "") -> Arena | None:
    """Return an arena, None where the system has no such memory or it is on another machine."""
    try:
        return Arena(address)
    except OSError:
        return None


class Common:
    """Large values that the batches of several actors have in common, for one round of them.

    Parameters
    ----------
    put : callable
        Puts a value into the object store and returns its reference.
    """

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._seen: dict[int, int] = {}
        self._references: dict[int, Any] = {}

    def note(self, messages: Iterable[Message]) -> None:
        """Note the large values of a batch; those of two batches are in common."""
        here = {
            id(value): len(value)
            for message in messages
            if message.has_content()
            for record in message.content.values()
            for value in _values(record)
            if type(value) is bytes and len(value) >= CROSSES_ONCE
        }
        for key in here:
            self._seen[key] = self._seen.get(key, 0) + 1

    def reference(self, value: bytes) -> Any:
        """Return the reference of a value that is in common, else None."""
        if self._seen.get(id(value), 0) < 2:
            return None
        if id(value) not in self._references:
            self._references[id(value)] = self._put(value)
        return self._references[id(value)]


def _values(record: Any) -> list[Any]:
    if isinstance(record, ArrayRecord):
        return [array.data for array in record.values()]
    return list(record.values())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arena: Arena | None, common: Common | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._arena, self._common = arena, common
        self._end = 0
        self.references: dict[Any, int] = {}

    def persistent_id(self, value: object) -> int | tuple[int, int] | None:
        if type(value) is not bytes or len(value) < LARGE:
            return None
        if self._common is not None and (reference := self._common.reference(value)) is not None:
            return self.references.setdefault(reference, len(self.references))
        if self._arena is None or not self._arena.write(self._end, value):
            return None
        begin, self._end = self._end, self._end + len(value)
        return begin, self._end


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arena: Arena | None, common: Sequence[bytes]) -> None:
        super().__init__(file)
        self._arena, self._common = arena, common

    def persistent_load(self, place: int | tuple[int, int]) -> bytes:
        if isinstance(place, int):
            return self._common[place]
        assert self._arena is not None
        begin, end = place
        return self._arena.memory[begin:end]


class Packed(NamedTuple):
    """A batch as pickles, and references to the values that it has in common with others."""

    batch: bytes
    references: list[Any]


def pack(messages: Iterable[Message], arena: Arena | None, common: Common | None = None) -> Packed:
    """Return messages as pickles, their large values beside them.

    They are in the object store where they are in common, else in the arena, which nobody reads
    now. Each message is packed as it comes, while the processor still has it at hand.
    """
    file = io.BytesIO()
    beside = arena is not None or common is not None
    pickler = (
        _Pickler(file, arena, common) if beside else pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    )
    for message in messages:
        pickler.dump(message)
    return Packed(file.getvalue(), list(getattr(pickler, "references", ())))


def unpack(batch: bytes, arena: Arena | None, common: Sequence[bytes] = ()) -> Iterator[Message]:
    """Yield the messages of ``pack``, whose arena must be left as it is until the last one.

    ``common`` are the values of its references.
    """
    file = io.BytesIO(batch)
    unpickler = _Unpickler(file, arena, common)
    while file.tell() < len(batch):
        yield unpickler.load()
