"""The round under way: who is asked, what went out, what has come of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privet.client_apps.cohort import starting_rows
from privet.wire import pack

from ..half import ServerHalf, Turn
from .account import spent_up
from .exchange import Reply, owner_by_message, sort_replies
from .failure import Failure, FailureCode
from .options import RunOptions
from .outcome import Outcome
from .outgoing import Outgoing, payload_bytes
from .session import Round, Session
from .together import Together, working_together

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before a round that failed is tried again, at first and at most; they double."""


@dataclass
class Pending:
    """The round under way.

    Attributes
    ----------
    outgoing : Outgoing
        What goes out.
    outcome : Outcome
        What has come of it.
    opened : float
        When its agents were last asked, on the monotonic clock: the round's timeout counts from
        here.
    tries : int
        How many times messages were sent out and replies waited for.
    missing : dict of str to Reply
        What stands for an agent's reply to its last message, where that is not there.
    absent : dict of str to Failure
        Why an agent that was chosen is not asked.
    together : Together, optional
        What was done without messages.
    """

    outgoing: Outgoing
    outcome: Outcome
    opened: float
    tries: int = 0
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
        asked: tuple[str, ...],
        settings: str,
    ) -> Pending:
        """Begin a round with the agents ``asked``: make the broadcast, note who is absent."""
        now = time.monotonic()
        outcome = Outcome(half, options, session, turn.number, now, len(asked))
        pending = cls(Outgoing(half, options, session, turn, asked, settings), outcome, now)
        pending.outgoing.broadcast()
        pending.note_absent(asked)
        return pending

    @property
    def half(self) -> ServerHalf[Any]:
        """The run's server half."""
        return self.outgoing.half

    @property
    def options(self) -> RunOptions:
        """The run's."""
        return self.outgoing.options

    @property
    def session(self) -> Session:
        """The run's."""
        return self.outgoing.session

    @property
    def turn(self) -> Turn:
        """The round as the half is given it."""
        return self.outgoing.turn

    @property
    def round(self) -> int:
        """Its number, counted from 1."""
        return self.outgoing.turn.number

    @property
    def asked(self) -> tuple[str, ...]:
        """The agents chosen, in folding order."""
        return self.outgoing.asked

    @property
    def deadline(self) -> float:
        """When the round must end, on the monotonic clock."""
        return self.opened + self.options.round_timeout

    # ------------------------------------------------------------------ further tries

    def pause(self, now: float) -> float:
        """Return the seconds until the round is tried again, 0 where it is not.

        It is while there is somebody to wait for and time: an agent that declined or failed would
        do so again.
        """
        self.outcome.failed.append(now)
        left = self.outcome.failed[0] + self.options.patience - now
        if not self.outcome.awaited or left <= 0:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** min(len(self.outcome.failed) - 1, 30), LAST_PAUSE, left)

    def begin_again(self) -> None:
        """Forget the try that failed; what was accepted in it stays."""
        self.opened, self.tries = time.monotonic(), 0
        self.outcome.awaited.clear()
        self.missing.clear()

    def carry_over(self, failed: Pending) -> None:
        """Go on from a try of this round whose messages are of no use any more."""
        old, new = failed.outcome, self.outcome
        new.begun, new.failed = old.begun, old.failed
        new.bytes, new.epsilon = old.bytes, old.epsilon
        self.outgoing.bytes += failed.outgoing.bytes
        self.outgoing.notes[:0] = failed.outgoing.notes + old.notes

    # ------------------------------------------------------------------ who is asked

    def note_absent(self, names: Iterable[str]) -> None:
        """Note which of these agents cannot be asked now, and why."""
        roster = self.session.roster
        agents, online, excluded = roster.agents, roster.online, roster.excluded
        for name in names:
            agent = agents[name]
            self.absent.pop(name, None)
            if name in excluded:  # the operator may correct it
                self.outcome.awaited.add(name)
                self.absent[name] = Failure(FailureCode.EXCLUDED, "excluded by the operator")
            elif why := agent.out:
                self.absent[name] = Failure(FailureCode.OUT, why)
            elif agent.node not in online:
                self.outcome.awaited.add(name)
                self.absent[name] = Failure(FailureCode.NOT_CONNECTED, "not connected")
            elif why := spent_up(self.half, agent, self.round, len(self.asked)):
                self.absent[name] = Failure(FailureCode.OUT, why)

    def work_together(self, grid: Grid, names: list[str]) -> list[str]:
        """Have a grid do the work of those agents that need no message; return the others.

        That is, of those that hold the state last accepted, or begin.
        """
        together = working_together(self.half, grid)
        if together is None:
            return names
        session, agents = self.session, self.session.roster.agents
        position, sent = session.roster.positions, self.outgoing
        asked: dict[tuple[str, bool, tuple[Any, ...]], list[str]] = {}
        for name in names:
            agent = agents[name]
            shapes = tuple(
                (key, array.shape) for key, array in sent.per_agent.get(name, {}).items()
            )
            group = sent.group_of(name)
            # Who begins with an account is sent it.
            if agent.tag in agent.held if agent.tag else not agent.ledger:
                asked.setdefault((group, agent.tag == 0, shapes), []).append(name)
        parts = []
        for (group, begins, shapes), some in asked.items():
            places = [position[name] for name in some]
            states = self.half.recovery(session.state, np.array(places)) if begins else None
            if begins and states is None:
                continue
            nodes, tags = zip(
                *((agents[name].node, agents[name].tag) for name in some), strict=True
            )
            shared, timeout = sent.shared[group], self.options.round_timeout
            besides = {
                key: np.stack([sent.per_agent[name][key] for name in some]) for key, _ in shapes
            }
            done = together.train_together(shared, nodes, np.array(tags), states, besides, timeout)
            if not done:
                continue
            parts.append(Together.of(some, places, done))
            size = payload_bytes(sent.record_for(some[0]))
            if states is not None:
                size += len(pack(starting_rows(states, 0)))
            sent.bytes += size * len(parts[-1].names)
        if not parts:
            return names
        self.together = Together.merged(parts)
        done_names = set(self.together.names)
        return [name for name in names if name not in done_names]

    # ------------------------------------------------------------------ what comes back

    def sort(self, replies: Iterable[Message]) -> dict[str, Reply]:
        """Return replies by agent; those to other messages than an agent's last are dropped."""
        return sort_replies(owner_by_message(self.outgoing.messages), replies)

    def reply(self, name: str, replies: Mapping[str, Reply]) -> Reply:
        """Return an agent's reply, or one without content that says why there is none."""
        return replies.get(name) or self.missing.get(name) or Reply(None, "no reply")

    def record(self, updates: Mapping[str, Any], failures: Mapping[str, Failure]) -> Round:
        """Note the round, which was folded, in the history."""
        out = self.outgoing
        return self.outcome.record(updates, failures, out.bytes, out.notes)
