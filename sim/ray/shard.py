"""What runs inside a Ray actor: a share of the nodes, with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from privet.sim.grid import App, NodeConfig, Nodes, message_about, raised
from privet.sim.ray.arena import Arena, Tray
from privet.sim.ray.batches import (
    Letter,
    Parcel,
    decode_letter,
    decode_shared,
    encode_reply,
    seal,
    unseal,
)
from privet.wire.records import Record

Factory = Callable[[], App]
"""Makes the ClientApp, in the process where it is to run."""


class Answers(NamedTuple):
    """The replies to a batch.

    ``needed`` is the shared memory with which their large values would all have fitted, in bytes;
    None where the actor sees none, being on another machine than the grid.
    """

    replies: list[Letter]
    needed: int | None


class Shard:
    """Some of the nodes of a ``RayGrid``.

    ``arenas`` are the addresses of the grid's memory for messages to all actors and for replies of
    this one, and ``in_band`` is how answers are sealed; the other arguments are those of ``Nodes``.
    """

    def __init__(
        self,
        factory: Factory,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
        arenas: tuple[str, str] | None = None,
        in_band: bool = False,
    ) -> None:
        self._in_band = in_band
        self._nodes = Nodes(factory(), run_id, configs, run_config)
        self._asked: Arena | None = None
        self._answered: Arena | None = None
        if arenas is not None:
            with suppress(OSError):
                self._asked, self._answered = map(Arena, arenas)

    def ready(self) -> bool:
        """Return once the ClientApp is built."""
        return True

    def answer(self, shared: Parcel, letters: Parcel, room: int) -> Parcel:
        """Run a batch of messages through their nodes and return ``Answers``, in order.

        ``room`` is how many bytes of the memory for replies may be written. A message that cannot
        be read, or a reply that cannot be sent, is an error of its own node only.
        """
        tray = Tray(self._answered, room)
        records = decode_shared(unseal(shared), self._asked)
        asked: list[Letter] = unseal(letters)
        replies = [self._reply(letter, records, tray) for letter in asked]
        needed = None if self._answered is None else tray.needed
        try:
            return seal(Answers(replies, needed), in_band=self._in_band)
        except Exception:  # some reply holds a value that cannot be pickled
            fit = [_sealable(*one) for one in zip(asked, replies, strict=True)]
            return seal(Answers(fit, needed), in_band=self._in_band)

    def _reply(self, letter: Letter, shared: Sequence[Record], tray: Tray) -> Letter:
        try:
            return encode_reply(
                self._nodes.answer(decode_letter(letter, shared, self._asked)), tray
            )
        except Exception as error:
            return _failed(letter, error)

    def states(self) -> dict[str, bytes]:
        """Return the packed states of the agents here, by name."""
        return self._nodes.states()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Put back the states of the agents here."""
        self._nodes.restore(states)


def _sealable(asked: Letter, reply: Letter) -> Letter:
    """Return a reply if it can be pickled, else the error in its place."""
    try:
        seal(reply, in_band=True)
    except Exception as error:
        return _failed(asked, error)
    return reply


def _failed(asked: Letter, error: Exception) -> Letter:
    return encode_reply(raised(message_about(asked[0], None), error), Tray())
