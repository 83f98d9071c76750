"""One edge in one exchange: deliver the own vector, then lead or follow, see ``edge``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from privet.core import ConfigError

from .client import EdgeConnection, Health, LinkError
from .edge import Answer, Board, Edge
from .messages import EdgeOutcome, Head, Identity, Parcel, encode

PAUSE_FIRST = 0.05
PAUSE_LAST = 1.0
PROBE = 1.0
"""Seconds for a neighbour that was not there in the last exchange, at most: ``peer-timeout`` is
waited for once."""
LOOK_AFTER = 2.0
"""Seconds of silence after which a neighbour is asked how far it is, at most."""


class Patience:
    """The wait for a neighbour: ``seconds`` after its last message.

    However often that is renewed, it is not beyond ``longest`` seconds from the beginning. One
    that is ``away`` has `PROBE` seconds to show that it is back.
    """

    def __init__(self, seconds: float, longest: float, *, away: bool = False) -> None:
        self.seconds, self.away = seconds, away
        self._end = time.monotonic() + max(seconds, longest)
        self.deadline = time.monotonic() + (min(PROBE, seconds) if away else seconds)

    def renew(self) -> None:
        """Note that the neighbour was heard from."""
        self.away = False
        self.deadline = min(time.monotonic() + self.seconds, self._end)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


@dataclass(slots=True)
class Settling:
    """What settles one edge in one exchange.

    Attributes
    ----------
    own : Parcel
        This end's vector.
    number : int
        The exchange.
    closed_before : int
        The exchange before this server's last one: a neighbour that has closed it is at most one
        exchange behind.
    receiver : int
        Which attempt of the neighbour acknowledged the own vector; one that was started again since
        has lost it.
    """

    board: Board
    edge: Edge
    own: Parcel
    link: EdgeConnection
    identity: Identity
    number: int
    closed_before: int
    patience: Patience
    receiver: int = 0

    def run(self) -> str:
        """Settle the edge and return why it does not count, where it does not.

        It is closed when this returns, whatever the other edges still wait for: an end that gave up
        must not be waited for by one that its own other edges wait for.
        """
        reason = self._settle()
        self.board.decide(self.edge.unit, self.number, EdgeOutcome.DROPPED)
        return reason

    def _settle(self) -> str:
        """Deliver the own vector, then lead or follow; return why the edge would not count."""
        if self.edge.left >= self.number:  # nothing is sent to an end that can no longer use it
            return "the other end has closed this round"
        reason = self._deliver()
        if reason:
            return reason
        if self.edge.leads:
            return self._lead()
        self._await(lambda: self.number in self.edge.outcomes or self.edge.left >= self.number)
        return "not confirmed by the other end in time"

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so, or the other end is silent for too long.

        An end that answers and is at most one exchange behind counts as heard from; one that is
        further behind, as after a restart, must not hold up the others for longer.
        """
        pause = min(LOOK_AFTER, self.patience.seconds / 4)
        while not self.board.wait(ready, min(time.monotonic() + pause, self.patience.deadline)):
            if self.patience.left <= 0:
                return
            said = self._look()
            if said is None:
                continue
            if said.attempt != self.receiver and said.closed < self.number and self._deliver():
                return

    def _look(self) -> Health | None:
        """Ask how far the other end is; it is waited for where that is far enough."""
        try:
            said = greet(self.board, self.link, self.identity, max(self.patience.left, 0.1))
        except (LinkError, ConfigError):
            return None
        if said.closed >= self.closed_before:
            self.patience.renew()
        return said

    def _deliver(self) -> str:
        """Send the own vector until it is acknowledged; return why it was not, or nothing."""
        pause, reason = PAUSE_FIRST, "no answer"
        # A leader may hold the vector though its answer was lost: then there is an outcome.
        while self.number not in self.edge.outcomes:
            if self.patience.left <= 0 or self.edge.left >= self.number:
                return reason
            body = encode(self._head(), self.own.data)
            try:
                answer = self.link.post("/psi", body, self.patience.left)
            except LinkError as error:
                reason = str(error)
                pause = _rest(pause, self.patience.deadline)
                continue
            if answer.ok:
                self.receiver = answer.attempt
                if self.patience.away:  # it may be there and far behind
                    self._look()
                else:
                    self.patience.renew()
                return ""
            if answer.status == 410:
                self._closed_there(answer)
            return answer.reason or f"status {answer.status}"
        return ""

    def _closed_there(self, answer: Answer) -> None:
        """Take in that the other end is past a round; it may have counted an earlier attempt."""
        self.board.decide(self.edge.unit, self.number, EdgeOutcome.DROPPED)
        said = {} if answer.outcome is None else {self.number: answer.outcome}
        self.board.learn(self.edge.unit, self.number, said)

    def _lead(self) -> str:
        """Ask that the edge count, until it is known whether it does or the time is up."""
        self._await(lambda: self.number in self.edge.inbox or self.edge.left >= self.number)
        deadline = time.monotonic() + self.patience.seconds
        pause, reason = PAUSE_FIRST, "no vector of the other end in time"
        unanswered: Parcel | None = None
        # Read again each time: the other end may have been started again and sent another vector.
        while theirs := self.edge.inbox.get(self.number):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            head = self._head(theirs.checksum)
            try:
                answer = self.link.post("/commit", encode(head), left)
            except LinkError as error:
                unanswered, reason = theirs, str(error)
            else:
                if answer.ok:
                    self.board.decide(self.edge.unit, self.number, EdgeOutcome.USED, theirs)
                    return ""
                unanswered, reason = None, answer.reason
                if answer.status != 409:
                    break
                if answer.attempt != self.receiver and self._deliver():
                    break
            pause = _rest(pause, deadline)
        if unanswered:
            self.board.decide(self.edge.unit, self.number, EdgeOutcome.DOUBT, unanswered)
        return reason

    def _head(self, yours: str = "") -> Head:
        me = self.identity
        return Head(
            me.unit,
            self.edge.unit,
            me.run,
            me.agreement,
            self.number,
            me.attempt,
            self.own.checksum,
            yours,
            self.board.report(self.edge.unit),
        )


def greet(board: Board, link: EdgeConnection, me: Identity, timeout: float) -> Health:
    """Ask a neighbour how it is and how far, and note it.

    Raises
    ------
    LinkError
        If it does not answer, or is in another run.
    ConfigError
        If its graph, weights or model differ.
    """
    said = link.health(timeout)
    if said.unit != link.unit:
        raise LinkError(f"its address answers as unit {said.unit}")
    if said.run != me.run:
        raise LinkError(f"in run {said.run!r}, this is {me.run!r}")
    if said.agreement != me.agreement:
        raise ConfigError(f"the graph, weights or model of unit {link.unit}'s server differ")
    board.learn(link.unit, said.closed, {})
    return said


def _rest(pause: float, deadline: float) -> float:
    """Sleep for a pause, not beyond the deadline, and return the next one."""
    time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
    return min(2 * pause, PAUSE_LAST)
