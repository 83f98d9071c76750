"""What an algorithm's server half is: a few pure functions on arrays.

``strategies/base.py`` binds any object of this shape to Flower once, for all algorithms. A half
that sees every upload is a ``FoldingHalf``, one that needs only sums of them a ``SummingHalf``; it
may be both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from numpy.typing import NDArray

from privet.wire import Settings
from privet.wire.ring import Shapes

Vector = NDArray[Any]
Arrays = dict[str, Vector]
S = TypeVar("S")


class ServerHalf(Protocol[S]):
    """The mathematics of a server, without Flower: what every half has.

    Agents are numbered by position in the sorted list of their names. ``admit``, ``broadcast``,
    ``fold`` and ``fold_sums`` return the next state and may reuse the one they were given: large
    tables are not copied every round.
    """

    @property
    def name(self) -> str:
        """Protocol name, as in the registry."""
        ...

    @property
    def version(self) -> int:
        """Protocol version; both halves must agree."""
        ...

    def settings(self) -> Settings:
        """Return the parameters that travel to the agents."""
        ...

    def initialise(self, start: Vector, count: int) -> S:
        """Return the state before round 1, all agents at the starting model (d,)."""
        ...

    def admit(self, state: S, position: int, start: Vector) -> S:
        """Return the state with a new agent inserted at this position."""
        ...

    def broadcast(self, state: S) -> tuple[S, Arrays]:
        """Begin a round: return the state and the arrays all participants are sent."""
        ...

    def recovery(self, state: S, position: int) -> Arrays | None:
        """Return the state an agent needs to go on, or None where the server does not hold it."""
        ...

    def models(self, state: S) -> Arrays:
        """Return the models (d,) by name; ``"last"`` is the run's result."""
        ...

    def residual(self, state: S) -> float:
        """Return a squared fixed-point residual that is 0 at a solution."""
        ...

    def dump(self, state: S) -> Arrays:
        """Return the state as arrays for a checkpoint."""
        ...

    def load(self, arrays: Arrays) -> S:
        """Return the state of ``dump``."""
        ...


class FoldingHalf(ServerHalf[S], Protocol[S]):
    """A server half that sees every agent's upload."""

    def accept(self, state: S, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check one upload; return what is folded and the digest both sides must agree on.

        Raises
        ------
        UploadError
            With a named reason (shape, dtype, numbers that are not finite).
        """
        ...

    def renew(self, state: S, position: int, start: Vector) -> S:
        """Return the state in which this agent is again what ``admit`` inserts."""
        ...

    def fold(self, state: S, uploads: Mapping[int, Arrays]) -> S:
        """End a round with the accepted uploads of the participants, in order of position."""
        ...


class GroupSum(NamedTuple):
    """The sum of the uploads of a group of agents.

    Attributes
    ----------
    arrays : dict of str to float64 array
        The sums, by the names of ``SummingHalf.summands``; exact sums of numbers that the agents
        rounded to multiples of 2^-40.
    positions : tuple of int
        Whose uploads were added.
    """

    arrays: Arrays
    positions: tuple[int, ...]


class SummingHalf(ServerHalf[S], Protocol[S]):
    """A server half that needs only sums of uploads, so that it can do with masked ones.

    In such a run ``recovery`` is asked for agents that begin (tag 0) only, and what the agents
    upload is not compared with anything.
    """

    @property
    def secure_sum(self) -> bool:
        """Whether this run's uploads are masked; the setting ``secure-sum`` then travels along."""
        ...

    @property
    def restarts(self) -> bool:
        """Whether an agent that lost its state may begin again; if not it is out of the run."""
        ...

    def summands(self, state: S) -> Shapes:
        """Return names and shapes of the arrays that every agent uploads, in order."""
        ...

    def fold_sums(self, state: S, sums: Mapping[str, GroupSum]) -> S:
        """End a round with the sums by group; a group that came to none is not there."""
        ...


def summing(half: ServerHalf[S]) -> SummingHalf[S] | None:
    """Return the half as one of a secure sum, None where uploads are not masked."""
    masked = bool(getattr(half, "secure_sum", False))
    return cast("SummingHalf[S]", half) if masked else None


class GroupedHalf(Protocol[S]):
    """A server half whose agents belong to units that are sent different models."""

    def place(self, state: S, position: int, name: str, unit: str) -> S:
        """Return the state with an agent in its unit; called once for every agent.

        ``unit`` is what the agent's node config says, empty where it says nothing.

        Raises
        ------
        ConfigError
            If there is no such unit.
        """
        ...

    def group(self, state: S, position: int) -> str:
        """Return the unit of an agent."""
        ...

    def broadcast_to(self, state: S, group: str) -> Arrays:
        """Return what the agents of a unit are sent beside the arrays of ``broadcast``."""
        ...


def grouped(half: ServerHalf[S]) -> GroupedHalf[S] | None:
    """Return the half as one that divides its agents into units, None where it does not."""
    divides = hasattr(half, "broadcast_to")
    return cast("GroupedHalf[S]", half) if divides else None
