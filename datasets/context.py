"""The problem of the agent that a Flower node is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from privet.datasets.dataset import DataError
from privet.datasets.problem import problem_from_config
from privet.problems import LinearModel


class NodeContext(Protocol):
    """What is read of a Flower context."""

    @property
    def node_config(self) -> Mapping[str, Any]:
        """The node's own configuration."""
        ...

    @property
    def run_config(self) -> Mapping[str, Any]:
        """The run's configuration."""
        ...


def problem_from_context(context: NodeContext) -> LinearModel[Any]:
    """Return f_i of the node: its data keys win over the run config's.

    The agent's number is ``partition-id``; the data are dealt to ``num-agents`` agents, or to
    ``num-partitions`` where the run config does not say.

    Raises
    ------
    DataError
        If the node has no ``partition-id``, or data or keys cannot be used.
    """
    config = {**context.run_config, **context.node_config}
    if "partition-id" not in config:
        raise DataError("node config has no partition-id: start the SuperNode with one")
    count = int(config.get("num-agents", 0)) or int(config.get("num-partitions", 0))
    return problem_from_config(config, int(config["partition-id"]), count)
