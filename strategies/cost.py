"""What one iteration of a method costs: exchanges, local gradients, vectors sent and kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Per iteration of the method as its paper counts them, and per participating agent.

    Attributes
    ----------
    agent : int
        Vectors (d,) an agent keeps between rounds.
    coordinator : int
        Vectors the coordinator keeps of each agent. What an agent holds is mirrored here, so that
        a lost agent loses nothing; a coordinator that gave this up could do with fewer.
    shared : int
        Vectors the coordinator keeps besides.
    exchanges : int
        Messages to an agent and back: rounds of this library.
    extra_gradients : int
        Full local gradients besides the ``local-epochs`` of the local steps.
    up, down : int
        Vectors an agent sends and receives when all take part.
    """

    agent: int
    coordinator: int
    shared: int
    exchanges: int = 1
    extra_gradients: int = 0
    up: int = 1
    down: int = 1

    def gradients(self, local_epochs: int) -> int:
        """Return the local gradients of an iteration (TAMUNA: their mean)."""
        return local_epochs + self.extra_gradients
