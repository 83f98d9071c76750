"""Engines on which chosen messages meet a chosen fate; the in-process one keeps what is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType
from numpy.typing import NDArray

from privet.agents.cohort import Tags, row_of
from privet.agents.inputs import starting_rows
from privet.agents.state_tables import StateTable
from privet.client_apps import agent_name
from privet.rounds.together import Worked
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.grid import App, NodeConfig
from privet.wire import AGENT_RECORD, RECORD, Instruction
from privet.wire.contract import agent_record, read_instruction
from privet.wire.records import record_dict


class Fated(Protocol):
    """A grid whose messages may meet a fate."""

    def deliver_as_is(self, message: Message) -> Message | None:
        """Deliver a message as if nothing were wrong."""
        ...

    def deliver_to(self, app: App, message: Message) -> Message | None:
        """Deliver a message to another ClientApp at its node."""
        ...

    def not_connected(self, message: Message) -> Message:
        """Return the error reply of a node that is away."""
        ...

    def lose_state(self, node: int) -> None:
        """Empty a node's context."""
        ...


Fate = Callable[[Any, Message], Message | None]
"""Treatment of a training message on a `Fated` grid: returns the reply, or None for one that never
arrives."""

Fates = Mapping[tuple[str, int], Fate]
"""Fates by agent and round; each is met once."""


class Exchange(NamedTuple):
    """A training message and the reply that the server is given."""

    agent: str
    instruction: Instruction
    reply: Message | None


class WatchedGrid(InlineGrid):
    """Runs every agent in this process.

    Parameters
    ----------
    client_app : ClientApp or callable
    nodes : sequence of mappings
        One node config each.
    fates : mapping, optional
        Treatment of chosen messages; all others are delivered.
    keeps_states : bool
        Whether checkpoints hold the nodes' states. Nodes that come back have lost theirs if not.
    """

    def __init__(
        self,
        client_app: App,
        nodes: Sequence[NodeConfig],
        fates: Fates | None = None,
        *,
        keeps_states: bool = True,
    ) -> None:
        super().__init__(client_app, nodes)
        self.fates = dict(fates or {})
        self.keeps_states = keeps_states
        self.exchanges: list[Exchange] = []

    def deliver(self, message: Message) -> Message | None:
        """Deliver a message, or let it meet its fate, and record the exchange."""
        if message.metadata.message_type != MessageType.TRAIN:
            return super().deliver(message)
        agent = agent_name(self.contexts[message.metadata.dst_node_id])
        instruction = read_instruction(message.content)
        fate = self.fates.pop((agent, instruction.round), None)
        reply = self.deliver_as_is(message) if fate is None else fate(self, message)
        self.exchanges.append(Exchange(agent, instruction, reply))
        return reply

    def deliver_as_is(self, message: Message) -> Message | None:
        """Deliver a message as if nothing were wrong."""
        return super().deliver(message)

    def deliver_to(self, app: App, message: Message) -> Message | None:
        """Deliver a message to another ClientApp at its node."""
        return app(message, self.contexts[message.metadata.dst_node_id])

    def lose_state(self, node: int) -> None:
        """Empty a node's context."""
        forget_all(self.contexts[node])

    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have, unless the grid keeps none."""
        return super().node_states(accepted) if self.keeps_states else []

    def sent_to(self, agent: str, round_: int) -> list[Instruction]:
        """Return the instructions sent to an agent in a round; two where it asked for its state."""
        return [
            exchange.instruction
            for exchange in self.exchanges
            if (exchange.agent, exchange.instruction.round) == (agent, round_)
        ]


class AskedByMessage:
    """A grid whose agents work together, but for those that meet a fate in a round."""

    fates: dict[tuple[str, int], Fate]
    node_configs: dict[int, dict[str, Any]]

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
        timeout: float,
    ) -> Worked:
        """Do a round's local work of the agents that meet no fate."""
        round_ = read_instruction(
            record_dict({RECORD: shared, AGENT_RECORD: agent_record(0)})
        ).round
        names = [str(self.node_configs[node]["partition-id"]) for node in nodes]
        free = np.array([(name, round_) not in self.fates for name in names], bool)
        places = np.flatnonzero(free)
        some = [nodes[place] for place in places.tolist()]
        inputs = states and starting_rows(states, free), row_of(per_agent, free)
        work: Any = super()
        worked = work.train_together(shared, some, tags[free], *inputs, timeout)
        done = [one._replace(places=places[one.places]) for one in worked.done]
        return Worked(done, {int(places[one]): why for one, why in worked.missing.items()})


class WatchedCohort(AskedByMessage, WatchedGrid, CohortGrid):
    """A `WatchedGrid` on the cohort engine."""


def forget_all(context: Context) -> None:
    """Empty a context's state."""
    for record in list(context.state.keys()):
        del context.state[record]


def lose_reply(grid: Fated, message: Message) -> None:
    """Let the agent work and lose its reply."""
    grid.deliver_as_is(message)


def disconnect(grid: Fated, message: Message) -> Message:
    """Answer as Flower does for a node that is away."""
    return grid.not_connected(message)


def lose_state(grid: Fated, message: Message) -> Message | None:
    """Empty the node's context before the agent gets the message, as a restart does."""
    grid.lose_state(message.metadata.dst_node_id)
    return grid.deliver_as_is(message)


def changed(change: Callable[[Message], None]) -> Fate:
    """Return the fate of a message whose reply is changed on its way to the server."""

    def fate(grid: Fated, message: Message) -> Message | None:
        reply = grid.deliver_as_is(message)
        if reply is not None and reply.has_content():
            change(reply)
        return reply

    return fate
