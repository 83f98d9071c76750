"""The cohort engine: the in-process engine, whose agents work together where they can.

Agents who are asked the same thing do a round's local work without messages
(`privet.client_apps.cohort`); all others are sent their messages as on the in-process engine. The
bits are the same. Every process of the Ray engine runs its own agents so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.client_apps.app import AgentApp
from privet.client_apps.cohort import Cohort, Tags, Trained
from privet.sim.engine import InlineGrid
from privet.sim.grid import App, NodeConfig, Nodes


class CohortNodes(Nodes):
    """Nodes whose agents work together where they can; arguments as `Nodes`.

    An agent's state is in its context, or, while it works with others, in their tables.
    """

    def __init__(
        self,
        client_app: App,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
    ) -> None:
        super().__init__(client_app, run_id, configs, run_config)
        participant = client_app.participant if isinstance(client_app, AgentApp) else None
        self._cohort: Cohort | None = None
        if participant is not None and participant.stackable:
            self._cohort = Cohort(participant, self.contexts)

    def train(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        besides: Mapping[str, NDArray[Any]],
    ) -> list[Trained]:
        """Do a round's local work of those of these nodes that can do it together."""
        if self._cohort is None:
            return []
        return self._cohort.train(shared, nodes, tags, states, besides)

    def answer(self, message: Message) -> Message:
        """Return a node's reply to a message, as `Nodes.answer`."""
        self.release([message.metadata.dst_node_id])
        return super().answer(message)

    def states(self) -> dict[str, bytes]:
        """Return the packed state of every agent that has one, by agent name."""
        self.release(keep=True)
        return super().states()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Put back what ``states`` returned."""
        self.release()
        super().restore(states)

    def release(self, nodes: Sequence[int] | None = None, *, keep: bool = False) -> None:
        """Put the states of all nodes, or of some, into their contexts."""
        if self._cohort is not None:
            self._cohort.release(nodes, keep=keep)


class CohortGrid(InlineGrid):
    """Runs the agents in this process, together where they can; arguments as `InlineGrid`."""

    _nodes: CohortNodes
    _kind = CohortNodes

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the nodes, by node id, with the states in them."""
        self._nodes.release()
        return super().contexts

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        besides: Mapping[str, NDArray[Any]],
        timeout: float,
    ) -> list[Trained]:
        """Do a round's local work of those of these nodes that can do it together, however long."""
        if not self.online.issuperset(nodes):
            return []
        with np.errstate(over="ignore", invalid="ignore"):  # as of agents that are asked by message
            return self._nodes.train(shared, nodes, tags, states, besides)
