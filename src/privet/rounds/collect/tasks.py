"""Uploads that are folded as they come, each with the model that its agent was sent.

`Tasks` collects them in place of `ClearUploads` where rounds do not wait for all replies: in an
asynchronous run, in one that folds late replies, and in one of simulated agents with speeds. An
agent has one task at a time, so the state that it starts from is never stale, and delays need no
bound. What it was sent stays in the session until the task ends:

    choose    agents without a task
    collect   send them the present model; wait until ``buffer`` uploads have come, of whatever
              version (of a synchronous round: for all of them, until its timeout); check each with
              what its agent was sent, and wait for others in place of those that are dropped
    fold      fold the uploads in the agents' order

A task that is older than the round-timeout, or whose agent the operator excludes, is withdrawn: it
counts as released, and its upload is dropped should it still come. Simulated agents compute at
once, and a clock that belongs to the run says when their uploads come (`Speeds`); so a run is the
same on every engine and after a resume.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privet.core import WireError, mapped
from privet.core.errors import listed
from privet.kernel import stream
from privet.wire import Update, sort_names

from ..account import own_settings
from ..exchange import NO_REPLY, EngineGrid, Reply, gather, push, sort_replies
from ..failure import Failure
from ..half import Arrays, ServerHalf
from ..options import RunOptions
from ..participation import Fraction
from ..roster import EXCLUSION, EnrolledAgent, Question
from ..session import Session
from ..speeds import Speeds
from ..task import Task
from ..together import Together
from ..uploads import Block, Uploads
from .clear import ClearUploads, accepted, fold_into_state
from .outcome import AccountError, Folded, InVainError, NoReplyError
from .round import Pending

log = logging.getLogger("flwr.privet")

PATIENT = 100
"""A late reply is waited for as many round-timeouts."""


class Tasks(ClearUploads):
    """Collects the uploads of tasks; see `ClearUploads` for the interface.

    Attributes
    ----------
    options : RunOptions
    ended : dict of str to Task
        The tasks that ended in the round under way, by agent.
    checked : Checked
        What came of them.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.ended: dict[str, Task] = {}
        self.checked = Checked()
        self._speeds: Speeds | None = None
        self._began: float | None = None
        self._available = 0
        self._came = 0

    # ------------------------------------------------------------------ who is asked

    def choose(self, options: RunOptions, session: Session, number: int) -> list[str]:
        """Return the agents to be asked: of the participants those that have no task.

        A fraction is the share of the agents that work at the same time.
        """
        roster, who = session.roster, options.participation
        if not options.asynchronous:
            chosen = super().choose(options, session, number)
            return [name for name in chosen if name not in session.tasks]
        here = [name for name in roster.names if roster.absence(name) is None]
        idle = [name for name in here if self._is_free(session, name)]
        self._available = len({*here, *session.tasks} - roster.excluded)
        if isinstance(who, Fraction):
            free = max(0, who.count(len(roster.agents)) - len(session.tasks))
            rng = stream(options.seed, "participation", round_=number)
            places = rng.choice(len(idle), size=min(free, len(idle)), replace=False)
            return [idle[place] for place in sorted(places)]
        free_now = set(idle)
        return [one for one in who.select(number, roster.names, options.seed) if one in free_now]

    def _is_free(self, session: Session, name: str) -> bool:
        return name not in session.tasks and not (
            self._is_exhausted(session, name) or self._is_in_vain(session, name)
        )

    def _is_in_vain(self, session: Session, name: str) -> bool:
        return session.in_vain(name, self.options.max_uploads)

    def _is_exhausted(self, session: Session, name: str) -> bool:
        """Whether an agent has had as many tasks as a run gives one."""
        return 0 < self.options.max_uploads <= session.roster.agents[name].tasks

    def is_over(self, session: Session) -> bool:
        """Whether every agent has had all its tasks or is out, and nothing is to come.

        Excluded agents are not waited for, nor are in a private run the last ones that were charged
        for a task since the others had theirs, and sent nothing.
        """
        if session.tasks or not self.options.max_uploads:
            return False
        agents = session.roster.agents
        left = agents.keys() - session.roster.excluded
        missing = [n for n in left if not (agents[n].out or self._is_exhausted(session, n))]
        return len(missing) < len(left) and all(self._is_in_vain(session, n) for n in missing)

    def unfinished(self, session: Session) -> dict[str, Task]:
        """Return the agents' tasks, and those that ended in a round that was cut off."""
        ended = {name: task for name, task in self.ended.items() if name not in self.checked}
        return {**ended, **session.tasks}

    def sweep(self, session: Session) -> int:
        """Return the number of the sweep, as `Turn` has it."""
        if not self.options.asynchronous:
            return 0
        return 1 + session.uploads // max(1, len(session.roster.agents))

    def reopen(self, pending: Pending) -> list[str] | None:
        """Open the round again: no upload is lost, as tasks stay."""
        return None

    # ------------------------------------------------------------------ sending and waiting

    def collect(
        self,
        pending: Pending,
        grid: Grid,
        messages: Mapping[str, Message],
        question: Question,
        journal: Callable[[Collection[str]], object],
    ) -> list[Message]:
        """Give the agents their tasks, and wait for the uploads of a round; they are in ``ended``.

        The uploads of an asynchronous round are ``buffer`` many, or as many as there are tasks.
        """
        session = pending.session
        if messages:
            journal(messages)
        self.ended, self.checked, self._came = {}, Checked(), 0
        if isinstance(grid, EngineGrid):
            wait = partial(self._wait_simulated, pending, session.clock)
            self._give_simulated(pending, grid, messages)
        else:
            if self._began is None:
                self._began = time.monotonic() - session.clock
            session.clock = time.monotonic() - self._began
            wait = partial(self._wait, pending, grid, session.clock)
            self._give(pending, push(grid, messages, self.ttl, pending.outgoing.states))
        for name in session.tasks.keys() & session.roster.excluded:
            self._end(session, name, withdrawn=True)
        wait()
        while self._check(pending):  # others take the places of those that were dropped
            failed = self.checked.failures
            self._came = sum(t.has_upload and name not in failed for name, t in self.ended.items())
            wait()
        if not self.options.folds_old:
            for name in list(session.tasks):
                self._end(session, name, withdrawn=True)
            self._check(pending)
        return []

    def _give(self, pending: Pending, owners: Mapping[str, str], *, again: bool = False) -> None:
        """Note the tasks of agents that were sent a message, by its id."""
        session = pending.session
        for message_id, name in owners.items():
            sent = pending.outgoing.sent_to(name)
            task = Task(pending.round, sent, session.clock, message_id=message_id, again=again)
            session.tasks[name] = task
            session.roster.agents[name].tasks += not again

    def _give_simulated(
        self, pending: Pending, grid: Grid, messages: Mapping[str, Message]
    ) -> None:
        """Have simulated agents do their tasks at once, and note when the results come."""
        session, agents = pending.session, pending.session.roster.agents
        together, pending.together = pending.together, None
        names = list(messages)
        for row, name in enumerate(together.names if together else ()):
            task = Task(pending.round, pending.outgoing.sent_to(name), session.clock)
            task.together, task.row = together, row
            session.tasks[name] = task
            agents[name].tasks += 1
            names.append(name)
        for name, reply in pending.missing.items():
            sent = pending.outgoing.sent_to(name)
            session.tasks[name] = Task(pending.round, sent, session.clock, reply=reply)
            agents[name].tasks += 1
            names.append(name)
        end = time.monotonic() + self.options.round_timeout - pending.used
        for again in (False, True):
            owners = push(grid, messages, self.ttl, pending.outgoing.states)
            self._give(pending, owners, again=again)
            replies = sort_replies(owners, gather(grid, owners, len(owners), end).messages)
            for name in owners.values():
                session.tasks[name].reply = replies.get(name) or Reply(None, "no reply")
            lost = [name for name in owners.values() if session.tasks[name].needs_state]
            if again or not lost:
                break
            messages = self.with_states(pending, grid, lost)
        if self._speeds is None or self._speeds.names != session.roster.names:
            self._speeds = Speeds(self.options, self.options.seed, session.roster.names)
        key = self.options.local_steps
        for name in session.tasks.keys() & set(names):
            steps, task = local_steps(pending.half, agents[name], key), session.tasks[name]
            task.due = self._speeds.finish(name, agents[name].tasks, task.begun, steps)

    @property
    def ttl(self) -> float:
        """Seconds after which a task is withdrawn."""
        late = self.options.late_replies == "fold" and not self.options.asynchronous
        return self.options.round_timeout * (PATIENT if late else 1)

    def _until(self, opened: float) -> float:
        """Return when a round ends that was opened at a time of the clock."""
        return math.inf if self.options.asynchronous else opened + self.options.round_timeout

    def _missing(self, pending: Pending) -> int:
        """Return how many replies a round still waits for."""
        session, options = pending.session, self.options
        if not options.asynchronous:
            return len(session.tasks)
        if self._available < options.min_agents:
            return 0
        late = 0
        if options.max_delay:
            old = pending.round - options.max_delay
            late = sum(task.version <= old for task in session.tasks.values())
        buffer = options.uploads_of_version(len(session.roster.agents))
        return min(len(session.tasks), max(late, buffer - self._came))

    def _wait_simulated(self, pending: Pending, opened: float) -> None:
        """Move the clock from one end of a task to the next, until a round has its replies."""
        session, until = pending.session, self._until(opened)
        places, ttl = session.roster.positions, self.ttl
        ends = [
            (min(task.due, task.begun + ttl), places[name], name)
            for name, task in session.tasks.items()
        ]
        heapq.heapify(ends)
        while self._missing(pending):
            when, _, name = heapq.heappop(ends)
            if when > until:
                session.clock = until
                break
            session.clock = max(session.clock, when)
            self._end(session, name, withdrawn=session.tasks[name].due > when)

    def _wait(self, pending: Pending, grid: Grid, opened: float) -> None:
        """Wait for the replies of nodes, and withdraw tasks whose time is over."""
        session, until, began = pending.session, self._until(opened), self._began or 0.0
        while (missing := self._missing(pending)) and session.clock < until:
            end = min(until, *(task.begun + self.ttl for task in session.tasks.values()))
            owners = {task.message_id: name for name, task in session.tasks.items()}
            came = gather(grid, owners, missing, began + end)
            session.clock = time.monotonic() - began
            for name, reply in sort_replies(owners, came.messages).items():
                task = session.tasks[name]
                task.reply = reply
                if task.again or not task.needs_state:
                    self._end(session, name)
                    continue
                again = pending.outgoing.messages_for([name], force=True)
                states = pending.outgoing.states
                self._give(pending, push(grid, again, self.ttl, states), again=True)
            for name, task in list(session.tasks.items()):
                over = session.clock >= task.begun + self.ttl
                if over or task.message_id in came.expired:
                    self._end(session, name, withdrawn=True)

    def _end(self, session: Session, name: str, *, withdrawn: bool = False) -> None:
        self.ended[name] = task = session.tasks.pop(name)
        task.withdrawn = withdrawn
        self._came += task.has_upload

    # ------------------------------------------------------------------ folding

    def fold(self, pending: Pending, replies: Mapping[str, Reply]) -> Folded:
        """Fold the uploads that were accepted as they came.

        Raises
        ------
        RunError
            If fewer agents than ``min_agents`` are at work, or no upload could be folded.
        """
        half, session, outcome = pending.half, pending.session, pending.outcome
        places, checked = session.roster.positions, self.checked
        failures = {**pending.absent, **checked.failures}
        pending.outgoing.forget()
        if self.options.asynchronous and self._is_short(session):
            outcome.count = max(self.options.min_agents, len(session.roster.agents))
            agents = session.roster.agents.items()
            outcome.awaited |= {
                name
                for name, agent in agents
                if not (agent.out or self._is_exhausted(session, name))
            }
        elif self.options.folds_old:
            over = session.uploads > 0 and self.is_over(session)
            nothing_to_come = checked.updates or over
            # Where nobody is at work any more, no late reply makes up for those that are away.
            at_work = self.options.asynchronous or session.tasks or self.ended
            count = len(self.ended) if at_work else len(pending.absent)
            outcome.count = 0 if nothing_to_come else count
        self._require_left(session, failures)
        outcome.require(len(checked.updates), failures)
        updates = {name: checked.updates[name] for name in sort_names(checked.updates)}
        versions = tuple(self.ended[name].version for name in updates)
        ages = [pending.round - version for version in versions]
        if len(checked.joints) == 1 and not checked.blocks:
            uploads = Uploads.of(checked.joints[0].block, ages=ages)
        else:
            blocks = dict(checked.blocks)
            for joint in checked.joints:
                rows = zip(joint.updates, joint.block.rows(), strict=True)
                blocks |= {name: partial(_given, row) for name, row in rows}
            positions = [places[name] for name in updates]
            uploads = Uploads(positions, [blocks[name] for name in updates], ages)
        session.uploads += len(updates)
        fold_into_state(half, pending, uploads, updates)
        return Folded(updates, failures, session.clock, versions)

    def _require_left(self, session: Session, failures: Mapping[str, Failure]) -> None:
        """Refuse to go on where no agent is left with a task, and no upload was ever folded.

        Raises
        ------
        InVainError
            No further start would find one either: the tasks of a run are counted over all of them.
        """
        agents = session.roster.agents
        left = agents.keys() - session.roster.excluded
        exhausted = [name for name in left if self._is_exhausted(session, name)]
        if not exhausted or session.uploads or session.tasks or self.checked.updates:
            return
        if all(agents[name].out for name in left.difference(exhausted)):
            reasons = listed(f"agent {name}: {why.text}" for name, why in failures.items())
            raise InVainError(
                f"max-uploads = {self.options.max_uploads}: {len(exhausted)} agents have had all "
                "their tasks, and no upload was folded: raise max-uploads, or begin a new run"
                + (f": {reasons}" if reasons else "")
            )

    def _is_short(self, session: Session) -> bool:
        """Whether fewer agents than ``min_agents`` are there, or none of those left can work."""
        roster = session.roster
        idle = any(self._is_free(session, n) and roster.absence(n) is None for n in roster.names)
        works = idle or bool(session.tasks or self.ended)
        return self._available < self.options.min_agents or not works

    def _check(self, pending: Pending) -> bool:
        """Check the tasks that have ended since, and return whether one of them was dropped."""
        checked, places = self.checked, pending.session.roster.positions
        new = [name for name in sort_names(self.ended) if name not in checked]
        joint = self._joint(pending, new)
        if joint is not None:
            checked.joints.append(joint)
            checked.updates |= joint.updates
        before = len(checked.failures)
        for name in new:
            if name in checked:
                continue
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused
                    folded, update = self._one(pending, name, places[name])
            except Exception as error:  # whatever an agent sends costs that agent's reply only
                checked.failures[name] = pending.outcome.dropped(name, error)
            else:
                checked.blocks[name], checked.updates[name] = folded, update
            mapped.release()
        return len(checked.failures) > before

    def _one(self, pending: Pending, name: str, place: int) -> tuple[Callable[[], Block], Update]:
        """Return the accepted upload of one ended task (raises if it cannot be folded)."""
        half, task = pending.half, self.ended[name]
        if task.withdrawn:
            self._charge_withdrawn(pending, name, task)
            if self.ttl < (took := task.due - task.begun) < pending.outcome.shortest:
                pending.outcome.shortest = took
            late = Reply(None, f"no reply within {self.ttl:g} s").failure
            raise NoReplyError(EXCLUSION if name in pending.session.roster.excluded else late)
        reply = task.answer(half.name, half.version)
        if reply.content is None and not reply.is_from_agent:
            pending.outcome.note_lost(name, reply.code)
        one = accepted(half, pending, name, place, reply, task)
        pending.outcome.uploads[name] = one
        return one.folded, one.update

    def _charge_withdrawn(self, pending: Pending, name: str, task: Task) -> None:
        """Charge a task by the account in its result if that is known, else as a lost one.

        A resume has charged the tasks of simulated agents already: they would count twice.
        """
        half, outcome = pending.half, pending.outcome
        content = task.answer(half.name, half.version).content if task.is_done else None
        if content is not None:
            with suppress(WireError, AccountError):
                outcome.read_cost(name, content, task.version)
                outcome.awaited.add(name)
                return
        outcome.note_lost(name, NO_REPLY)

    def _joint(self, pending: Pending, ended: Iterable[str]) -> Joint | None:
        """Return the uploads of those of the agents that worked together, checked at once.

        None if there are none, or if they must be checked one by one.
        """
        half, session = pending.half, pending.session
        tasks = {name: self.ended[name] for name in ended}
        names = [name for name, task in tasks.items() if task.together and not task.withdrawn]
        tasks = {name: tasks[name] for name in names}
        if not names:
            return None
        sent = _sent_rows([tasks[name].sent for name in names])
        agents, places = session.roster.agents, session.roster.positions
        rows = [(one, task.row) for task in tasks.values() if (one := task.together)]
        together = Together.of_rows(names, [places[name] for name in names], rows)
        expected = np.array([agents[name].num_examples for name in names])
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                uploads = together.accepted(half, session.state, sent, expected)
            except Exception as error:  # checked one by one, the sender is named
                log.debug("round %d: uploads are checked one by one: %r", pending.round, error)
                return None
        pending.outcome.bytes += together.size
        updates = together.updates([tasks[name].version for name in names])
        for name, update in updates.items():
            pending.outcome.note_cost(name, update)
        (block,) = uploads
        return Joint(block, updates)


class Joint(NamedTuple):
    """The accepted uploads of agents that worked together, in the order of their names."""

    block: Block
    updates: dict[str, Update]


@dataclass
class Checked:
    """What came of a round's ended tasks, by agent: uploads to be folded, or why there is none."""

    updates: dict[str, Update] = field(default_factory=dict)
    blocks: dict[str, Callable[[], Block]] = field(default_factory=dict)
    joints: list[Joint] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.updates or name in self.failures


def local_steps(half: ServerHalf[Any], agent: EnrolledAgent, key: str) -> int:
    """Return the number of local steps of an agent's task; ``key`` is that of the run config."""
    return int(own_settings(agent.own).get(key, half.settings().get(key, 1)))


def _given(block: Block) -> Block:
    return block


def _sent_rows(sent: Sequence[Arrays]) -> Arrays:
    """Return what some agents were sent, a row each where that differs."""
    rows: Arrays = {}
    for key, first in sent[0].items():
        each = [arrays[key] for arrays in sent]
        if all(array is first for array in each):
            rows[key] = first
            continue
        table = np.stack(each)
        rows[key] = table if table.ndim > 1 else table[:, None]
    return rows
