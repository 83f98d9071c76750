"""The cohort engine: the in-process engine, with agents batched where possible.

Agents with the same instruction do a round's local work as one batch, without messages
(`privet.agents.cohort`); all others are sent messages as on the in-process engine. The
results are the same bits. Every process of the Ray engine runs its agents this way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.agents.cohort import Cohort, Tags, Trained
from privet.agents.state_tables import StateTable
from privet.client_apps.app import AgentApp
from privet.rounds.together import Worked
from privet.wire import Enrolment

from .engine import InlineGrid
from .grid import App, NodeConfig, Nodes


class CohortNodes(Nodes):
    """Nodes whose agents are batched where possible; arguments as `Nodes`.

    An agent's state is in its context or, while it is in a batch, in the tables of the batch.
    """

    _cohort: Cohort | None = None

    def __init__(
        self,
        client_app: App,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
    ) -> None:
        super().__init__(client_app, run_id, configs, run_config)
        participant = client_app.participant if isinstance(client_app, AgentApp) else None
        if participant is not None and participant.stackable:
            self._cohort = Cohort(participant, self.contexts)

    def train(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
    ) -> list[Trained]:
        """Do a round's local work for those of the nodes that can be batched."""
        if self._cohort is None:
            return []
        return self._cohort.train(shared, nodes, tags, states, per_agent)

    def enrol(self, question: ConfigRecord, nodes: Sequence[int]) -> dict[int, Enrolment]:
        """Return the answers to the enrolment question that need no message."""
        return {} if self._cohort is None else self._cohort.enrol(question, nodes)

    def add(self, configs: Mapping[int, NodeConfig]) -> None:
        """Add nodes, whose agents have no state."""
        if self._cohort is not None:  # some may have been here before
            self._cohort.forget(configs)
        super().add(configs)

    def give_up(self, nodes: Iterable[int]) -> list[StateTable]:
        """Give nodes to another process; return the states of their agents."""
        self.release()
        here = self.contexts.keys() & set(nodes)
        states = super().states(elsewhere=self.contexts.keys() - here)
        if self._cohort is not None:
            self._cohort.forget(here)
        for node in here:
            del self.contexts[node]
        return states

    def answer(self, message: Message) -> Message:
        """Return a node's reply to a message, as `Nodes.answer`."""
        self.release([message.metadata.dst_node_id])
        return super().answer(message)

    def states(
        self, accepted: Mapping[int, int] | None = None, elsewhere: Container[int] = ()
    ) -> list[StateTable]:
        """Return the agents' states, as `Nodes.states`; those in batches until the next round."""
        if self._cohort is None:
            return super().states(accepted, elsewhere)
        tables, batched = self._cohort.states(accepted)
        return [*tables, *super().states(accepted, batched)]

    def restore(self, states: Iterable[StateTable]) -> None:
        """Restore the states that ``states`` returned."""
        self.release()
        super().restore(states)

    def release(self, nodes: Sequence[int] | None = None) -> None:
        """Move the states of the given nodes, by default all, back into their contexts."""
        if self._cohort is not None:
            self._cohort.release(nodes)


class CohortGrid(InlineGrid):
    """Runs the agents in this process, batched where possible; arguments as `InlineGrid`."""

    _nodes: CohortNodes
    _kind = CohortNodes

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the nodes, by node id, with the states in them."""
        self._nodes.release()
        return super().contexts

    def enrol_together(self, question: ConfigRecord, nodes: Sequence[int]) -> dict[int, Enrolment]:
        """Return the answers to the enrolment question that need no message."""
        with np.errstate(over="ignore", invalid="ignore"):  # as for agents that are sent messages
            return self._nodes.enrol(question, [node for node in nodes if node in self.online])

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
        timeout: float,
    ) -> Worked:
        """Do a round's local work for the nodes that can be batched; ``timeout`` is not used."""
        if not self.online.issuperset(nodes):
            return Worked([], {})
        with np.errstate(over="ignore", invalid="ignore"):  # as for agents that are sent messages
            return Worked(self._nodes.train(shared, nodes, tags, states, per_agent), {})
