"""The cohort engine: the in-process engine, whose agents work together where they can.

Agents of equal shape, settings and solver do a round's local work in one call, without messages
(`privet.client_apps.cohort`); all others are sent their messages as on the in-process engine. The
bits are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.client_apps.app import AgentApp
from privet.client_apps.cohort import Cohort, Tags, Trained
from privet.sim.engine import InlineGrid
from privet.sim.grid import App, NodeConfig


class CohortGrid(InlineGrid):
    """Runs the agents in this process, together where they can; arguments as `InlineGrid`.

    An agent's state is in its context, or, while it works with others, in their tables.
    """

    def __init__(
        self,
        client_app: App,
        nodes: int | Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(client_app, nodes, run_config)
        participant = client_app.participant if isinstance(client_app, AgentApp) else None
        self._cohort: Cohort | None = None
        if participant is not None and participant.stackable:
            self._cohort = Cohort(participant, self._nodes.contexts)

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the nodes, by node id, with the states in them."""
        self._release()
        return super().contexts

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
    ) -> list[Trained]:
        """Do a round's local work of those of these nodes that can do it together."""
        if self._cohort is None or not self.online.issuperset(nodes):
            return []
        return self._cohort.train(shared, nodes, tags, states)

    def deliver(self, message: Message) -> Message | None:
        """Run one message at its node."""
        self._release([message.metadata.dst_node_id])
        return super().deliver(message)

    def node_states(self) -> dict[str, bytes]:
        """Return the packed state of every agent that has one, by agent name."""
        self._release(keep=True)
        return super().node_states()

    def restore_node_states(self, states: Mapping[str, bytes]) -> None:
        """Put back what ``node_states`` returned."""
        self._release()
        super().restore_node_states(states)

    def _release(self, nodes: Sequence[int] | None = None, *, keep: bool = False) -> None:
        if self._cohort is not None:
            self._cohort.release(nodes, keep=keep)
