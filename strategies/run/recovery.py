"""What becomes of an agent whose node is gone, and what a grid can do about it."""

from __future__ import annotations

from typing import Literal, Protocol, cast, runtime_checkable

from flwr.serverapp import Grid

Recovery = Literal["yes", "no", "node-key"]
"""Who takes the place of an agent whose node is gone: the next node that says its name, with its
state and its account; that node, but it begins anew; nobody, as names stay with nodes' keys."""


@runtime_checkable
class HoldsNodeStates(Protocol):
    """A grid that can hand over and take back the agents' states (this library's engines)."""

    def node_states(self) -> dict[str, bytes]:
        """Return the packed state of every node by agent name."""
        ...

    def restore_node_states(self, states: dict[str, bytes]) -> None:
        """Put the states back."""
        ...


def recovery_of(asked: str, grid: Grid) -> Recovery:
    """Return what ``recover-by-name`` means on a grid: "auto" is yes in simulation, else no.

    In simulation one process starts all nodes, so that nobody else can say a name, and a node has
    another id in every run. Flower's simulation is known by its grid, which keeps the messages in
    memory; a deployment's ServerApp has one that speaks to its SuperLink.
    """
    if asked != "auto":
        return cast("Recovery", asked)
    if isinstance(grid, HoldsNodeStates):
        return "yes"
    from flwr.superlink.grid import InMemoryGrid

    return "yes" if isinstance(grid, InMemoryGrid) else "no"


__all__ = ["HoldsNodeStates", "Recovery", "recovery_of"]
