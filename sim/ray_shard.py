"""What runs inside a Ray actor: a share of the nodes, with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from privet.sim.arena import Arena, Tray
from privet.sim.batches import Letter, Parcel, decode_messages, encode_reply, seal, unseal
from privet.sim.grid import App, NodeConfig, Nodes

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
    this one; the other arguments are those of ``Nodes``.
    """

    def __init__(
        self,
        factory: Factory,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
        arenas: tuple[str, str] | None = None,
    ) -> None:
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

        ``room`` is how many bytes of the memory for replies may be written.
        """
        tray = Tray(self._answered, room)
        replies = []
        for message in decode_messages(unseal(shared), unseal(letters), self._asked):
            replies.append(encode_reply(self._nodes.answer(message), tray))
        return seal(Answers(replies, None if self._answered is None else tray.needed))

    def states(self) -> dict[str, bytes]:
        """Return the packed states of the agents here, by name."""
        return self._nodes.states()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Put back the states of the agents here."""
        self._nodes.restore(states)
