"""The edges of one server: which vectors are here, and in which rounds an edge counts.

An edge counts in a round or it does not, and both ends should say the same. The end whose unit
sorts first *leads*: it holds both vectors, knows that the other end holds them too, and asks that
the edge count. The other end *follows*: it counts the edge the moment it is asked and drops it for
good when its deadline passes first, so the decision is the follower's alone. What no protocol over
a link that may break can exclude is that the leader never hears the follower's answer: the leader
is then in doubt, leaves the edge out, and learns the answer from the follower's next message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from privet.wire import name_key

from .messages import REPORTED, EdgeOutcome, Head, Parcel

KEPT = 2
"""Rounds of one neighbour whose vectors are kept at a time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request: HTTP status, what this end did with the edge, and one line why.

    ``attempt`` tells the answering server from its predecessors, see ``Identity``.
    """

    status: int
    outcome: EdgeOutcome | None = None
    reason: str = ""
    attempt: int = 0

    @property
    def ok(self) -> bool:
        """Whether the request was accepted."""
        return self.status == 200


@dataclass(frozen=True, slots=True)
class News:
    """The two ends of an edge differed, or one of them was in doubt, over an earlier round."""

    round: int
    unit: str
    mine: EdgeOutcome
    theirs: EdgeOutcome


@dataclass(slots=True)
class Edge:
    """One edge as this end sees it.

    Attributes
    ----------
    leads : bool
        Whether this end leads.
    round : int
        The round this end has a vector of its own for, 0 before the first.
    own : Parcel, optional
        That vector, as it is sent along this edge.
    inbox : dict of int to Parcel
        The other end's vectors by round, the last ``KEPT`` of them.
    chosen : Parcel, optional
        The other end's vector of the present round that was in hand when the round was closed.
    outcomes : dict of int to Outcome
        What this end did, by round.
    left : int
        The other end has closed all rounds up to this one.
    """

    unit: str
    leads: bool
    round: int = 0
    own: Parcel | None = None
    inbox: dict[int, Parcel] = field(default_factory=dict)
    chosen: Parcel | None = None
    outcomes: dict[int, EdgeOutcome] = field(default_factory=dict)
    left: int = 0
    reported: set[int] = field(default_factory=set)

    def decide(self, number: int, outcome: EdgeOutcome, parcel: Parcel | None) -> EdgeOutcome:
        """Close the present round; the first decision stands and is returned."""
        if number not in self.outcomes:
            self.outcomes[number], self.chosen = outcome, parcel
        for old in sorted(self.outcomes)[:-REPORTED]:
            del self.outcomes[old]
        self.reported &= self.outcomes.keys()
        return self.outcomes[number]

    def closed(self, number: int) -> bool:
        """Whether this end has closed a round (those before the present one are)."""
        return number < self.round or number in self.outcomes


class Board:
    """All edges of one server, shared by its round loop and its service.

    Parameters
    ----------
    unit : str
        The unit this server hosts.
    neighbours : iterable of str
        The units at the other ends.
    """

    def __init__(self, unit: str, neighbours: Iterable[str]) -> None:
        self.unit = unit
        self.changed = threading.Condition()
        self.edges = {m: Edge(m, name_key(unit) < name_key(m)) for m in neighbours}
        self._news: list[News] = []

    # ------------------------------------------------------------------ this end

    def open(self, number: int, parcels: Mapping[str, Parcel]) -> None:
        """Begin a round with the vector for each neighbour."""
        with self.changed:
            for unit, edge in self.edges.items():
                edge.round, edge.own, edge.chosen = number, parcels[unit], None
                edge.inbox = {n: p for n, p in edge.inbox.items() if n >= number}
            self.changed.notify_all()

    def skip(self, numbers: Iterable[int], following: int) -> None:
        """Take no part in some exchanges; the next one is ``following``.

        They are reported as dropped, so that an end that counted one with a predecessor of this
        server takes its flow back.
        """
        with self.changed:
            for edge in self.edges.values():
                for number in numbers:
                    edge.decide(number, EdgeOutcome.DROPPED, None)
                edge.round, edge.own, edge.chosen = following, None, None
                edge.inbox = {n: p for n, p in edge.inbox.items() if n >= following}
            self.changed.notify_all()

    def wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Wait until something is so (looked at whenever a message came), or the deadline."""
        with self.changed:
            return self.changed.wait_for(ready, max(0.0, deadline - time.monotonic()))

    def decide(
        self, unit: str, number: int, outcome: EdgeOutcome, parcel: Parcel | None = None
    ) -> EdgeOutcome:
        """Close the present round on one edge, unless it is closed; return what was decided.

        ``parcel`` is the other end's vector, the one at hand unless given.
        """
        with self.changed:
            edge = self.edges[unit]
            return edge.decide(number, outcome, parcel or edge.inbox.get(number))

    def closed(self, unit: str) -> int:
        """Return up to which round this end has closed one edge, others being open perhaps."""
        with self.changed:
            edge = self.edges[unit]
            return edge.round if edge.closed(edge.round) else max(0, edge.round - 1)

    def furthest(self) -> int:
        """Return the last exchange that an end is known to have closed, 0 for none."""
        with self.changed:
            return max((edge.left for edge in self.edges.values()), default=0)

    def report(self, unit: str) -> dict[int, EdgeOutcome]:
        """Return what this end did with an edge in its last rounds."""
        with self.changed:
            return dict(self.edges[unit].outcomes)

    def learn(self, unit: str, left: int, outcomes: Mapping[int, EdgeOutcome]) -> None:
        """Take in how far the other end is and what it did in its last rounds."""
        with self.changed:
            self._learn(self.edges[unit], left, outcomes)
            self.changed.notify_all()

    def news(self) -> list[News]:
        """Return the differences that came to light since the last call."""
        with self.changed:
            found, self._news = self._news, []
            return found

    # ------------------------------------------------------------------ the other end

    def receive(self, head: Head, data: bytes) -> Answer:
        """Take in a neighbour's vector of a round; the same one twice is answered alike."""
        with self.changed:
            edge = self.edges[head.unit]
            self._learn(edge, head.round - 1, head.outcomes)
            answer = self._store(edge, head, Parcel(data, head.checksum, head.attempt))
            self.changed.notify_all()
            return answer

    def _store(self, edge: Edge, head: Head, parcel: Parcel) -> Answer:
        known = edge.inbox.get(head.round)
        if known is not None and known.checksum == parcel.checksum:
            return Answer(200, edge.outcomes.get(head.round))
        if edge.closed(head.round):
            mine = edge.outcomes.get(head.round, EdgeOutcome.DROPPED)
            if mine is EdgeOutcome.USED:  # the other end was started again and lost what it did
                self._report(edge, head.round, mine, EdgeOutcome.DROPPED)
            return Answer(410, mine, f"round {head.round} is closed here")
        if known is not None and known.attempt >= parcel.attempt:
            return Answer(409, None, f"another vector of round {head.round} came before")
        edge.inbox[head.round] = parcel
        for old in sorted(edge.inbox)[:-KEPT]:
            del edge.inbox[old]
        return Answer(200)

    def commit(self, head: Head) -> Answer:
        """Count an edge, as its leader asks; asking twice is answered alike."""
        with self.changed:
            edge = self.edges[head.unit]
            if edge.leads:
                return Answer(409, None, f"unit {self.unit} leads this edge")
            if edge.closed(head.round):
                mine = edge.outcomes.get(head.round, EdgeOutcome.DROPPED)
                return Answer(200 if mine is EdgeOutcome.USED else 410, mine)
            theirs = edge.inbox.get(head.round)
            if edge.round != head.round or edge.own is None or theirs is None:
                return Answer(409, None, f"no vectors of round {head.round} here")
            if (theirs.checksum, edge.own.checksum) != (head.checksum, head.yours):
                return Answer(409, None, f"other vectors of round {head.round} here")
            outcome = edge.decide(head.round, EdgeOutcome.USED, theirs)
            self.changed.notify_all()
            return Answer(200, outcome)

    # ------------------------------------------------------------------ differences

    def _learn(self, edge: Edge, left: int, outcomes: Mapping[int, EdgeOutcome]) -> None:
        edge.left = max(edge.left, left)
        for number, theirs in outcomes.items():
            mine = edge.outcomes.get(number)
            if mine is None or theirs is EdgeOutcome.DOUBT:
                continue
            if mine is EdgeOutcome.DOUBT:
                edge.outcomes[number] = theirs
                self._report(edge, number, mine, theirs)
            elif mine is not theirs:
                self._report(edge, number, mine, theirs)

    def _report(self, edge: Edge, number: int, mine: EdgeOutcome, theirs: EdgeOutcome) -> None:
        if number not in edge.reported:
            edge.reported.add(number)
            self._news.append(News(number, edge.unit, mine, theirs))
