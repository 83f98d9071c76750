"""The round under way: the messages that go out, and what is common to all ways to close it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privet.client_apps.cohort import begun
from privet.core import NotFiniteError, PrivetError, RunError, UploadError, mapped
from privet.core.errors import listed, one_line
from privet.wire import AGENT_RECORD, RECORD, Update, pack
from privet.wire.contract import agent_record, read_update, shared_record
from privet.wire.flower_internals import copy_for
from privet.wire.records import record_dict

from ..half import Arrays, GroupedHalf, ServerHalf, Turn, grouped
from ..uploads import Block
from .account import expected_release, spent_up, with_lost
from .exchange import Reply, owner_by_message, sort_replies
from .failure import Failure, FailureCode, overflowed
from .options import RunOptions
from .roster import CLIENT_APP_FAILED
from .session import Round, Session
from .together import Together, working_together

log = logging.getLogger("flwr.privet")

ALL = ""
"""The one group of agents where the algorithm does not divide them."""
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before a round that failed is tried again, at first and at most; they double."""


class TooFewError(RunError):
    """A round in which fewer uploads than ``min_agents`` (or than were asked) could be folded.

    ``overflowed`` says that the same steps would only blow up again.
    """

    overflowed: bool = False


class NoReplyError(UploadError):
    """An agent that was asked sent no upload; ``failure`` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Accepted(NamedTuple):
    """An agent's upload that will be folded: what makes the arrays, and what came beside them."""

    folded: Callable[[], Block]
    update: Update
    extras: dict[str, Any]
    statistics: NDArray[Any] | None = None
    """Of its model's buffers, where they are averaged."""


@dataclass
class Pending:
    """The round under way: who is asked, what is sent, and what has come of it.

    Attributes
    ----------
    half, options, session
        Those of the run.
    round : int
        Counted from 1.
    begun : float
        When it began, on the monotonic clock.
    opened : float
        When its agents were last asked: the round's timeout counts from here.
    asked : tuple of str
        The agents chosen, in folding order.
    shared : dict of str to ConfigRecord
        What the agents of a group are all sent, by group.
    own : dict of str to arrays
        What one agent is sent besides, by name; of few agents or none.
    arrays : dict of str to array
        What all are sent, where they are sent the same.
    settings : str
        The agents', as they travel.
    messages : dict of str to Message
        The last one to each agent.
    states : dict of str to callable
        What makes the record with an agent's state, where all of them are too large to be held: it
        is in the message while that is pushed.
    tries : int
        How many times messages were sent out and replies waited for.
    missing : dict of str to Reply
        What stands for an agent's reply to its last message, where that is not there.
    absent : dict of str to Failure
        Why an agent that was chosen is not asked.
    uploads : dict of str to Accepted
        The uploads in clear that will be folded; they outlast a try that failed.
    awaited : set of str
        Agents that gave no answer of their own, so that asking again may help.
    failed : list of float
        When a try of the round failed, on the monotonic clock.
    epsilon : float
        The most that an agent has spent after this round.
    spool : Spool, optional
        Where uploads wait that are too large for the memory.
    failures : dict of str to Failure
        Why agents were not folded, in a round that too few were.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    round: int
    begun: float
    opened: float
    asked: tuple[str, ...]
    shared: dict[str, ConfigRecord] = field(default_factory=dict)
    own: dict[str, Arrays] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    settings: str = ""
    messages: dict[str, Message] = field(default_factory=dict)
    states: dict[str, Callable[[], ConfigRecord]] = field(default_factory=dict)
    tries: int = 0
    missing: dict[str, Reply] = field(default_factory=dict)
    absent: dict[str, Failure] = field(default_factory=dict)
    uploads: dict[str, Accepted] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    failed: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    epsilon: float = 0.0
    folded: bool = False
    failures: dict[str, Failure] = field(default_factory=dict)
    spool: mapped.Spool | None = None
    together: Together | None = None
    """What was done without messages."""

    @property
    def turn(self) -> Turn:
        """What the half is told of the round."""
        return Turn(self.round, self.options.seed)

    @property
    def deadline(self) -> float:
        """When the round must end, on the monotonic clock."""
        return self.opened + self.options.round_timeout

    def pause(self, now: float) -> float:
        """Return the seconds until the round is tried again, 0 where it is not.

        It is while there is somebody to wait for and time: an agent that declined or failed would
        do so again.
        """
        self.failed.append(now)
        left = self.failed[0] + self.options.patience - now
        if not self.awaited or left <= 0:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** min(len(self.failed) - 1, 30), LAST_PAUSE, left)

    def begin_again(self) -> None:
        """Forget the try that failed; what was accepted in it stays."""
        self.opened, self.tries = time.monotonic(), 0
        self.awaited.clear()
        self.missing.clear()

    def carry_over(self, failed: Pending) -> None:
        """Go on from a try of this round whose messages are of no use any more."""
        self.begun, self.failed, self.notes = failed.begun, failed.failed, failed.notes
        self.bytes_up, self.bytes_down = failed.bytes_up, failed.bytes_down
        self.epsilon = failed.epsilon

    # ------------------------------------------------------------------ what goes out

    def broadcast(self, settings: str) -> None:
        """Make what the agents are sent, and note who cannot be asked.

        ``settings`` are the agents' settings, as they travel.
        """
        half, session, turn, record = self.half, self.session, self.turn, self._record_of
        self.settings = settings
        session.state, arrays = half.broadcast(session.state, turn)
        arrays = {**arrays, **session.besides}

        self.arrays = arrays
        units, position = grouped(half), session.roster.positions
        if units is not None:
            groups = {units.group(session.state, position[name]) for name in self.asked}
            self.shared = {
                group: record({**arrays, **units.broadcast_to(session.state, group)})
                for group in sorted(groups)
            }
        else:
            self.shared = {ALL: record(arrays)}
            for name in self.asked:
                if besides := half.own(session.state, position[name], turn):
                    self.own[name] = besides
        self.note_absent(self.asked)

    def note_absent(self, names: Iterable[str]) -> None:
        """Note which of these agents cannot be asked now, and why."""
        roster = self.session.roster
        agents, online, excluded = roster.agents, roster.online, roster.excluded
        for name in names:
            agent = agents[name]
            self.absent.pop(name, None)
            if name in excluded:  # the operator may correct it
                self.awaited.add(name)
                self.absent[name] = Failure(FailureCode.EXCLUDED, "excluded by the operator")
            elif why := agent.out:
                self.absent[name] = Failure(FailureCode.OUT, why)
            elif agent.node not in online:
                self.awaited.add(name)
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
        position, units = session.roster.positions, grouped(self.half)
        asked: dict[tuple[str, bool, tuple[Any, ...]], list[str]] = {}
        for name in names:
            agent = agents[name]
            shapes = tuple((key, array.shape) for key, array in self.own.get(name, {}).items())
            group = ALL if units is None else units.group(session.state, position[name])
            # Who begins with an account is told what he is charged with.
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
            shared, timeout = self.shared[group], self.options.round_timeout
            besides = {key: np.stack([self.own[name][key] for name in some]) for key, _ in shapes}
            done = together.train_together(shared, nodes, np.array(tags), states, besides, timeout)
            if not done:
                continue
            parts.append(Together.of(some, places, done))
            size = _payload_bytes(self._record_for(some[0], units))
            if states is not None:
                size += len(pack(begun(states, 0)))
            self.bytes_down += size * len(parts[-1].names)
        if not parts:
            return names
        self.together = Together.merged(parts)
        done_names = set(self.together.names)
        return [name for name in names if name not in done_names]

    def messages_for(self, names: Iterable[str], *, force: bool = False) -> dict[str, Message]:
        """Build and remember the messages of this round for some agents.

        An agent whose node does not hold the state last accepted is sent it (``force`` sends it in
        any case), with the account of its releases, which it would else begin anew; where the half
        does not hold that state either, the agent starts again by its own rule. What another node
        left is in neither, unless the run recovers by name.
        """
        half, session = self.half, self.session
        position, units = session.roster.positions, grouped(half)
        # One object for all agents that are told the same, whose states may be large.
        abouts: dict[tuple[int, bytes | None, str], ConfigRecord] = {}
        sizes: dict[int, int] = {}
        built: dict[str, Message] = {}
        first: Message | None = None
        for name in names:
            agent = session.roster.agents[name]
            recovery, ledger = None, ""
            if force or agent.tag == 0 or agent.tag not in agent.held:
                recovery = half.recovery_of(session.state, position[name], session.start)
                ledger = agent.ledger
            packed = None if recovery is None else pack(recovery)
            mapped.release()
            tag = 0 if force and packed is None else agent.tag
            if tag != agent.tag:
                self.notes.append(
                    f"agent {name} lost its state of round {agent.tag}: it starts again"
                )
            if packed is not None:
                self.bytes_down += len(packed)
                if agent.tag:
                    sent = f"agent {name} was sent its state of round {agent.tag}"
                    lost = half.recovery_note
                    self.notes.append(f"{sent}; {lost}" if lost else sent)
            record = self._record_for(name, units)
            self.states.pop(name, None)
            if packed is not None and self.options.folder and self.large(len(packed)):
                made, packed = partial(self._with_state, position[name], tag, ledger), None
                self.states[name] = made
            about = abouts.get((tag, packed, ledger))
            if about is None:
                about = abouts[tag, packed, ledger] = agent_record(tag, packed, ledger)
            content = record_dict({RECORD: record, AGENT_RECORD: about})
            if first is None:
                built[name] = first = Message(content, agent.node, MessageType.TRAIN)
            else:
                built[name] = copy_for(first, agent.node, content)
            if id(record) not in sizes:
                sizes[id(record)] = _payload_bytes(record)
            self.bytes_down += sizes[id(record)]
        self.messages.update(built)
        return built

    def sent_to(self, name: str) -> Arrays:
        """Return what an agent was broadcast."""
        return {**self.arrays, **self.own.get(name, {})}

    def _record_of(self, arrays: Arrays) -> ConfigRecord:
        half, experiment = self.half, self.session.experiment
        name, version = half.name, half.version
        return shared_record(name, version, experiment, self.round, self.settings, arrays)

    def _record_for(self, name: str, units: GroupedHalf[Any] | None) -> ConfigRecord:
        if own := self.own.get(name):
            return self._record_of({**self.arrays, **own})
        if units is None:
            return self.shared[ALL]
        session = self.session
        return self.shared[units.group(session.state, session.roster.positions[name])]

    def forget_sent(self) -> None:
        """Let go of what was sent, as large as the model, before the uploads are folded."""
        self.shared, self.own, self.messages = {}, {}, {}

    def _with_state(self, position: int, tag: int, ledger: str) -> ConfigRecord:
        session = self.session
        recovery = self.half.recovery_of(session.state, position, session.start)
        record = agent_record(tag, None if recovery is None else pack(recovery), ledger)
        mapped.release()
        return record

    def large(self, size: int) -> bool:
        """Whether as many bytes of every agent are too many for the memory."""
        return size * len(self.asked) > mapped.LIMIT

    # ------------------------------------------------------------------ what comes back

    def keep(self, block: Block) -> Callable[[], Block]:
        """Keep what will be folded of an upload until it is asked for, on the disk if it must."""
        folder = self.options.folder
        if folder is None or not self.large(sum(array.nbytes for array in block.upload.values())):
            return lambda: block
        self.spool = self.spool or mapped.Spool(folder)
        load, light = self.spool.keep(block.upload), block._replace(upload={}, state=None)
        return lambda: light._replace(upload=load())

    def sort(self, replies: Iterable[Message]) -> dict[str, Reply]:
        """Return replies by agent; those to other messages than an agent's last are dropped."""
        return sort_replies(owner_by_message(self.messages), replies)

    def reply(self, name: str, replies: Mapping[str, Reply]) -> Reply:
        """Return an agent's reply, or one without content that says why there is none."""
        return replies.get(name) or self.missing.get(name) or Reply(None, "no reply")

    def read(self, name: str, content: RecordDict) -> Update:
        """Return an agent's upload; what it released counts, also where it cannot be folded.

        Raises
        ------
        WireError
            If it is not an upload of this round.
        UploadError
            If it is of another number of examples than its agent is enrolled with.
        """
        update = read_update(content, self.half.name, self.half.version, self.round)
        self.note_cost(name, update)
        self._require_number(name, update)
        return update

    def note_cost(self, name: str, update: Update) -> None:
        """Note what an agent says that it has spent; with what its predecessors have."""
        roster = self.session.roster
        if update.ledger:
            roster.said(name, update.ledger)
        spent = update.epsilon
        if roster.agents[name].former:  # its own account knows nothing of theirs
            spent = max(spent, roster.agents[name].spent(update.delta))
        self.epsilon = max(self.epsilon, spent)

    def note_lost(self, name: str, code: int, agents: int = 1) -> None:
        """Count a reply that may have left and did not arrive, until the agent speaks for itself.

        ``agents`` were to be in its sum, where uploads are masked.

        The agent's next account takes the place of this one. Until then it counts in the run's
        account, and goes to an agent that has lost its own.
        """
        if code != CLIENT_APP_FAILED:
            self.awaited.add(name)
        roster, terms = self.session.roster, self.half.terms
        agent = roster.agents[name]
        release = expected_release(self.half, agent, self.round, agents)
        if release is None:
            return
        roster.said(name, with_lost(agent.ledger, release))
        spent = roster.agents[name].spent(terms.delta)
        if terms.noise_seed < 0:
            self.epsilon = max(self.epsilon, spent)

    def _require_number(self, name: str, update: Update) -> None:
        """Refuse an upload of another number of examples than its agent is enrolled with.

        The agent is asked anew before the next round.
        """
        agent, sent = self.session.roster.agents[name], update.num_examples
        if agent.num_examples == sent:
            return
        self.session.roster.doubtful.add(name)
        raise UploadError(
            f"upload of {sent} examples by an agent enrolled with {agent.num_examples}"
        )

    def note_remark(self, name: str, update: Update) -> None:
        """Keep what an agent remarks on its upload for the history."""
        if update.note:
            self.notes.append(f"agent {name}: {one_line(update.note)}")

    def dropped(self, name: str, error: Exception) -> Failure:
        """Log why an agent's reply is not folded, and return it."""
        known = isinstance(error, PrivetError)
        why = one_line(str(error) if known else f"reply cannot be used ({error!r})")
        log.warning("round %d: agent %s dropped: %s", self.round, name, why, exc_info=not known)
        if isinstance(error, NoReplyError):
            return error.failure
        infinite = isinstance(error, NotFiniteError)
        return Failure(FailureCode.NOT_FINITE if infinite else FailureCode.DROPPED, why)

    def require(self, folded: int, failures: Mapping[str, Failure]) -> None:
        """Raise ``TooFewError`` if fewer uploads than wanted could be folded."""
        least = self.options.min_agents
        if folded >= min(least, len(self.asked)):
            return
        self.failures = dict(failures)
        texts = {name: why.text.removeprefix(f"agent {name}: ") for name, why in failures.items()}
        reasons = listed(f"agent {name}: {text}" for name, text in texts.items())
        few = TooFewError(
            f"round {self.round}: {folded} of {len(self.asked)} agents replied, below "
            f"min-agents = {least}: {reasons}"
        )
        few.overflowed = overflowed(failures, len(self.asked))
        raise few

    def record(self, updates: Mapping[str, Update], failures: Mapping[str, Failure]) -> Round:
        """Note a round that was folded: whose uploads were accepted, its line of the history."""
        half, session, roster = self.half, self.session, self.session.roster
        for name, update in updates.items():
            roster.accepted(name, update)
        last = session.history[-1] if session.history else None
        participants = tuple(updates)
        if last is not None and last.participants == participants:
            participants = last.participants  # one object for all rounds, which a long run keeps
        silent = [name for name in roster.names if name not in updates]
        done = Round(
            round=self.round,
            participants=participants,
            failures=dict(failures),
            notes=(
                *roster.take_notes(),
                *self._tries_before(),
                *self.notes,
                *half.notes(session.state, silent),
            ),
            residual=half.residual(session.state),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            seconds=time.monotonic() - self.begun,
            epsilon=max(0.0 if last is None else last.epsilon, self.epsilon),
            measures=half.measures(session.state),
        )
        session.history.append(done)
        session.round = self.round
        self.folded = True
        return done

    def _tries_before(self) -> list[str]:
        if not self.failed:
            return []
        times, seconds = len(self.failed), self.failed[-1] - self.begun
        return [f"tried {times + 1} times: too few agents replied in the first {seconds:.0f} s"]


def _payload_bytes(record: ConfigRecord) -> int:
    return sum(len(value) for value in record.values() if isinstance(value, bytes))
