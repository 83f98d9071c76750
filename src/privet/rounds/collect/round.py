"""The round under way: what it is (`OpenRound`, frozen) and what has come of it (`Tally`).

`Run` (see run.py for the six steps) creates one per round and the collector drives it: `ask.py`
builds its messages, `costs.py` notes what its replies cost, `accept.py` checks its uploads, and
`outcome.py` ends it.

A round that could not be folded is either continued (`OpenRound.begin_again`: accepted uploads in
clear stay) or opened again with newly enrolled nodes: its clock, costs, byte counts and notes go on
(`OpenRound.carry_over`), its uploads do not. Failures of a failed try are in no record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from privet.core import RunError, mapped
from privet.core.errors import one_line
from privet.wire import Update

from ..account import spent_up
from ..exchange import Reply, owner_by_message, sort_replies
from ..failure import Failure, FailureCode
from ..half import ServerHalf, Turn
from ..options import RunOptions
from ..session import Session
from ..together import Together
from ..uploads import Block
from .broadcast import Broadcast, broadcast

IN_VAIN = Failure(FailureCode.IN_VAIN, "was charged for a task, and no upload was folded since")


class Accepted(NamedTuple):
    """Accepted uploads, a row each: ``load`` returns their arrays; the rest came with them."""

    load: Callable[[], Block]
    updates: dict[str, Update]
    """The metadata of each, by agent in folding order."""
    extras: Mapping[str, Any]
    """The other records of a message."""
    statistics: NDArray[Any] | None = None
    """The statistics of its model's buffers, if they are averaged."""


@dataclass
class Tally:
    """What has come of a round so far.

    Attributes
    ----------
    begun, since : float
        Start of the round, and of the present try, on the monotonic clock; the round's timeout
        counts from ``since``.
    tries : int
        The number of times that messages were sent and replies waited for.
    used : float
        Seconds of the round's timeout that an engine took before messages are sent: to start
        processes, and for agents that work together.
    messages : dict of str to Message
        The last message to each agent.
    states : dict of str to callable
        Factories of the records with agents' states, if these are too large to be held together:
        a record is in its message only while that is pushed.
    together : list of Together
        The results of agents that worked without messages, by what they were sent.
    missing : dict of str to Reply
        By agent, a reply without content in place of the one that did not come.
    absent : dict of str to Failure
        Why a chosen agent is not asked.
    refused : dict of str to Failure
        Why an upload that was read as it came is not folded.
    awaited : set of str
        Agents that did not answer themselves, so that asking again may help.
    restored : set of str
        Agents that did not hold their state, whose next message of this round has it: once each.
    uploads : dict of str to Accepted
        The uploads in clear that will be folded, by agent; agents whose uploads were checked
        together share one. They are kept when a try fails, unless the round is opened again.
    spool : Spool, optional
        The files of uploads that are too large for memory.
    bytes_up, bytes_down : int
        The bytes of all replies and of all messages.
    notes : list of str
        Notes for the history.
    unanswered : dict of str to list of int
        Requests whose cost is in no account yet: by agent a number for each, of the agents in its
        sum (1 in clear).
    epsilon : float
        The largest epsilon so far, without what uploads merely claim (``stated``), accounts above
        the target, and agents that state no bound (`claims_by_agent`).
    stated : dict of str to (float, str)
        The epsilon that uploads state and their accounts, by agent: it counts as far as the account
        bears it out (`largest_stated`).
    unbound : list of str
        Agents whose first upload without a finite epsilon came in this round.
    shortest : float
        The seconds of the quickest task that was withdrawn, where that is known; else infinity.
    failed_at : list of float
        The times of failed tries, on the monotonic clock.
    failures : dict of str to Failure
        Why agents were not folded, if too few uploads were.
    ended : bool
        Whether the round is folded and recorded.
    """

    begun: float
    since: float
    tries: int = 0
    used: float = 0.0
    messages: dict[str, Message] = field(default_factory=dict)
    states: dict[str, Callable[[], ConfigRecord]] = field(default_factory=dict)
    together: list[Together] = field(default_factory=list)
    missing: dict[str, Reply] = field(default_factory=dict)
    absent: dict[str, Failure] = field(default_factory=dict)
    refused: dict[str, Failure] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)
    uploads: dict[str, Accepted] = field(default_factory=dict)
    spool: mapped.Spool | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    notes: list[str] = field(default_factory=list)
    unanswered: dict[str, list[int]] = field(default_factory=dict)
    epsilon: float = 0.0
    stated: dict[str, tuple[float, str]] = field(default_factory=dict)
    unbound: list[str] = field(default_factory=list)
    shortest: float = math.inf
    failed_at: list[float] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    ended: bool = False

    def note_remark(self, name: str, update: Update) -> None:
        """Keep an agent's note on its upload for the history."""
        if update.note:
            self.notes.append(f"agent {name}: {one_line(update.note)}")

    def ask(self, names: Iterable[str], agents: int) -> None:
        """Note requests that leave now: a run that ends before their cost is known counts them."""
        for name in names:
            self.unanswered.setdefault(name, []).append(agents)

    def drop_newest_request(self, name: str) -> None:
        """Forget an agent's newest request: its cost is in its account, or it was not sent."""
        if asked := self.unanswered.get(name):
            asked.pop()


@dataclass(frozen=True)
class OpenRound:
    """The round under way.

    Attributes
    ----------
    half, options, session
        The run's.
    turn : Turn
        The round's number and seed, as the half is given them.
    chosen : tuple of str
        The agents chosen, in folding order.
    broadcast : Broadcast
        What they are sent.
    tally : Tally
        What has come of it so far.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    turn: Turn
    chosen: tuple[str, ...]
    broadcast: Broadcast
    tally: Tally

    @classmethod
    def begin(
        cls,
        half: ServerHalf[Any],
        options: RunOptions,
        session: Session,
        turn: Turn,
        chosen: tuple[str, ...],
        beside: Mapping[str, ConfigRecord],
    ) -> OpenRound:
        """Begin a round with the agents ``chosen``: make the broadcast, note absent agents."""
        now = time.monotonic()
        sent = broadcast(half, options, session, turn, chosen, beside)
        opened = cls(half, options, session, turn, chosen, sent, Tally(now, now))
        opened.note_absent(chosen)
        return opened

    @property
    def number(self) -> int:
        """Its number, counted from 1."""
        return self.turn.number

    @property
    def deadline(self) -> float:
        """The end of the round's timeout on the monotonic clock."""
        return self.tally.since + self.options.round_timeout

    def large(self, size: int) -> bool:
        """Whether this many bytes for each of the chosen agents are too many for memory."""
        return size * len(self.chosen) > mapped.LIMIT

    # ------------------------------------------------------------------ further tries

    def begin_again(self) -> None:
        """Reset the clock and the missing replies for another try; accepted uploads stay."""
        tally = self.tally
        tally.since, tally.tries, tally.used = time.monotonic(), 0, 0.0
        tally.awaited.clear()
        tally.missing.clear()
        tally.refused.clear()

    def carry_over(self, failed: OpenRound) -> None:
        """Take over clock, costs, byte counts and notes of a failed try of this round."""
        old, new = failed.tally, self.tally
        new.begun, new.failed_at = old.begun, old.failed_at
        new.bytes_up, new.epsilon, new.unbound = old.bytes_up, old.epsilon, old.unbound
        new.stated, new.restored = old.stated, old.restored
        new.bytes_down += old.bytes_down
        new.notes[:0] = old.notes

    # ------------------------------------------------------------------ who is asked

    def in_vain(self, name: str) -> bool:
        """Whether an agent is not asked again until an upload is folded (`Session.in_vain`)."""
        at_hand = bool(self.tally.uploads)
        return self.session.in_vain(name, self.options.max_uploads, at_hand=at_hand)

    def note_absent(self, names: Iterable[str]) -> None:
        """Note which of these agents cannot be asked now, and why (`Tally.absent`)."""
        roster, asked = self.session.roster, (self.number, len(self.chosen), self.session.noises)
        absent = self.tally.absent
        for name in names:
            absent.pop(name, None)
            if absence := roster.absence(name):
                absent[name] = absence
                if absence.code != FailureCode.OUT:  # also an exclusion may be corrected
                    self.tally.awaited.add(name)
            elif self.in_vain(name):
                absent[name] = IN_VAIN
            elif why := spent_up(self.half, roster.agents[name], *asked):
                absent[name] = Failure(FailureCode.OUT, why)

    # ------------------------------------------------------------------ what comes back

    def by_agent(self, messages: Iterable[Message]) -> dict[str, Message]:
        """Return messages of this round by their agents (raises ``RunError`` for another one)."""
        names = {id(message): name for name, message in self.tally.messages.items()}
        found: dict[str, Message] = {}
        for message in messages:
            if id(message) not in names:
                raise RunError(f"round {self.number}: a message that is not one of the round's")
            found[names[id(message)]] = message
        return found

    def sort(self, replies: Iterable[Message]) -> dict[str, Reply]:
        """Return the replies by agent; replies to any but an agent's last message are dropped."""
        return sort_replies(owner_by_message(self.tally.messages), replies)

    def reply(self, name: str, replies: Mapping[str, Reply]) -> Reply:
        """Return an agent's reply, or one without content with the reason for its absence."""
        return replies.get(name) or self.tally.missing.get(name) or Reply(None, "no reply")

    def forget_messages(self) -> None:
        """Free the messages, which are as large as the model, before the uploads are folded."""
        self.broadcast.forget_records()
        self.tally.messages = {}
