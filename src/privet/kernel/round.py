"""Privacy-critical: the order of an agent's round, one for a message and for a block of agents.

    screen      what the node's own rules forbid is refused before anything is read
    receive     state and broadcast are read, and checked, before anything is charged
    charge      the reply is charged, in the ledger on the disk, before anything is computed
    grant       the records are handed out, bound to the release that was charged
    (work)      by the algorithm's half, or by a training loop of the user's
    settle      exactly the draws that were charged are taken
    seal        the reply is made
    keep        the new state is written, last, so that a failure leaves the old one
    (reply)     what `AgentRound.close` returns is sent

A charge is never taken back. A reply that is lost, or a process that ends after the charge, costs
what was charged; the same round asked for once more is charged once more and has noise of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from .door import Records
from .streams import Streams

Arrays = Mapping[str, NDArray[Any]]
Work = TypeVar("Work")
"""The result of the local work on one view."""
Reply = TypeVar("Reply")


class View(NamedTuple):
    """The inputs of the local work of one agent, or of the rows of a stack.

    Attributes
    ----------
    state, broadcast : mapping of str to array
        The state that the agent starts from, and the arrays sent to all agents.
    records : Records
        The records, bound to the release that was charged.
    streams : Streams
        Random streams of all draws but noise.
    """

    state: Arrays
    broadcast: Arrays
    records: Records
    streams: Streams


class Worker(Protocol):
    """An algorithm's half, or another computation on the records."""

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Any:
        """Return the result of the work on a view."""
        ...


class Ended(Exception):
    """A round that ends before its work; its one argument is the reply."""


class AgentRound(ABC, Generic[Work, Reply]):
    """A round of agents that do the same work; subclasses define which agents, and how they reply.

    Attributes
    ----------
    worker : Worker
    views : list of View
        From `open` on.
    opened : bool
        Whether the reply is charged and the records are handed out.
    """

    worker: Worker
    views: list[View]
    opened = False

    def play(self) -> Reply:
        """Return the reply of the whole round (raises as `open` and `close` do)."""
        self.open()
        return self.close([self.worker.local_update(*view) for view in self.views])

    def open(self) -> None:
        """Do every step that comes before the work.

        Raises
        ------
        Ended
            With the reply, where there is no work.
        BudgetRefused
            If the node's own rules, or the run's own target, do not allow the reply.
        """
        self.screen()
        self.receive()
        self.check()
        self.charge()
        self.views = self.grant()
        self.opened = True

    def close(self, done: list[Work]) -> Reply:
        """Return the reply to the work on all views, and keep the new state; ``done`` is emptied.

        Raises
        ------
        NoiseError
            Unless exactly the draws that were charged were taken.
        """
        for view in self.views:
            view.records.settle()
        reply = self.seal(done)
        self.keep()
        return reply

    @abstractmethod
    def screen(self) -> None:
        """Refuse what the rules forbid, before anything is read (raises ``BudgetRefused``)."""

    @abstractmethod
    def receive(self) -> None:
        """Read the state and the broadcast (raises ``Ended``)."""

    @abstractmethod
    def check(self) -> None:
        """Refuse received arrays that noise could not hide, or of which one draw serves several."""

    @abstractmethod
    def charge(self) -> None:
        """Charge the reply, on the disk (raises ``BudgetRefused``)."""

    @abstractmethod
    def grant(self) -> list[View]:
        """Return the inputs of the work."""

    @abstractmethod
    def seal(self, done: list[Work]) -> Reply:
        """Return the reply; the results are removed from the list as they are used."""

    @abstractmethod
    def keep(self) -> None:
        """Write the state that goes with the reply."""
