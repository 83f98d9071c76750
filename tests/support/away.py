"""Nodes of a run config of which one is away for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Message

from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.wire import ENROL


class Away(InlineGrid):
    """Nodes of which one does not answer from its n-th message of training on, until another."""

    def __init__(
        self, nodes: list[dict[str, Any]], config: Mapping[str, Any], first: int, last: int
    ) -> None:
        super().__init__(configured_app(), nodes, config)
        self.first, self.last, self.asked = first, last, 0
        self.node = list(self.node_configs)[2]

    def deliver(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id == self.node and message.metadata.message_type != ENROL:
            self.asked += 1
            if self.first <= self.asked <= self.last:
                return self.not_connected(message)
        return super().deliver(message)
