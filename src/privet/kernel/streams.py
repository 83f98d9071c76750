"""Privacy-critical: named random streams, one per (seed, purpose, agent, round); no noise.

Both halves of an algorithm can open the same stream without talking, and no draw depends on the
order in which agents run. Privacy noise never comes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


def stream(seed: int, purpose: str, agent: str = "", round_: int = 0) -> np.random.Generator:
    """Return the generator of this name (Philox, keyed by a 128-bit hash of the name).

    Parameters
    ----------
    seed : int
        The run's seed.
    purpose : str
        Purpose of the numbers, e.g. ``"participation"`` or ``"batches"``.
    agent : str
        The agent's stable name, empty for the server.
    round_ : int
        The round, counted from 1.
    """
    key = np.frombuffer(hash_of(16, seed, purpose, agent, round_), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def hash_of(size: int, seed: int, purpose: str, agent: str, round_: int, *more: str) -> bytes:
    """Return ``size`` bytes that are unique to a name; the arguments are those of `stream`."""
    name = "\x1f".join(("privet", str(seed), purpose, agent, str(round_), *more))
    return blake2b(name.encode(), digest_size=size).digest()


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
    """The streams of several agents in one round; open those of `each`, not its own."""

    agents: tuple[str, ...] = ()

    def each(self) -> list[Streams]:
        """Return the streams of every agent."""
        return [Streams(self.seed, agent, self.round) for agent in self.agents]
