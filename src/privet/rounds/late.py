"""How often agents missed the deadline of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from privet.core.errors import listed

from .failure import FailureCode
from .session import Round


class Late(NamedTuple):
    """The number of rounds that an agent was late in, and of those that it was chosen in."""

    late: int
    chosen: int

    def __str__(self) -> str:
        return f"late in {self.late} of {self.chosen} rounds"


def late_agents(history: Sequence[Round]) -> dict[str, Late]:
    """Return the agents that missed the deadline of a round, with the number of these rounds."""
    counts: dict[str, int] = {}
    for done in history:
        for name, failure in done.failures.items():
            if failure.code == FailureCode.LATE:
                counts[name] = counts.get(name, 0) + 1
    if not counts:
        return {}
    chosen = dict.fromkeys(counts, 0)
    for done in history:
        for name in counts.keys() & {*done.participants, *done.failures}:
            chosen[name] += 1
    return {name: Late(count, chosen[name]) for name, count in counts.items()}


def late_ones(late: Mapping[str, Late]) -> str:
    """Return one line on agents that were late."""
    return listed(f"agent {name}: {count}" for name, count in late.items())
