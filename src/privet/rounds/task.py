"""A task that an agent works on while the server goes on, and how checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict

from privet.core import WireError
from privet.wire import RECORD, Update, pack, unpack
from privet.wire.contract import is_need_state, read_update, update_record
from privet.wire.flower_internals import packed_content, unpacked_content
from privet.wire.records import record_dict

from .exchange import Reply
from .half import Arrays
from .roster import EnrolledAgent, Roster
from .together import Together


@dataclass(slots=True)
class Task:
    """What an agent is working on: its upload is folded with the arrays that it was sent.

    Attributes
    ----------
    version : int
        The round whose model the agent was sent.
    sent : dict of str to array
        The arrays that it was sent; tasks of a version share them.
    begun : float
        When it was sent, in seconds of the run's clock.
    due : float
        When its reply comes, of a simulated agent; infinity where nobody knows.
    message_id : str
        Of the message that its agent was sent; empty if it was computed without one.
    reply : Reply, optional
        Of a simulated agent, whose work was done at once.
    together, row : Together and int, optional
        Its result among those of agents that worked together.
    withdrawn : bool
        Whether nobody waits for its reply any more.
    again : bool
        Whether its agent was sent its state, as it had replied that it lacks it.
    counted : bool
        Whether its reply, which was lost, is in the run's account already, since a resume.
    """

    version: int
    sent: Arrays
    begun: float
    due: float = math.inf
    message_id: str = ""
    reply: Reply | None = None
    together: Together | None = None
    row: int = 0
    withdrawn: bool = False
    again: bool = False
    counted: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether its reply is known to have been lost: its agent may have computed it."""
        reply = self.reply
        return reply is not None and reply.content is None and not reply.is_from_agent

    @property
    def is_done(self) -> bool:
        """Whether its result is known already."""
        return self.reply is not None or self.together is not None

    @property
    def needs_state(self) -> bool:
        """Whether the agent replied that it does not hold the state of its last upload."""
        reply = self.reply
        return reply is not None and reply.content is not None and is_need_state(reply.content)

    @property
    def has_upload(self) -> bool:
        """Whether its reply came, and is no error."""
        has = self.together is not None or (
            self.reply is not None and self.reply.content is not None
        )
        return has and not self.withdrawn

    def answer(self, protocol: str, version: int) -> Reply:
        """Return the result of a simulated agent as a reply (raises ``LookupError`` without)."""
        if self.together is not None:
            return self.together.reply(self.row, protocol, version, self.version)
        if self.reply is None:
            raise LookupError("the task is not done")
        return self.reply


def saved(
    tasks: Mapping[str, Task], protocol: str, version: int
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return tasks as a list for a checkpoint's manifest, and its members by name.

    The results of simulated agents are among them. Others are not known, and a resume counts them
    as lost.
    """
    entries: list[dict[str, Any]] = []
    members: dict[str, bytes] = {}
    numbers: dict[int, int] = {}  # of what was sent: a version that is tried again may send another
    for name, task in tasks.items():
        entry = {"agent": name, "version": task.version, "begun": task.begun, "due": task.due}
        if task.is_done:
            reply = task.answer(protocol, version)
            number = numbers.setdefault(id(task.sent), len(numbers))
            entry |= {"reason": reply.reason, "code": reply.code, "sent": number}
            if reply.content is not None:
                members[f"reply/{name}"] = packed_content(reply.content)
            members.setdefault(f"sent/{number}", pack(task.sent))
        entries.append(entry)
    return entries, members


def restored(entries: list[dict[str, Any]], members: Mapping[str, bytes]) -> dict[str, Task]:
    """Return the tasks of ``saved`` whose results are known (raises as a damaged checkpoint)."""
    sent: dict[int, Arrays] = {}
    tasks: dict[str, Task] = {}
    for entry in entries:
        if "code" not in entry:
            continue
        name, version, number = str(entry["agent"]), int(entry["version"]), int(entry["sent"])
        if number not in sent:
            arrays = unpack(members[f"sent/{number}"])
            sent[number] = {key: np.array(array) for key, array in arrays.items()}
        blob = members.get(f"reply/{name}")
        content: RecordDict | None = None if blob is None else unpacked_content(blob)
        reply = Reply(content, str(entry["reason"]), int(entry["code"]))
        task = Task(version, sent[number], float(entry["begun"]), float(entry["due"]), reply=reply)
        tasks[name] = task
    return tasks


@contextmanager
def charged(
    tasks: Mapping[str, Task],
    protocol: str,
    version: int,
    roster: Roster,
    fault: Callable[[EnrolledAgent, str, int], str],
) -> Iterator[None]:
    """Have the accounts of agents hold their restored tasks too, while lost ones are added.

    ``fault`` says why the account in a result cannot be kept.

    The account in the result of a task is that of when it was computed. It is replaced, so that the
    lost releases stay in the agent's account when the result is folded.
    """
    updates: dict[str, Update] = {}
    for name, task in tasks.items():
        if task.reply is None or task.reply.content is None:
            continue
        with suppress(WireError):  # such a result will be dropped
            update = read_update(task.reply.content, protocol, version, task.version)
            if fault(roster.agents[name], update.ledger, task.version):
                continue
            updates[name] = update
            if update.ledger:
                roster.note_ledger(name, updates[name].ledger)
    yield
    for name, update in updates.items():
        ledger, reply = roster.agents[name].ledger, tasks[name].reply
        if update.ledger and reply is not None and reply.content is not None:
            record = update_record(protocol, version, update._replace(ledger=ledger))
            content = record_dict({**reply.content, RECORD: record})
            tasks[name].reply = reply._replace(content=content)
