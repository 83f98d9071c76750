"""The Ray engine on which chosen messages meet a chosen fate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from flwr.app import Message, MessageType

from privet.agents.state_tables import StateTable
from privet.sim.grid import App, NodeConfig
from privet.sim.ray.batches import pack, unpack
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import ray_session
from privet.sim.ray.shard import Factory, Shard
from privet.wire import RECORD
from privet.wire.contract import read_instruction

from .grids import AskedByMessage, Fates, forget_all

ACTORS = 2


class WatchedRay(AskedByMessage, RayGrid):
    """Runs the agents in two actors; arguments as `privet.testing.grids.WatchedGrid`.

    Inside `kept_actors` the actors are those of the grid before.
    """

    _idle: ClassVar[list[Any] | None] = None

    def __init__(
        self,
        factory: Factory,
        nodes: Sequence[NodeConfig],
        fates: Fates | None = None,
        *,
        keeps_states: bool = True,
    ) -> None:
        self.fates = dict(fates or {})
        self.keeps_states = keeps_states
        super().__init__(factory, nodes, actors=ACTORS)

    def dispatch(self, messages: list[Message]) -> None:
        """Send the messages to the actors, or let them meet their fates."""
        fated = [(message, self._fate(message)) for message in messages]
        super().dispatch([message for message, fate in fated if fate is None])
        for message, fate in fated:
            reply = None if fate is None else fate(self, message)
            if reply is not None:
                self.arrived(message, reply)

    def _fate(self, message: Message) -> Any:
        if message.metadata.message_type != MessageType.TRAIN or RECORD not in message.content:
            return None
        agent = str(self.node_configs[message.metadata.dst_node_id]["partition-id"])
        return self.fates.pop((agent, read_instruction(message.content).round), None)

    def deliver_as_is(self, message: Message) -> Message | None:
        """Deliver a message as if nothing were wrong."""
        super().dispatch([message])
        self._collect([message.metadata.message_id], None)
        return self._replies.pop(message.metadata.message_id, None)

    def deliver_to(self, app: App, message: Message) -> Message | None:
        """Deliver a message to another ClientApp at its node."""
        (reply,) = unpack(self._call(message, _answer_with, app, pack([message], None).batch), None)
        return reply

    def lose_state(self, node: int) -> None:
        """Empty a node's context."""
        self._ray.get(self._actor_of(node).__ray_call__.remote(_forget, node))

    def _call(self, message: Message, function: Any, *arguments: Any) -> Any:
        actor = self._actor_of(message.metadata.dst_node_id)
        return self._ray.get(actor.__ray_call__.remote(function, *arguments))

    def _actor_of(self, node: int) -> Any:
        seat = self._actors.seat_of(node)
        assert seat is not None
        return seat.actor

    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have, unless the grid keeps none."""
        return super().node_states(accepted) if self.keeps_states else []

    def _start(self, nodes: list[int], address: str) -> Any:
        if not self._idle:
            return super()._start(nodes, address)
        actor, configs = self._idle.pop(), {node: self.node_configs[node] for node in nodes}
        made = (self._sent_factory, self.run.run_id, configs, self._run_config, address)
        self._ray.get(actor.__ray_call__.remote(Shard.__init__, *made))
        return actor

    def close(self) -> None:
        """End the actors, or leave them to the next grid."""
        if self._idle is not None:
            self._idle.extend(self.actors)
            self._actors.seats.clear()
        super().close()


@contextmanager
def kept_actors() -> Iterator[None]:
    """Have all grids inside, one after the other, use the same actors: to start them takes seconds.

    Raises
    ------
    ConfigError, RunError
        As `privet.sim.ray.session.ray_session`.
    """
    with ray_session(num_cpus=ACTORS):
        WatchedRay._idle = []
        try:
            yield
        finally:
            WatchedRay._idle = None


def _answer_with(shard: Any, app: App, packed: bytes) -> bytes:
    nodes = shard._nodes
    usual, nodes.client_app = nodes.client_app, app
    try:
        return pack([nodes.answer(message) for message in unpack(packed, None)], None).batch
    finally:
        nodes.client_app = usual


def _forget(shard: Any, node: int) -> None:
    shard._nodes.release([node])
    forget_all(shard._nodes.contexts[node])
