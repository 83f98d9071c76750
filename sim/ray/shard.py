"""What runs inside a Ray actor: a share of the nodes, with their states."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Message

from privet.sim.grid import App, NodeConfig, Nodes, raised

Factory = Callable[[], App]
"""Makes the ClientApp, in the process where it is to run."""


class Shard:
    """Some of the nodes of a ``RayGrid``; the arguments are those of ``Nodes``."""

    def __init__(
        self,
        factory: Factory,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
    ) -> None:
        self._nodes = Nodes(factory(), run_id, configs, run_config)

    def ready(self) -> bool:
        """Return once the ClientApp is built."""
        return True

    def answer(self, batch: bytes) -> bytes:
        """Run pickled messages through their nodes and return the pickled replies, in order.

        A reply that cannot be sent is an error of its own node only.
        """
        messages: list[Message] = pickle.loads(batch)
        replies = [self._nodes.answer(message) for message in messages]
        try:
            return _pickled(replies)
        except Exception:  # some reply holds a value that cannot be pickled
            return _pickled([_sendable(*one) for one in zip(messages, replies, strict=True)])

    def states(self) -> dict[str, bytes]:
        """Return the packed states of the agents here, by name."""
        return self._nodes.states()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Put back the states of the agents here."""
        self._nodes.restore(states)


def _sendable(message: Message, reply: Message) -> Message:
    """Return a reply if it can be pickled, else the error in its place."""
    try:
        _pickled(reply)
    except Exception as error:
        return raised(message, error)
    return reply


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
