"""The in-process engine: a Flower Grid that calls the ClientApp directly.

Strategy, ClientApp and messages are the same as in a deployment; only the transport is a function
call. This module imports neither Ray nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message

from privet.agents.state_tables import StateTable

from .grid import App, LocalGrid, NodeConfig, Nodes


class InlineGrid(LocalGrid):
    """Runs every agent in this process, one after the other.

    Parameters
    ----------
    client_app : ClientApp or callable
        The handler of messages: ``(message, context) -> reply``.
    nodes : int or sequence of mappings
        Number of nodes, or one node config each, as in ``LocalGrid``.
    run_config : mapping, optional
        Passed to the ClientApp's context.
    """

    _kind: type[Nodes] = Nodes

    def __init__(
        self,
        client_app: App,
        nodes: int | Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(nodes, run_config or {})
        self._nodes = self._kind(client_app, self.run.run_id, self.node_configs, run_config or {})

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the nodes, by node id."""
        return self._nodes.contexts

    def dispatch(self, messages: list[Message]) -> None:
        """Run every message through its node and keep the replies."""
        for message in messages:
            reply = self.deliver(message)
            if reply is not None:
                self.arrived(message, reply)

    def deliver(self, message: Message) -> Message | None:
        """Return the reply of a message's node, or None for a reply that is lost."""
        if message.metadata.dst_node_id not in self.online:
            return self.not_connected(message)
        return self._nodes.answer(message)

    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have; the tables may change in the next round.

        With ``accepted``, by node the round of the upload accepted last, those of these nodes
        alone, and none from before that round where the agent has done no more.
        """
        return self._nodes.states(accepted)

    def restore_node_states(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``node_states`` returned."""
        self._nodes.restore(states)
