"""What a run is to do: the arguments that every algorithm's strategy takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from privet.wire.rosters import LEAST_ROSTER

from ..participation import All, Participation
from ..run_settings import RunSettings


@dataclass(frozen=True)
class RunOptions(RunSettings):
    """The arguments of ``PrimalDualStrategy`` of the same names, and more.

    Attributes
    ----------
    min_available_nodes : int
        Nodes that must be connected before a round begins; 0 waits for none.
    least_roster : int
        Agents on the roster of a secure sum, at least; fewer only to replay given masks.
    rounds : int, optional
        The last round, where ``start`` has said it.
    """

    num_agents: int = 0
    participation: Participation = field(default_factory=All)
    min_available_nodes: int = 0
    least_roster: int = LEAST_ROSTER
    rounds: int | None = None
