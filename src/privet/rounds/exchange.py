"""Send messages, wait for the replies until a deadline, and match replies to agents.

An error reply of a dead node carries no useful sender, only the id of the message it answers; so
replies are matched by message id.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from privet.agents.state_tables import StateTable
from privet.core.errors import INSTEAD_OF_FLOWERS, INSTEAD_OF_OTHER_APPS, one_line
from privet.wire import AGENT_RECORD, FAILED, NOT_FINITE, REFUSED, sort_names
from privet.wire.contract import ENROL_AGAIN
from privet.wire.records import apart, record_dict

from .failure import Failure, FailureCode

log = logging.getLogger("flwr.privet")

POLL_FIRST = 0.01
POLL_LAST = 0.5
SILENCE = 10.0
"""Seconds of waiting after which a line says for whom, and again each time it is twice as long."""
SHOWN = 5
"""Names on such a line."""
MESSAGE_UNAVAILABLE = 3
"""Flower's error code for a message that expired before it was answered."""
MOD_FAILED = 6
"""Flower's error code for a message that a mod of the ClientApp does not pass on (never will)."""
NO_HANDLER = "No query function registered with name 'privet'"
"""Flower's error text for a ClientApp of another library; Ray may put its own text before it."""
NO_CLIENT_FN = "Invalid message type: query.privet"
"""Flower's error text for a ClientApp of a ``client_fn``."""
NO_ANSWER = "ClientApp stopped responding"
"""Flower's error text for a ClientApp that ended, or was too slow to pass its reply on."""
STATE_IN_MESSAGES = (
    "its process ended, or a large model's state, which Flower passes on at every message, took "
    "too long on its way: state-path in the node config keeps it on the node's disk"
)
NOT_OURS = -2
"""Code of the reply of such a ClientApp, not one of Flower's."""
STOPPED = -3
"""Code for a reply that was not waited for, as the run is to stop; not Flower's."""
OF_NO_KIND = 1
"""The code of an agent's error reply whose own is below 0: those are this coordinator's."""


class NotAwaited(Message):
    """An engine's own error reply to a message that is not waited for, as the run is to stop.

    No node can send one: what comes over a wire is a plain ``Message``, whatever its error code.
    """

    def __init__(self, why: str, message: Message) -> None:
        super().__init__(Error(STOPPED, why), reply_to=message)


@runtime_checkable
class EngineGrid(Protocol):
    """A grid of this library's engines, which holds replies and the agents' states in memory."""

    def serve(self, stopping: threading.Event, round_timeout: float) -> None:
        """Serve a run: the event cuts its waits short, none takes longer than a round may."""
        ...

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop the replies to these messages, later ones included."""
        ...

    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have; the tables may change in the next round.

        With ``accepted``, by node the round of the upload accepted last, those of these nodes
        alone, and none from before that round where the agent has done no more.
        """
        ...

    def restore_node_states(self, states: Sequence[StateTable]) -> None:
        """Put the states back."""
        ...


NO_REPLY, NOT_SENT = 0, -1
"""Codes for no reply in time, and for a message that could not be sent; not Flower's."""
_KINDS = {
    NO_REPLY: FailureCode.LATE,
    REFUSED: FailureCode.REFUSED,
    FAILED: FailureCode.FAILED,
    NOT_FINITE: FailureCode.SAYS_NOT_FINITE,
    ENROL_AGAIN: FailureCode.ENROL_AGAIN,
    NOT_OURS: FailureCode.OTHER_APP,
    STOPPED: FailureCode.STOPPED,
}
"""The failure of each error code; any other code is Flower's own, and a message was lost."""


class Reply(NamedTuple):
    """One agent's answer: content, or an error code and one line saying why there is none."""

    content: RecordDict | None
    reason: str = ""
    code: int = NO_REPLY

    @property
    def failure(self) -> Failure:
        """Why there is no content."""
        return Failure(_KINDS.get(self.code, FailureCode.LOST), self.reason)

    @property
    def is_from_agent(self) -> bool:
        """Whether the error is the agent's own answer."""
        return self.code in (REFUSED, FAILED, NOT_FINITE, ENROL_AGAIN)


def late_reply(timeout: float) -> Reply:
    """Return what stands for a reply that did not come in time.

    Its text has whole seconds, rounded up: what the round had used before it asked differs from
    one process to the next, and would be in the history.
    """
    shown = math.ceil(timeout) if 1 < timeout < math.inf else timeout
    return Reply(None, f"no reply within {shown:.4g} s", NO_REPLY)


class Answers(NamedTuple):
    """The replies to some messages and, by agent name, a `Reply` for each that did not come."""

    replies: list[Message]
    missing: dict[str, Reply]


def exchange(
    grid: Grid,
    messages: Mapping[str, Message],
    timeout: float,
) -> dict[str, Reply]:
    """Send one message per agent and return the replies by agent name.

    An agent that did not answer gets a reply without content whose reason says so.
    """
    answers = send(grid, messages, timeout)
    replies = sort_replies(owner_by_message(messages), answers.replies)
    return replies | answers.missing


def send(
    grid: Grid,
    messages: Mapping[str, Message],
    timeout: float,
    take: Callable[[str, Message], bool] | None = None,
    states: Mapping[str, Callable[[], ConfigRecord]] = MappingProxyType({}),
    at_once: int = sys.maxsize,
) -> Answers:
    """Send one message per agent and wait for the replies, ``timeout`` seconds at most.

    ``take`` is called with each agent's reply as it comes; a reply that it accepts (returns true)
    is not among the answers. ``states`` build the state records of some agents' messages, which
    are in the messages only while these are pushed, ``at_once`` at a time; replies are pulled
    ``at_once`` at a time as well.

    Flower drops the messages of agents that do not answer in time; a late answer is never read
    nor, where the grid can forget it, kept.
    """
    if not messages:
        return Answers([], {})
    deadline = time.monotonic() + timeout
    owners = push(grid, messages, timeout, states, at_once)
    replies = gather(grid, owners, len(owners), deadline, take, at_once)
    waiting = set(owners) - replies.answered
    if waiting and isinstance(grid, EngineGrid):
        grid.forget(waiting)
    late = late_reply(timeout)
    unsent = Reply(None, "message could not be sent", NOT_SENT)
    missing = {owners[message_id]: late for message_id in owners if message_id in waiting}
    sent = set(owners.values())
    missing |= {name: unsent for name in messages if name not in sent}
    return Answers(replies.messages, missing)


def take_replies(
    grid: Grid,
    messages: Mapping[str, Message],
    timeout: float,
    take: Callable[[str, Reply], bool],
    enough: int,
) -> None:
    """Send one message per agent and have each reply taken, until ``enough`` replies count.

    ``take`` is called with the replies, in the messages' order where they came together, and
    returns whether one counts. Where too few do, it is called for those that did not come, too.
    """
    deadline = time.monotonic() + timeout
    owners = waiting = push(grid, messages, timeout)
    counted, over, replied = 0, not waiting, set[str]()
    while counted < enough and not over:
        came = gather(grid, waiting, min(len(waiting), enough - counted), deadline)
        replies = sort_replies(waiting, came.messages)
        replied |= replies.keys()
        counted += sum(take(name, replies[name]) for name in messages if name in replies)
        gone = came.answered | came.expired
        waiting = {number: name for number, name in waiting.items() if number not in gone}
        over = not waiting or time.monotonic() >= deadline
    if isinstance(grid, EngineGrid):
        grid.forget(waiting)
    if counted < enough:
        late, unsent = late_reply(timeout), Reply(None, "message could not be sent", NOT_SENT)
        sent = set(owners.values())
        for name in [name for name in messages if name not in replied]:
            take(name, late if name in sent else unsent)


class Gathered(NamedTuple):
    """Replies that have come, and the ids of all messages that are answered, or expired.

    A reply that was taken as it came, and Flower's error for an expired message, are not among the
    replies; the latter counts as no answer.
    """

    messages: list[Message]
    answered: set[str]
    expired: set[str]


def push(
    grid: Grid,
    messages: Mapping[str, Message],
    ttl: float,
    states: Mapping[str, Callable[[], ConfigRecord]] = MappingProxyType({}),
    at_once: int = sys.maxsize,
) -> dict[str, str]:
    """Send one message per agent and return the agents by message id, of those that were sent.

    Flower drops a message that is not answered within ``ttl`` seconds. ``states`` and ``at_once``
    are as in `send`.
    """
    engine = isinstance(grid, EngineGrid)  # which holds no message back
    if not engine:
        for message in messages.values():
            message.metadata.ttl = ttl
    pushed = []
    for some in _chunks(list(messages), at_once if states else max(1, len(messages))):
        light = {name: messages[name].content for name in some}
        for name, content in light.items():
            if name in states:
                messages[name].content = record_dict({**content, AGENT_RECORD: states[name]()})
            if not engine:
                messages[name].content = apart(messages[name].content)
        pushed += list(grid.push_messages([messages[name] for name in some]))
        for name, content in light.items():
            messages[name].content = content
    owners = owner_by_message(messages)
    return {message_id: owners[message_id] for message_id in pushed if message_id in owners}


def gather(
    grid: Grid,
    owners: Mapping[str, str],
    enough: int,
    deadline: float,
    take: Callable[[str, Message], bool] | None = None,
    at_once: int = sys.maxsize,
) -> Gathered:
    """Wait until ``enough`` messages are answered or expired, or until a deadline.

    The deadline is on the monotonic clock.
    ``owners`` are the agents by message id; ``take`` and ``at_once`` are as in `send`. Replies that
    are there together with the last are returned as well.
    """
    began, silence = time.monotonic(), SILENCE
    waiting = set(owners)
    gathered = Gathered([], set(), set())
    pause = POLL_FIRST
    while waiting and _ended(gathered) < enough:
        left = [message_id for message_id in owners if message_id in waiting]
        for some in _chunks(left, at_once):
            for reply in grid.pull_messages(some):
                answered = reply.metadata.reply_to_message_id
                waiting.discard(answered)
                if _is_expired(reply):
                    gathered.expired.add(answered)
                    continue
                gathered.answered.add(answered)
                if not (take and answered in owners and take(owners[answered], reply)):
                    gathered.messages.append(reply)
        missing = waiting and _ended(gathered) < enough
        now = time.monotonic()
        if not missing or now >= deadline:
            break
        if now - began >= silence:
            names = sort_names(owners[message_id] for message_id in waiting)
            log.info("%s", _waiting_for(names, len(owners), now - began, deadline - now))
            silence *= 2
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, POLL_LAST) if len(waiting) == len(left) else POLL_FIRST
    return gathered


def _waiting_for(names: Sequence[str], count: int, seconds: float, left: float) -> str:
    """Say who of ``count`` has not replied, after how long, and how long they still may."""
    who = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
    more = f", at most {left:.0f} s more" if left < math.inf else ""
    return f"waited {seconds:.0f} s for {len(names)} of {count} replies{more}: {who}"


def _ended(gathered: Gathered) -> int:
    return len(gathered.answered) + len(gathered.expired)


def _chunks(names: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(names), size):
        yield names[begin : begin + size]


def _is_expired(reply: Message) -> bool:
    """Whether this is Flower's error for a message whose time to live is over."""
    return reply.has_error() and reply.error.code == MESSAGE_UNAVAILABLE


def owner_by_message(messages: Mapping[str, Message]) -> dict[str, str]:
    """Return agent name by message id, for messages that were pushed."""
    return {message.metadata.message_id: name for name, message in messages.items()}


def sort_replies(owners: Mapping[str, str], messages: Iterable[Message]) -> dict[str, Reply]:
    """Return replies by agent name; replies to unknown messages are dropped."""
    by_agent: dict[str, Reply] = {}
    for message in messages:
        name = owners.get(message.metadata.reply_to_message_id)
        if name is None:
            continue
        if not message.has_error():
            by_agent[name] = Reply(message.content)
            continue
        code, why = message.error.code, message.error.reason or "no reason given"
        if code < 0 and not isinstance(message, NotAwaited):
            code = OF_NO_KIND
        reply = Reply(None, one_line(why), code)
        if code == MOD_FAILED:
            node, line = message.metadata.src_node_id, reply.reason.rstrip(".")
            stopped = f"node {node}: a Flower mod stops its messages ({line}): {INSTEAD_OF_FLOWERS}"
            reply = Reply(None, stopped, REFUSED)
        elif not reply.is_from_agent and (NO_HANDLER in why or NO_CLIENT_FN in why):
            reply = Reply(None, INSTEAD_OF_OTHER_APPS, NOT_OURS)
        elif not reply.is_from_agent and code != STOPPED:
            advice = f": {STATE_IN_MESSAGES}" if NO_ANSWER in why else ""
            reply = Reply(None, f"error {code}: {reply.reason}{advice}", code)
        by_agent[name] = reply
    return by_agent
