"""What an agent half is given besides its problem: arrays, and named random streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import stream

Vector = NDArray[Any]
Arrays = Mapping[str, Vector]

PART = 1 << 16
"""Numbers of a large vector that are worked on together, so that they stay in the cache."""


def parts(size: int) -> Iterator[slice]:
    """Yield the parts of a vector of this many numbers, in order."""
    for begin in range(0, size, PART):
        yield slice(begin, begin + PART)


@dataclass(frozen=True, slots=True)
class Streams:
    """The named random streams of one agent in one round; opening one is not free."""

    seed: int
    agent: str
    round: int

    def open(self, purpose: str) -> np.random.Generator:
        """Return the generator of (seed, agent, round, purpose)."""
        return stream(self.seed, purpose, self.agent, self.round)


@dataclass(frozen=True, slots=True)
class StackedStreams(Streams):
    """The streams of several agents in one round; it has none of its own."""

    agents: tuple[str, ...] = ()

    def each(self) -> list[Streams]:
        """Return every agent's own."""
        return [Streams(self.seed, agent, self.round) for agent in self.agents]
