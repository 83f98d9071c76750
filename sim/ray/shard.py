"""The code inside a Ray actor: a share of the nodes, with their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from privet.agents.cohort import Tags, Trained
from privet.agents.state_tables import StateTable

from ..cohort import CohortNodes
from ..grid import App, NodeConfig, raised
from .batches import new_arena, pack, unpack

Factory = Callable[[], App]
"""Makes the ClientApp, in the process where it is to run."""


class PackedReplies(NamedTuple):
    """The packed replies to a batch, and whether the actor sees the arena."""

    replies: bytes
    shared: bool


class Shard:
    """Some of the nodes of a ``RayGrid``.

    ``address`` is that of the arena, empty where there is none; the other arguments are those of
    ``Nodes``.
    """

    def __init__(
        self,
        factory: Factory,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
        address: str,
    ) -> None:
        self._nodes = CohortNodes(factory(), run_id, configs, run_config)
        self._arena = new_arena(address) if address else None

    def ready(self) -> str:
        """Return, once the ClientApp is built, Ray's id of the host."""
        import ray

        host: str = ray.get_runtime_context().get_node_id()
        return host

    def answer(self, batch: bytes, free: bool, *common: bytes) -> PackedReplies:
        """Run messages through their nodes and return the replies, in order.

        ``free`` is true if the arena may be written; ``common`` are values of the messages. A reply
        that cannot be pickled becomes an error of its node only.
        """
        messages = list(unpack(batch, self._arena, common))
        replies: list[Message] = []

        def answered() -> Iterator[Message]:
            for message in messages:
                replies.append(self._answer(message))
                yield replies[-1]

        arena = self._arena if free else None
        try:
            packed = pack(answered(), arena).batch
        except Exception:  # some reply holds a value that cannot be pickled
            replies += [self._answer(rest) for rest in messages[len(replies) :]]
            fit = [_sendable(*one) for one in zip(messages, replies, strict=True)]
            packed = pack(fit, arena).batch
        return PackedReplies(packed, self._arena is not None)

    def _answer(self, message: Message) -> Message:
        """Return a node's reply; the arena says meanwhile which node is at work."""
        if self._arena is None:
            return self._nodes.answer(message)
        self._arena.at_work = message.metadata.dst_node_id
        try:
            return self._nodes.answer(message)
        finally:
            self._arena.at_work = 0

    def train(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
    ) -> list[Trained]:
        """Do a round's local work for those of the nodes that can be batched."""
        return self._nodes.train(shared, nodes, tags, states, per_agent)

    def states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states of the agents here; ``accepted`` as of a grid."""
        return self._nodes.states(accepted)

    def restore(self, states: Sequence[StateTable]) -> None:
        """Restore the states of the agents here."""
        self._nodes.restore(states)

    def release(self, nodes: Sequence[int]) -> list[StateTable]:
        """Give up nodes; return the states of their agents."""
        return self._nodes.give_up(nodes)

    def adopt(self, configs: Mapping[int, NodeConfig], states: Sequence[StateTable] | None) -> None:
        """Take nodes over, with the states of their agents if there are some."""
        self._nodes.add(configs)
        self._nodes.restore(states or [])


def _sendable(message: Message, reply: Message) -> Message:
    """Return a reply if it can be pickled, else the error in its place."""
    try:
        pack([reply], None)
    except Exception as error:
        return raised(message, error)
    return reply
