"""The round under way: `Pending` holds what goes out, what has come of it, and who is absent.

`Run` (see run.py for the six steps) creates one per round and the collector drives it:

- ``outgoing`` (`Outgoing`): the chosen agents, the broadcast, and the message to each agent;
- ``together``: results of agents whose work the grid did at once, without messages;
- ``absent`` and ``missing``: chosen agents that are not asked, and agents that did not reply;
- ``outcome`` (`Outcome`): accepted uploads, costs, failures, and at the end the history's record.

A round that could not be folded is either continued (`Pending.begin_again`: accepted uploads in
clear stay) or opened again with newly enrolled nodes, which takes over its clock, byte counts and
notes (`Pending.carry_over`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message

from privet.agents.inputs import starting_rows
from privet.wire import pack
from privet.wire.contract import encode_settings

from ..account import spent_up
from ..exchange import Reply, owner_by_message, sort_replies
from ..failure import Failure, FailureCode
from ..half import ServerHalf, Turn
from ..options import RunOptions
from ..session import Session
from ..together import Together, WorksTogether
from .outcome import DeclinedError, InVainError, Outcome, TooFewError
from .outgoing import Outgoing, payload_bytes, settings_sent

IN_VAIN = Failure(FailureCode.IN_VAIN, "was charged for a task, and no upload was folded since")
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before a round that failed is tried again, at first and at most; they double."""


@dataclass
class Pending:
    """The round under way.

    Attributes
    ----------
    half, options, session
        The run's.
    turn : Turn
        The round's number and seed, as the half is given them.
    chosen : tuple of str
        The agents chosen, in folding order.
    outgoing : Outgoing
        The broadcast, and the messages that carry it.
    outcome : Outcome
        Accepted uploads, costs and failures so far.
    opened : float
        Start of the present try on the monotonic clock; the round's timeout counts from here.
    tries : int
        The number of times that messages were sent and replies waited for.
    used : float
        Seconds of the round's timeout that an engine took before messages are sent: to start
        processes, and for agents that work together.
    missing : dict of str to Reply
        By agent, a reply without content in place of the one that did not come.
    absent : dict of str to Failure
        Why a chosen agent is not asked.
    together : Together, optional
        The results of agents that worked without messages.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    turn: Turn
    chosen: tuple[str, ...]
    outgoing: Outgoing
    outcome: Outcome
    opened: float
    tries: int = 0
    used: float = 0.0
    missing: dict[str, Reply] = field(default_factory=dict)
    absent: dict[str, Failure] = field(default_factory=dict)
    together: Together | None = None

    @classmethod
    def begin(
        cls,
        half: ServerHalf[Any],
        options: RunOptions,
        session: Session,
        turn: Turn,
        chosen: tuple[str, ...],
        beside: Mapping[str, ConfigRecord],
    ) -> Pending:
        """Begin a round with the agents ``chosen``: make the broadcast, note absent agents."""
        now = time.monotonic()
        outcome = Outcome(half, options, session, turn.number, now, len(chosen))
        settings = encode_settings(settings_sent(half, options, session))
        outgoing = Outgoing(half, options, session, turn, chosen, settings, beside)
        pending = cls(half, options, session, turn, chosen, outgoing, outcome, now)
        outgoing.broadcast()
        pending.note_absent(chosen)
        return pending

    @property
    def round(self) -> int:
        """Its number, counted from 1."""
        return self.turn.number

    @property
    def deadline(self) -> float:
        """The end of the round's timeout on the monotonic clock."""
        return self.opened + self.options.round_timeout

    # ------------------------------------------------------------------ further tries

    def pause(self, now: float) -> float:
        """Return the seconds until the next try of the round; 0: there is none.

        It is tried again while there is time left and an agent to wait for: an agent that declined
        or failed would do so again.
        """
        self.outcome.failed.append(now)
        left = self.outcome.failed[0] + self.options.patience - now
        if not self._waited_for or left <= 0:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** min(len(self.outcome.failed) - 1, 30), LAST_PAUSE, left)

    def in_vain(self, name: str) -> bool:
        """Whether an agent is not asked again until an upload is folded (`Session.in_vain`)."""
        at_hand = bool(self.outcome.uploads)
        return self.session.in_vain(name, self.options.max_uploads, at_hand=at_hand)

    @property
    def _waited_for(self) -> list[str]:
        return [name for name in self.outcome.awaited if not self.in_vain(name)]

    def explained(self, few: TooFewError) -> TooFewError:
        """Return the failure of the last try, with what was spent in vain if that ends the run."""
        session, timeout = self.session, self.options.round_timeout
        if isinstance(few, DeclinedError) or not session.spent or self._waited_for:
            return few
        text = (
            f"{few}; {len(session.spent)} agents were charged for tasks without an upload folded, "
            "and are asked no more"
        )
        if math.isfinite(self.outcome.shortest):
            text += (
                f": round-timeout = {timeout:g} is shorter than a task, of which the quickest took "
                f"{self.outcome.shortest:.4g} s: raise it"
            )
        elif any(one.code == FailureCode.LATE for one in self.outcome.failures.values()):
            text += f": raise round-timeout = {timeout:g} if a task takes longer"
        return (TooFewError if session.has_folded else InVainError)(text)

    def begin_again(self) -> None:
        """Reset the clock and the missing replies for another try; accepted uploads stay."""
        self.opened, self.tries, self.used = time.monotonic(), 0, 0.0
        self.outcome.awaited.clear()
        self.missing.clear()

    def carry_over(self, failed: Pending) -> None:
        """Take over clock, costs, byte counts and notes of a failed try of this round."""
        old, new = failed.outcome, self.outcome
        new.begun, new.failed = old.begun, old.failed
        new.bytes, new.epsilon, new.unbound = old.bytes, old.epsilon, old.unbound
        new.stated = old.stated
        self.outgoing.bytes += failed.outgoing.bytes
        self.outgoing.notes[:0] = failed.outgoing.notes + old.notes

    # ------------------------------------------------------------------ who is asked

    def note_absent(self, names: Iterable[str]) -> None:
        """Note in ``absent`` which of these agents cannot be asked now, and why."""
        roster, asked = self.session.roster, (self.round, len(self.chosen), self.session.noises)
        for name in names:
            self.absent.pop(name, None)
            if absence := roster.absence(name):
                self.absent[name] = absence
                if absence.code != FailureCode.OUT:  # also an exclusion may be corrected
                    self.outcome.awaited.add(name)
            elif self.in_vain(name):
                self.absent[name] = IN_VAIN
            elif why := spent_up(self.half, roster.agents[name], *asked):
                self.absent[name] = Failure(FailureCode.OUT, why)

    def work_together(self, grid: WorksTogether, names: list[str]) -> list[str]:
        """Have the grid compute the agents that need no message at once; return the others.

        An agent needs no message if it holds the state that was accepted last, or is new. One whose
        result does not come is in ``missing``, and is not asked again in this round.
        """
        session, agents = self.session, self.session.roster.agents
        position, sent = session.roster.positions, self.outgoing
        batches: dict[tuple[str, bool, tuple[Any, ...]], list[str]] = {}
        for name in names:
            agent = agents[name]
            shapes = tuple(
                (key, array.shape) for key, array in sent.per_agent.get(name, {}).items()
            )
            group = sent.group_of(name)
            # A new agent with an account is sent it, by message.
            if agent.tag in agent.held if agent.tag else not agent.ledger:
                batches.setdefault((group, agent.tag == 0, shapes), []).append(name)
        parts = []
        for (group, begins, shapes), batch in batches.items():
            places = [position[name] for name in batch]
            states = self.half.recovery(session.state, np.array(places)) if begins else None
            if begins and states is None:
                continue
            nodes, tags = zip(
                *((agents[name].node, agents[name].tag) for name in batch), strict=True
            )
            shared, left = sent.shared[group], self.options.round_timeout - self.used
            rows = {
                key: np.stack([sent.per_agent[name][key] for name in batch]) for key, _ in shapes
            }
            begun = time.monotonic()
            worked = grid.train_together(
                shared, nodes, np.array(tags), states, rows, max(0.0, left)
            )
            self.used += time.monotonic() - begun
            asked = len(worked.missing)
            self.missing |= {batch[place]: reply for place, reply in worked.missing.items()}
            if worked.done:
                parts.append(Together.of(batch, places, worked.done))
                asked += len(parts[-1].names)
            size = payload_bytes(sent.record_for(batch[0]))
            if states is not None:
                size += len(pack(starting_rows(states, 0)))
            sent.bytes += size * asked
        ended = set(self.missing)
        if parts:
            self.together = Together.merged(parts)
            ended.update(self.together.names)
        return [name for name in names if name not in ended]

    # ------------------------------------------------------------------ what comes back

    def sort(self, replies: Iterable[Message]) -> dict[str, Reply]:
        """Return the replies by agent; replies to any but an agent's last message are dropped."""
        return sort_replies(owner_by_message(self.outgoing.messages), replies)

    def reply(self, name: str, replies: Mapping[str, Reply]) -> Reply:
        """Return an agent's reply, or one without content with the reason for its absence."""
        return replies.get(name) or self.missing.get(name) or Reply(None, "no reply")
