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
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privet.core import WireError
from privet.core.errors import listed
from privet.kernel import stream
from privet.wire import sort_names

from ..account import own_settings
from ..exchange import NO_REPLY, EngineGrid, Reply, gather, push, sort_replies
from ..failure import Failure
from ..half import ServerHalf
from ..options import RunOptions
from ..participation import Fraction
from ..roster import EXCLUSION, EnrolledAgent, Question
from ..session import Session
from ..speeds import Speeds
from ..task import Task
from ..together import Together
from .accept import accept_reply, accept_rows, fold_accepted, of_together
from .ask import messages_for
from .broadcast import sent_rows
from .clear import ClearUploads
from .costs import AccountError, NoReplyError, dropped, note_cost, note_lost, read_cost
from .outcome import Folded, InVainError, require
from .round import OpenRound

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
    checked : set of str
        The agents whose ended tasks were checked: their uploads are in the round's tally, or
        ``failures`` say why there is none.
    failures : dict of str to Failure
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.ended: dict[str, Task] = {}
        self.checked: set[str] = set()
        self.failures: dict[str, Failure] = {}
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

        Not waited for are excluded agents and, in a private run, agents whose tasks since the last
        fold were charged and brought nothing, if all others have had theirs.
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

    def reopen(self, opened: OpenRound) -> list[str] | None:
        """Open the round again: no upload is lost, as tasks stay."""
        return None

    # ------------------------------------------------------------------ sending and waiting

    def collect(
        self,
        opened: OpenRound,
        grid: Grid,
        messages: Mapping[str, Message],
        question: Question,
        journal: Callable[[Collection[str]], object],
    ) -> list[Message]:
        """Give the agents their tasks, and wait for the uploads of a round; they are in ``ended``.

        The uploads of an asynchronous round are ``buffer`` many, or as many as there are tasks.
        """
        session = opened.session
        if messages:
            journal(messages)
        self.ended, self.checked, self.failures, self._came = {}, set(), {}, 0
        if isinstance(grid, EngineGrid):
            wait = partial(self._wait_simulated, opened, session.clock)
            self._give_simulated(opened, grid, messages)
        else:
            if self._began is None:
                self._began = time.monotonic() - session.clock
            session.clock = time.monotonic() - self._began
            wait = partial(self._wait, opened, grid, session.clock)
            self._give(opened, push(grid, messages, self.ttl, opened.tally.states))
        for name in session.tasks.keys() & session.roster.excluded:
            self._end(session, name, withdrawn=True)
        wait()
        while self._check(opened):  # others take the places of those that were dropped
            ended = self.ended.items()
            self._came = sum(t.has_upload and name not in self.failures for name, t in ended)
            wait()
        if not self.options.folds_old:
            for name in list(session.tasks):
                self._end(session, name, withdrawn=True)
            self._check(opened)
        return []

    def _give(self, opened: OpenRound, owners: Mapping[str, str], *, again: bool = False) -> None:
        """Note the tasks of agents that were sent a message, by its id."""
        session = opened.session
        for message_id, name in owners.items():
            sent = opened.broadcast.sent_to(name)
            task = Task(opened.number, sent, session.clock, message_id=message_id, again=again)
            session.tasks[name] = task
            session.roster.agents[name].tasks += not again

    def _give_simulated(
        self, opened: OpenRound, grid: Grid, messages: Mapping[str, Message]
    ) -> None:
        """Have simulated agents do their tasks at once, and note when the results come."""
        session, agents, tally = opened.session, opened.session.roster.agents, opened.tally
        together, tally.together = tally.together, []
        names = list(messages)
        for done in together:
            for row, name in enumerate(done.names):
                task = Task(opened.number, opened.broadcast.sent_to(name), session.clock)
                task.together, task.row = done, row
                session.tasks[name] = task
                agents[name].tasks += 1
                names.append(name)
        for name, reply in tally.missing.items():
            sent = opened.broadcast.sent_to(name)
            session.tasks[name] = Task(opened.number, sent, session.clock, reply=reply)
            agents[name].tasks += 1
            names.append(name)
        end = time.monotonic() + self.options.round_timeout - tally.used
        for again in (False, True):
            owners = push(grid, messages, self.ttl, tally.states)
            self._give(opened, owners, again=again)
            replies = sort_replies(owners, gather(grid, owners, len(owners), end).messages)
            for name in owners.values():
                session.tasks[name].reply = replies.get(name) or Reply(None, "no reply")
            lost = [name for name in owners.values() if session.tasks[name].needs_state]
            if again or not lost:
                break
            messages = self.with_states(opened, grid, lost)
        if self._speeds is None or self._speeds.names != session.roster.names:
            self._speeds = Speeds(self.options, self.options.seed, session.roster.names)
        key = self.options.local_steps
        for name in session.tasks.keys() & set(names):
            steps, task = local_steps(opened.half, agents[name], key), session.tasks[name]
            task.due = self._speeds.finish(name, agents[name].tasks, task.begun, steps)

    @property
    def ttl(self) -> float:
        """Seconds after which a task is withdrawn."""
        late = self.options.late_replies == "fold" and not self.options.asynchronous
        return self.options.round_timeout * (PATIENT if late else 1)

    def _until(self, begun: float) -> float:
        """Return when a round ends that began at a time of the clock."""
        return math.inf if self.options.asynchronous else begun + self.options.round_timeout

    def _missing(self, opened: OpenRound) -> int:
        """Return how many replies a round still waits for."""
        session, options = opened.session, self.options
        if not options.asynchronous:
            return len(session.tasks)
        if self._available < options.min_agents:
            return 0
        late = 0
        if options.max_delay:
            old = opened.number - options.max_delay
            late = sum(task.version <= old for task in session.tasks.values())
        buffer = options.uploads_of_version(len(session.roster.agents))
        return min(len(session.tasks), max(late, buffer - self._came))

    def _wait_simulated(self, opened: OpenRound, begun: float) -> None:
        """Move the clock from one end of a task to the next, until a round has its replies."""
        session, until = opened.session, self._until(begun)
        places, ttl = session.roster.positions, self.ttl
        ends = [
            (min(task.due, task.begun + ttl), places[name], name)
            for name, task in session.tasks.items()
        ]
        heapq.heapify(ends)
        while self._missing(opened):
            when, _, name = heapq.heappop(ends)
            if when > until:
                session.clock = until
                break
            session.clock = max(session.clock, when)
            self._end(session, name, withdrawn=session.tasks[name].due > when)

    def _wait(self, opened: OpenRound, grid: Grid, begun: float) -> None:
        """Wait for the replies of nodes, and withdraw tasks whose time is over."""
        session, until, began = opened.session, self._until(begun), self._began or 0.0
        while (missing := self._missing(opened)) and session.clock < until:
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
                again = messages_for(opened, [name], force=True)
                states = opened.tally.states
                self._give(opened, push(grid, again, self.ttl, states), again=True)
            for name, task in list(session.tasks.items()):
                over = session.clock >= task.begun + self.ttl
                if over or task.message_id in came.expired:
                    self._end(session, name, withdrawn=True)

    def _end(self, session: Session, name: str, *, withdrawn: bool = False) -> None:
        self.ended[name] = task = session.tasks.pop(name)
        task.withdrawn = withdrawn
        self._came += task.has_upload

    # ------------------------------------------------------------------ folding

    def fold(self, opened: OpenRound, replies: Mapping[str, Reply]) -> Folded:
        """Fold the uploads that were accepted as they came.

        Raises
        ------
        TooFewError
            If fewer agents than ``min_agents`` are at work, or no upload could be folded.
        """
        session, tally = opened.session, opened.tally
        failures = {**tally.absent, **self.failures}
        opened.forget_messages()
        count = None
        if self.options.asynchronous and self._is_short(session):
            agents = session.roster.agents
            count = max(self.options.min_agents, len(agents))
            tally.awaited |= {
                name
                for name, agent in agents.items()
                if not (agent.out or self._is_exhausted(session, name))
            }
        elif self.options.folds_old:
            over = session.uploads > 0 and self.is_over(session)
            # Where nobody is at work any more, no late reply makes up for those that are away.
            at_work = self.options.asynchronous or session.tasks or self.ended
            count = len(self.ended) if at_work else len(tally.absent)
            count = 0 if tally.uploads or over else count
        self._require_left(opened, failures)
        require(opened, len(tally.uploads), failures, count)
        ages = {name: opened.number - self.ended[name].version for name in tally.uploads}
        session.uploads += len(ages)
        updates = fold_accepted(opened, ages)
        versions = tuple(self.ended[name].version for name in updates)
        return Folded(updates, failures, session.clock, versions)

    def _require_left(self, opened: OpenRound, failures: Mapping[str, Failure]) -> None:
        """Refuse to go on where no agent is left with a task, and no upload was ever folded.

        Raises
        ------
        InVainError
            No further start would find one either: the tasks of a run are counted over all of them.
        """
        session, agents = opened.session, opened.session.roster.agents
        left = agents.keys() - session.roster.excluded
        exhausted = [name for name in left if self._is_exhausted(session, name)]
        if not exhausted or session.uploads or session.tasks or opened.tally.uploads:
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

    def _check(self, opened: OpenRound) -> bool:
        """Check the tasks that have ended since, and return whether one of them was dropped.

        Those of agents that worked together are checked as one block.
        """
        failed: dict[str, Failure] = {}
        new = {name: self.ended[name] for name in sort_names(self.ended.keys() - self.checked)}
        at_once: dict[tuple[str, ...], dict[str, Task]] = {}  # by the names of what was sent
        with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused then
            for name, task in new.items():
                if task.together is not None and not task.withdrawn:
                    at_once.setdefault(tuple(task.sent), {})[name] = task
                    continue
                self._accept_one(opened, name, task, failed)
                self.checked.add(name)  # not before: one that was cut off counts as unfinished
            for tasks in at_once.values():
                self._accept_at_once(opened, tasks, failed)
                self.checked |= tasks.keys()
        self.failures |= {name: failed[name] for name in sort_names(failed)}
        return bool(failed)

    def _accept_at_once(
        self, opened: OpenRound, tasks: Mapping[str, Task], failed: dict[str, Failure]
    ) -> None:
        places = opened.session.roster.positions
        rows = [(one, task.row) for task in tasks.values() if (one := task.together)]
        together = Together.of_rows(list(tasks), [places[name] for name in tasks], rows)
        sent = sent_rows([task.sent for task in tasks.values()])
        versions = [task.version for task in tasks.values()]
        accept_rows(opened, of_together(opened, together, sent, versions), failed)

    def _accept_one(
        self, opened: OpenRound, name: str, task: Task, failed: dict[str, Failure]
    ) -> None:
        if not task.withdrawn:
            reply = task.reply or Reply(None, "no reply")
            accept_reply(opened, name, reply, failed, task)
            return
        self._charge_withdrawn(opened, name, task)
        if self.ttl < (took := task.due - task.begun) < opened.tally.shortest:
            opened.tally.shortest = took
        late = Reply(None, f"no reply within {self.ttl:g} s").failure
        why = EXCLUSION if name in opened.session.roster.excluded else late
        failed[name] = dropped(opened, name, NoReplyError(why))

    def _charge_withdrawn(self, opened: OpenRound, name: str, task: Task) -> None:
        """Charge a task by the account in its result if that is known, else as a lost one.

        A resume has charged the tasks of simulated agents already: they would count twice.
        """
        if task.together is not None:
            note_cost(opened, name, task.together.update(task.row, task.version))
            opened.tally.awaited.add(name)
            return
        if task.reply is not None and task.reply.content is not None:
            with suppress(WireError, AccountError):  # it is charged then, too
                read_cost(opened, name, task.reply.content, task.version)
            opened.tally.awaited.add(name)
            return
        if not task.counted:
            note_lost(opened, name, NO_REPLY, number=task.version)


def local_steps(half: ServerHalf[Any], agent: EnrolledAgent, key: str) -> int:
    """Return the number of local steps of an agent's task; ``key`` is that of the run config."""
    return int(own_settings(agent.own).get(key, half.settings().get(key, 1)))
