"""What runs inside a Ray actor: a share of the nodes, with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from privet.sim.batches import Answer, Encoded, Letter, decode_messages, encode_reply
from privet.sim.grid import App, NodeConfig, Nodes, set_message_id

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

    def answer(self, shared: list[Encoded], letters: list[Letter]) -> list[Answer]:
        """Run a batch of messages through their nodes and return the replies in order."""
        answers = []
        for letter, message in zip(letters, decode_messages(shared, letters), strict=True):
            set_message_id(message, letter.message_id)
            answers.append(encode_reply(self._nodes.answer(message)))
        return answers

    def states(self) -> dict[str, bytes]:
        """Return the packed states of the agents here, by name."""
        return self._nodes.states()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Put back the states of the agents here."""
        self._nodes.restore(states)
