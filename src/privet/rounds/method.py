"""`ServerMethod`: the contract of an algorithm's server half, in twenty names.

In this order: the names that every method defines, those for agents that keep a state, and
optional ones. `ServerHalf` derives the rest from them, for all algorithms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from privet.agents.half import Half
from privet.kernel import Facts, stream
from privet.wire.ring import Shapes

from .uploads import Sums, Uploads

Vector = NDArray[Any]
Arrays = dict[str, Vector]
Positions = NDArray[np.intp] | slice
"""Some agents, by position in the sorted list of their names."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The number and seed of the round that a half computes.

    Attributes
    ----------
    number : int
        Counted from 1.
    seed : int
        The run's seed.
    sweep : int
        1 + (uploads folded before) // (agents), which an asynchronous run counts in place of
        rounds; 0 where it is the number of the round.
    """

    number: int
    seed: int = 0
    sweep: int = 0

    @property
    def t(self) -> int:
        """The number of the round, or of the sweep in an asynchronous run, counted from 1."""
        return self.sweep or self.number

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the generator of (seed, purpose, round); each purpose has its own."""
        return stream(self.seed, purpose, round_=self.number)


UNSAVED: Mapping[str, bool] = {"unsaved": True}
"""Metadata of a state's field that is not in checkpoints: `completed` recomputes it."""


@dataclass(slots=True)
class HalfState:
    """A server's state: fields that are arrays or Python numbers.

    A field with the metadata `UNSAVED` is not in checkpoints.

    Attributes
    ----------
    residual : float
        A squared fixed-point residual that is 0 at a solution. NaN: unknown, as it is before every
        enrolled agent was folded; infinity: not finite.
    """

    residual: float = field(default=nan, kw_only=True)


S = TypeVar("S", bound=HalfState)


@dataclass(frozen=True)
class ServerMethod(ABC, Generic[S]):
    """The contract of a server half: functions of its state, whose arrays they may reuse.

    Subclass `ServerHalf`, a frozen dataclass. Agents are numbered by position in the sorted list of
    their names. An agent's state is one row of each table (N, d) of the server's state.

    *Every method* defines ``state``, ``agent`` and ``fold_sums`` (or ``fold``, if its step is no
    function of sums), and overrides ``last``, ``broadcast`` and ``summands`` where their defaults
    do not fit.

    *If agents keep a state*: ``rows``, and overrides of ``initialise``, ``completed``, ``admit``,
    ``renew``, ``recovery`` and ``restarts`` where their defaults do not fit.

    *Optional*: ``per_agent_broadcast``, ``models``, ``measures``, ``notes``, ``recovery_note`` and
    ``contraction``.

    Examples
    --------
    A whole algorithm: agents take five gradient steps, the server takes the mean of the models.

    >>> from dataclasses import dataclass, field
    >>> import numpy as np
    >>> from privet.client_apps import Half, LocalTask
    >>> from privet.core.key import setting
    >>> from privet.strategies import PrimalDualStrategy
    >>> from privet.rounds.half import HalfState, ServerHalf
    >>> @dataclass(frozen=True)
    ... class Agent(Half):
    ...     name = "toy"
    ...     gamma: float = setting(0.5, "step size of a local step", low=0, open_low=True)
    ...
    ...     def task(self, state, broadcast, records, streams):
    ...         return LocalTask(broadcast["x"], self.gamma, steps=5)
    ...
    ...     def finish(self, state, broadcast, task, walk):
    ...         return {"x": walk.end}
    >>> @dataclass(slots=True)
    ... class State(HalfState):
    ...     x: np.ndarray
    >>> @dataclass(frozen=True)
    ... class Server(ServerHalf[State]):
    ...     state = State
    ...     agent: Agent = field(default_factory=Agent)
    ...
    ...     def fold_sums(self, state, sums, turn):
    ...         x = sums.mean("x", state.x)
    ...         return State(x, residual=sums.step(x, state.x))
    >>> class Toy(PrimalDualStrategy):
    ...     algorithm, settings, server_half, local_steps = "toy", (Agent,), Server, ""

    It runs on any engine once it is registered, here in this process alone:

    >>> from flwr.app import Array, ArrayRecord
    >>> from privet.core import Algorithm, registered
    >>> from privet.sim.inline import grid_of
    >>> from privet.testing import logistic_federation
    >>> problems, start = logistic_federation(), ArrayRecord({"x": Array(np.zeros(4))})
    >>> with registered(Algorithm("toy", Toy, Agent)):
    ...     grid = grid_of("toy", problems)
    ...     result = Toy(gamma=0.5).start(grid, start, num_rounds=30, log_rounds=False)
    >>> result.history[-1].residual < 1e-9 < result.history[0].residual
    True
    """

    last: ClassVar[str] = "x"
    """Name of the state's field that is the run's result."""
    state: ClassVar[type[HalfState]]
    """The class of the state."""

    agent: Half

    def broadcast(self, state: S, turn: Turn) -> tuple[S, Arrays]:
        """Begin a round: return the state and the arrays for all participants.

        By default the run's result so far, as ``x``.
        """
        return state, {"x": getattr(state, self.last)}

    def summands(self, state: S) -> Shapes:
        """Return names and shapes of the arrays that every agent uploads, in order.

        By default a model, as ``x``.
        """
        return {"x": getattr(state, self.last).shape}

    def fold_sums(self, state: S, sums: Sums, turn: Turn) -> S:
        """End a round with the sums of its uploads; of masked uploads the server has no more.

        The tables are up to date by then. A half defines this, or ``fold``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither fold_sums nor fold")

    @abstractmethod
    def fold(self, state: S, uploads: Uploads, turn: Turn) -> S:
        """End a round with the accepted uploads of the participants.

        By default this updates the tables and calls ``fold_sums``.
        """

    # ------------------------------------------------------------------ if agents keep a state

    def rows(self, start: Vector) -> Arrays:
        """Return an agent's state before its first round, by name of the state's table.

        A round changes the rows of those tables of vectors whose uploads it folds, and no others.
        """
        return {}

    @abstractmethod
    def initialise(self, start: Vector, count: int) -> S:
        """Return the state before round 1, all agents at the starting model (d,).

        By default the start, and the tables.
        """

    def completed(self, state: S) -> S:
        """Return the state with fields recomputed from its tables, after these were changed."""
        return state

    @abstractmethod
    def admit(self, state: S, position: int, start: Vector) -> S:
        """Return the state with a new agent inserted at this position; by default its rows."""

    @abstractmethod
    def renew(self, state: S, position: int, start: Vector) -> S:
        """Return the state with this agent's rows as ``admit`` inserts them."""

    restarts: ClassVar[bool] = False
    """Whether an agent of a masked run that lost its state may start again; if not it is out."""

    @abstractmethod
    def recovery(self, state: S, positions: Positions) -> Arrays | None:
        """Return the states that some agents need to continue; None if only they hold them.

        By default these are their rows of every table, by the table's name. An array that they have
        in common may be given once, of shape (d,).
        """

    # ------------------------------------------------------------------ optional

    def per_agent_broadcast(self, state: S, position: int, turn: Turn) -> Arrays:
        """Return further arrays for this agent, in a message of its own; none by default."""
        return {}

    def models(self, state: S) -> Arrays:
        """Return the models (d,) by name: ``"last"``, which is ``model``, and others."""
        return {"last": getattr(state, self.last)}

    def contraction(self, facts: Facts) -> float:
        """Return a bound of the factor by which a round contracts the distance to the limit.

        It is computed from public numbers, and 1 if no theory gives one.
        """
        return 1.0

    def measures(self, state: S) -> dict[str, float]:
        """Return further measures of the state after a round, by kebab-case name."""
        return {}

    def notes(self, state: S, silent: Sequence[str]) -> tuple[str, ...]:
        """Return notes for the history on a round that has ended.

        ``silent`` are the agents of the roster whose uploads are not in it, in order.
        """
        return ()

    @property
    def recovery_note(self) -> str:
        """A note on the part of its state that an agent loses in a recovery; empty by default."""
        return ""
