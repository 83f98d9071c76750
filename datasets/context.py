"""The problem of the agent that a Flower node is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from privet.datasets.dataset import DataError
from privet.datasets.problem import problem_from_config
from privet.datasets.settings import DataSettings
from privet.problems import LinearModel

DATA_KEYS = {name.replace("_", "-") for name in DataSettings.__dataclass_fields__}


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
    """Return f_i of the node.

    The agent's number is ``partition-id``; the data are dealt to ``num-agents`` agents, or to
    ``num-partitions`` where the run config does not say. A node that sets any data key of its own
    takes none from the run config: which records it trains on, and how they are dealt, is then
    its operator's choice alone.

    Raises
    ------
    DataError
        If the node has no ``partition-id``, or data or keys cannot be used.
    """
    own = context.node_config
    config = dict(own) if DATA_KEYS & own.keys() else {**context.run_config, **own}
    if "partition-id" not in own:
        raise DataError("node config has no partition-id: start the SuperNode with one")
    count = int(config.get("num-agents", 0)) or int(own.get("num-partitions", 0))
    return problem_from_config(config, int(own["partition-id"]), count)
