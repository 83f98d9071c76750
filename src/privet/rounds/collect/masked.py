"""Secure sums on the server: the rosters of a round, and its attempts when an upload is missing.

The masks of a round cancel over its whole roster and over no part of it. So the roster of every
group is fixed before the round and sent along. If one upload is missing or cannot be used, no
upload of the attempt can be, and the group is asked again with a roster without that agent: the
next attempt.

No two rosters of a round differ by a single agent, or the difference of their sums would be that
agent's upload: should the late upload of an agent that was dropped still arrive, a curious server
could compute it. If one agent dropped, another one is left out with it, drawn by the run's seed.
Agents check this. Where rounds may ask for the same (`Half.repeats`), that is so of any two rosters
of a run: whoever is left out stays so, and whoever comes later waits for another run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privet.agents.masking import task_digest
from privet.core import UploadError, WireError
from privet.core.errors import one_line
from privet.kernel import stream
from privet.kernel.masks import MOST_MEMBERS
from privet.wire import ENROL, RECORD, REFUSED, Update, content_bytes, ring
from privet.wire.contract import is_need_state, means_privacy
from privet.wire.records import record_dict
from privet.wire.rosters import read_signature, roster_question, with_roster, with_signatures

from ..exchange import Reply, take_replies
from ..failure import Failure, FailureCode
from ..half import ServerHalf
from ..keep.checkpoint import Checkpoint
from ..keep.rosters import Summed, begin, take_over, write_roster
from ..roster import ENROL_TIMEOUT, Question
from ..uploads import MaskedTotals
from .ask import messages_for
from .collector import Collector
from .costs import NoReplyError, dropped, note_lost, read_masked
from .outcome import Folded, require
from .round import OpenRound

log = logging.getLogger("flwr.privet")
T = TypeVar("T")

SPARED = "left out: two sums of a round may not differ by one agent"
LATER = "left out: the sums of this run are without it, and it can join in another run alone"
SUMS = "sums"
"""Of a checkpoint: how many sums were written down before it."""
UNCANCELLED = Failure(FailureCode.DROPPED, "the masks of its group did not cancel")
MOST_ATTEMPTS = 4
"""Attempts at the sum of a group in one round; each is a release of every agent in it."""
MOST_SPOILED = 2
"""Attempts in a private run, of any rounds, that may lack one agent's upload, or its shares, until
it is left out of all further ones."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A roster that was sent out, and by agent why its sum failed (empty while it may arrive).

    ``why`` says why the uploads of the others were not used, where that is not by the agents that
    failed.
    """

    number: int
    names: tuple[str, ...]
    failures: Mapping[str, Failure] = field(default_factory=dict)
    why: str = ""


@dataclass
class MaskedSums(Collector):
    """Collects sums of masked uploads, attempt by attempt, until a round has all of them.

    Attributes
    ----------
    attempts
        The attempts under way, of groups whose sum is not complete.
    last
        The last attempt of every group without a sum; number 0 before the first.
    sums
        The complete sums, by group.
    updates
        The metadata of the uploads in the complete sums.
    stated
        By group, the rosters that uploads were asked of, and the lists that were opened, in this
        round; where rounds may ask for the same, in any. The next sum is over none but agents of
        each, and lacks exactly one of none.
    kept
        Where these are written down before anybody is asked; nowhere without a checkpoint.
    earlier
        What was written down before a resume.
    written
        How many sums were written down.
    renewed
        Agents that enrolled again in this round with a new key; each may do so once.
    spoiled
        By agent, the attempts of a private run that lacked its upload; of this process alone.
    """

    masked: ClassVar[bool] = True

    attempts: dict[str, Attempt] = field(default_factory=dict)
    last: dict[str, Attempt] = field(default_factory=dict)
    sums: dict[str, MaskedTotals] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    stated: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    kept: Path | None = None
    earlier: Sequence[Summed] = ()
    written: int = 0
    renewed: set[str] = field(default_factory=set)
    spoiled: Counter[str] = field(default_factory=Counter)

    def remember(
        self, half: ServerHalf[Any], checkpoint: Path | None, saved: Checkpoint | None
    ) -> None:
        """Write rosters beside this checkpoint, those beside another's file first."""
        self.kept = checkpoint
        if saved is not None and saved.where is not None:
            stated = saved.manifest.get(SUMS)
            # Where rounds repeat each other, one of the same agents has no line.
            asked = () if half.agent.repeats else {one.round for one in saved.requests if one.names}
            self.earlier = take_over(saved.where, checkpoint, stated, asked)
        elif checkpoint is not None:
            begin(checkpoint)
        self.written = len(self.earlier)

    def about(self) -> dict[str, int]:
        """Return how many sums are written down."""
        return {} if self.kept is None else {SUMS: self.written}

    def open(self, opened: OpenRound) -> list[str]:
        """Fix the roster of every group; agents that cannot be on one are absent."""
        self.attempts, self.last, self.sums, self.updates, self.renewed = {}, {}, {}, {}, set()
        repeats = opened.half.agent.repeats
        if not (repeats and self.stated):
            self.stated = {}
            for one in self.earlier:
                if repeats or one.round == opened.number:
                    self.stated.setdefault(one.group, []).append(one.names)
        members: dict[str, list[str]] = {}
        for name in opened.chosen:
            members.setdefault(opened.broadcast.group_of(name), []).append(name)
        for group, names in members.items():
            self.last[group] = Attempt(0, self._bound(opened, group, tuple(names)))
        return self.reopen(opened)

    def _bound(self, opened: OpenRound, group: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the roster that a round starts from: where rounds may ask for the same, that of
        the last sum, also before a resume."""
        half, session = opened.half, opened.session
        if not half.agent.repeats:
            return names
        before = tuple(session.roster.names[one] for one in half.summed(session.state))
        if before and group not in self.stated:
            self.stated[group] = [before]
        last = self.stated[group][-1] if group in self.stated else names
        for name in names:
            if name not in last:
                opened.tally.absent[name] = Failure(FailureCode.LEFT_OUT, LATER)
        return last

    def reopen(self, opened: OpenRound) -> list[str]:
        """Ask the groups without a sum again, starting from the roster that was sent out last.

        Agents check this: between two attempts of a round, agents may only leave the roster.
        """
        self.renewed = set()
        for group, attempt in self.last.items():
            opened.note_absent(attempt.names)
            failures = {
                name: reason
                for name in attempt.names
                if (reason := opened.tally.absent.get(name) or _unfit(opened, name))
            }
            self.attempts[group] = replace(attempt, failures=failures)
        return self._next_attempts(opened, [])

    def timeout(self, opened: OpenRound) -> float:
        """Return half of the time that is left, so that there is some for another attempt.

        The last attempt may take all of it.
        """
        left = max(opened.deadline - time.monotonic(), 0.0)
        return left if opened.tally.tries + 1 == MOST_ATTEMPTS else left / 2

    def retry(
        self, opened: OpenRound, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Take the sums that are there, and ask the other groups again with new rosters."""
        self._decode_sums(opened, opened.sort(replies))
        left = opened.deadline - time.monotonic()
        if not self.attempts or opened.tally.tries == MOST_ATTEMPTS or left <= 0:
            return {}
        for attempt in self.attempts.values():
            culprits = ", ".join(f"agent {name}: {why}" for name, why in attempt.failures.items())
            failed = f"secure sum, attempt {attempt.number} failed: {one_line(culprits)}"
            opened.tally.notes.append(failed)
        names = [name for attempt in self.attempts.values() for name in attempt.failures]
        lost = self.renew_keys(opened, grid, question, names, min(ENROL_TIMEOUT, left / 2))
        names = self.agree(opened, grid, self._next_attempts(opened, lost))
        return messages_for(opened, names)

    def take(self, opened: OpenRound, name: str, reply: Message) -> bool:
        """Take nothing: a sum needs the replies of its group together."""
        return False

    def fold(self, opened: OpenRound, replies: Mapping[str, Reply]) -> Folded:
        """Fold the sums that are there, and name the agents that are in none."""
        self._decode_sums(opened, replies)
        half, session = opened.half, opened.session
        failures = dict(opened.tally.absent)
        for attempt in self.attempts.values():
            culprits = ", ".join(attempt.failures) or "none"
            why = attempt.why or f"the sum lacks those of {one_line(culprits)}"
            for name in attempt.names:
                unused = f"its upload was not used: {why}"
                failures[name] = attempt.failures.get(name, Failure(FailureCode.LEFT_OUT, unused))
        for name, reason in failures.items():
            session.complain(opened.number, name, f"is in no sum: {reason}")
        require(opened, len(self.updates), failures)
        sums = MaskedTotals.joined(self.sums, opened.broadcast.arrays, len(session.roster.agents))
        fold = partial(half.fold_sums, session.state, sums, opened.turn)
        session.state = session.steps.folded(half, session.state, opened.turn, fold)
        return Folded(self.updates, failures)

    # ------------------------------------------------------------------ attempts

    def agree(self, opened: OpenRound, grid: Grid, names: list[str]) -> list[str]:
        """Collect the signatures of the rosters, where an agent's operator has pinned keys.

        An agent that signs no roster is left out of the next one, and nothing is charged. Before
        anybody was asked for an upload no other agent is left out with it.
        """
        for group in list(self.attempts):
            while attempt := self.attempts.get(group):
                if not (failures := self.prepare(opened, grid, group, attempt)):
                    break
                opened.tally.absent |= failures
                stay = [name for name in attempt.names if name not in failures]
                del self.attempts[group]
                self._keep_apart(opened, group, attempt.number, stay)
                self._propose(opened, group, attempt.number + 1, stay)
        for group, attempt in self.attempts.items():
            self.state(opened, group, attempt.names)
        asked = {name for attempt in self.attempts.values() for name in attempt.names}
        return [name for name in names if name in asked]

    def prepare(
        self, opened: OpenRound, grid: Grid, group: str, attempt: Attempt
    ) -> dict[str, Failure]:
        """Have the agents of a roster sign it; return why some do not, if they do not."""
        agents, shared = opened.session.roster.agents, opened.broadcast.shared[group]
        if not any(agents[name].signs for name in attempt.names):
            return {}
        question = roster_question(shared, task_of(shared))
        asked = {name: question for name in attempt.names if agents[name].signs}
        signed, failures = ask(opened, grid, asked, read_signature)
        opened.broadcast.shared[group] = with_signatures(shared, signed)
        return failures

    def _propose(self, opened: OpenRound, group: str, number: int, names: Iterable[str]) -> bool:
        """Put a roster into the group's record; with too few agents the group is absent."""
        names, least = tuple(names), opened.options.least_roster
        if not least <= len(names) <= MOST_MEMBERS:
            why = f"a secure sum needs {least} agents, its group had {len(names)} left"
            if len(names) > least:
                why = f"a secure sum has at most {MOST_MEMBERS} agents, its group has {len(names)}"
            return self._left_out(opened, names, why)
        (last,) = self.stated.get(group, [()])[-1:]
        agents = opened.session.roster.agents
        for some in (last, [name for name in last if agents[name].signs]):
            left = len(set(some).intersection(names))
            if some and 2 * left <= len(some):
                why = f"{left} of the {len(some)} agents of the last sum are left: half or fewer"
                return self._left_out(opened, names, why)
        keys = {name: opened.session.roster.agents[name].public_key for name in names}
        opened.broadcast.shared[group] = with_roster(opened.broadcast.shared[group], number, keys)
        self.attempts[group] = self.last[group] = Attempt(number, names)
        return True

    def _left_out(self, opened: OpenRound, names: Iterable[str], why: str) -> bool:
        for name in names:
            opened.tally.absent[name] = Failure(FailureCode.LEFT_OUT, why)
        return False

    def state(self, opened: OpenRound, group: str, names: tuple[str, ...]) -> None:
        """Write down whom a sum is over, before anybody is asked for a part of it."""
        known = self.stated.setdefault(group, [])
        if opened.half.agent.repeats and known[-1:] == [names]:
            return
        if self.kept is not None:
            write_roster(self.kept, Summed(opened.number, group, names))
            self.written += 1
        known.append(names)

    def _keep_apart(self, opened: OpenRound, group: str, number: int, stay: list[str]) -> None:
        """Leave out of the next sum who is not in all before, and whoever must go with another."""
        known = [set(before) for before in self.stated.get(group, ())]
        for name in [name for name in stay if any(name not in before for before in known)]:
            stay.remove(name)
            opened.tally.absent[name] = Failure(FailureCode.LEFT_OUT, SPARED)
        while self.spare(opened, group, number, stay, known):
            pass

    def spare(
        self,
        opened: OpenRound,
        group: str,
        number: int,
        stay: list[str],
        known: Sequence[set[str]],
    ) -> str:
        """Take another agent off a roster which lacks exactly one of a sum; return its name.

        "" where it lacks none or more. Agents that sign rosters compare those that do, as others
        may be made up: where it lacks exactly one of these, one of them goes too.
        """
        agents = opened.session.roster.agents
        signing = {name for name in agents if agents[name].signs}
        every = ((before, before & signing) for before in known)
        lacking = [some for pair in every for some in pair if len(some.difference(stay)) == 1]
        others = [name for name in stay if all(name in some for some in lacking)]
        if not (lacking and others):
            return ""
        turn = opened.number * MOST_ATTEMPTS + number
        rng = stream(opened.options.seed, "left-out", group, turn)
        spared = others[int(rng.integers(len(others)))]
        stay.remove(spared)
        opened.tally.absent[spared] = Failure(FailureCode.LEFT_OUT, SPARED)
        return spared

    def _decode_sums(self, opened: OpenRound, replies: Mapping[str, Reply]) -> None:
        """Decode the sum of every group with all its uploads; note why others have none."""
        for group, attempt in list(self.attempts.items()):
            if attempt.failures:  # decoded already
                continue
            total, updates, failures = self.added(opened, attempt, replies)
            for name in failures:
                self._note_spoiled(opened, name)
            if total is not None and not failures:
                if self.complete(opened, group, total, updates):
                    continue
                failures = dict.fromkeys(attempt.names, UNCANCELLED)
            self.attempts[group] = replace(attempt, failures=failures)

    def added(
        self, opened: OpenRound, attempt: Attempt, replies: Mapping[str, Reply]
    ) -> tuple[ring.Words | None, dict[str, Update], dict[str, Failure]]:
        """Return the sum of the uploads that can be used, their metadata, and why others cannot."""
        expected = {**opened.half.summands(opened.session.state), ring.MEMBERS: ()}
        failures: dict[str, Failure] = {}
        updates: dict[str, Update] = {}
        total: ring.Words | None = None
        for name in attempt.names:
            try:
                update = _read(opened, attempt, name, opened.reply(name, replies))
                words = ring.from_bytes(update.payload, expected)
            except Exception as error:  # whatever an agent sends costs its reply only
                failures[name] = dropped(opened, name, error)
                continue
            updates[name] = update
            if total is None:
                total = words
            else:
                ring.add(total, words)
        return total, updates, failures

    def complete(
        self, opened: OpenRound, group: str, total: ring.Words, updates: Mapping[str, Update]
    ) -> bool:
        """Take the sum of a group's uploads, unless masks are left on it; return whether it did."""
        arrays, position = ring.decode(total), opened.session.roster.positions
        if arrays.pop(ring.MEMBERS) != len(updates):
            return False
        places = tuple(position[name] for name in updates)
        self.sums[group] = MaskedTotals(arrays, places, opened.broadcast.arrays)
        self.updates.update(updates)
        del self.attempts[group], self.last[group]
        return True

    def _note_spoiled(self, opened: OpenRound, name: str) -> None:
        """Leave an agent of a private run out after `MOST_SPOILED` attempts that lacked its upload.

        Each was a release of all others in it, and so is the attempt that takes its place.
        """
        if not means_privacy(opened.half.settings()):
            return
        self.spoiled[name] += 1
        roster = opened.session.roster
        if self.spoiled[name] >= MOST_SPOILED and not roster.agents[name].out:
            roster.leave_out(
                name,
                f"{self.spoiled[name]} secure sums lacked its upload or its shares, and each "
                "cost the other agents a release",
                any_node=True,
            )

    def renew_keys(
        self,
        opened: OpenRound,
        grid: Grid,
        question: Question,
        failed: Iterable[str],
        timeout: float,
    ) -> list[str]:
        """Enrol those of these agents that lost their key again, and return them.

        Each is enrolled once a round, so that an agent which loses its key every time costs the
        others a single attempt.
        """
        roster = opened.session.roster
        lost = [
            name
            for name in failed
            if not roster.agents[name].public_key
            and not roster.agents[name].out
            and roster.agents[name].node in roster.online
            and name not in self.renewed
        ]
        self.renewed.update(lost)
        roster.ask_again(grid, lost, question, timeout)
        return lost

    def _next_attempts(self, opened: OpenRound, lost: list[str]) -> list[str]:
        """Fix new rosters for the groups without a sum; return the agents to ask.

        Agents that lost their key stay if they have a new one and can continue.
        """
        agents = opened.session.roster.agents
        to_ask: set[str] = set()
        for group, attempt in list(self.attempts.items()):
            del self.attempts[group]
            stay: list[str] = []
            for name in attempt.names:
                why = attempt.failures.get(name)
                if name in lost and agents[name].public_key:
                    why = _unfit(opened, name)
                if why:
                    opened.tally.absent[name] = why
                else:
                    stay.append(name)
            self._keep_apart(opened, group, attempt.number, stay)
            if self._propose(opened, group, attempt.number + 1, stay):
                to_ask.update(stay)
        return [name for name in opened.chosen if name in to_ask]


def task_of(shared: ConfigRecord) -> bytes:
    """Return the digest of the task in a group's record, which agents sign."""
    header = [shared[key] for key in ("protocol", "version", "settings", "payload")]
    return task_digest(*header)  # type: ignore[arg-type]


def ask(
    opened: OpenRound,
    grid: Grid,
    questions: Mapping[str, ConfigRecord],
    read: Callable[[RecordDict, str, str], T],
    enough: int = 0,
) -> tuple[dict[str, T], dict[str, Failure]]:
    """Ask agents about a sum; return what ``read`` makes of their answers, and why some have none.

    With ``enough`` the wait ends with so many answers that can be read.
    """
    agents, sent = opened.session.roster.agents, {}
    for name, record in questions.items():
        sent[name] = Message(record_dict({RECORD: record}), agents[name].node, ENROL)
        opened.tally.bytes_down += content_bytes(sent[name].content)
    left = max(opened.deadline - time.monotonic(), 0.0)
    answers: dict[str, T] = {}
    failures: dict[str, Failure] = {}

    def take(name: str, reply: Reply) -> bool:
        try:
            if reply.content is None:
                if reply.code == REFUSED:
                    agents[name].out = f"declined: {reply.reason}"
                elif not reply.is_from_agent:
                    opened.tally.awaited.add(name)
                raise NoReplyError(reply.failure)
            opened.tally.bytes_up += content_bytes(reply.content)
            answers[name] = read(reply.content, RECORD, name)
        except Exception as error:  # whatever an agent sends costs its own part only
            failures[name] = dropped(opened, name, error)
        return name in answers

    take_replies(grid, sent, min(ENROL_TIMEOUT, left / 2), take, enough or len(sent))
    return answers, failures


def _unfit(opened: OpenRound, name: str) -> Failure | None:
    """Return why an agent cannot be on a roster, or None; an agent may have to start again."""
    agents = opened.session.roster.agents
    agent = agents[name]
    if agent.out:
        return Failure(FailureCode.OUT, agent.out)
    if not agent.public_key:
        return Failure(FailureCode.DROPPED, "has no key for the secure sum")
    if not agent.tag or agent.tag in agent.held:
        return None
    if opened.half.restarts:
        opened.tally.notes.append(
            f"agent {name} lost its state of round {agent.tag}: it starts again"
        )
        agent.tag = 0
        return None
    agent.out = (
        f"lost its state of round {agent.tag}, which the server of a secure sum does not hold: "
        "out of the run (state-path in the node config keeps it)"
    )
    return Failure(FailureCode.OUT, agent.out)


def _read(opened: OpenRound, attempt: Attempt, name: str, reply: Reply) -> Update:
    """Return the upload of one reply; its release is charged even if it is not added."""
    agents = opened.session.roster.agents
    if reply.content is None:
        if reply.code == REFUSED:  # each further question would cost the others an attempt
            agents[name].out = f"declined: {reply.reason}"
        elif not reply.is_from_agent:
            note_lost(opened, name, reply.code, len(attempt.names))
        raise NoReplyError(reply.failure)
    opened.tally.bytes_up += content_bytes(reply.content)
    if is_need_state(reply.content):
        agents[name].held, agents[name].public_key = (), b""
        raise UploadError("does not hold its key or its state")
    update = read_masked(opened, name, reply.content, len(attempt.names))
    if update.digest:
        raise WireError("digest of an upload that was to be masked")
    opened.tally.note_remark(name, update)
    return update
