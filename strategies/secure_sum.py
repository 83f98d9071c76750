"""Secure sums on the server: which agents are added, and what happens when one of them is missing.

The masks of a round cancel over its roster and over nothing less. So the roster of every group is
agreed on before the round and sent along; if one upload is missing or cannot be used, nothing of
the attempt can, and the group is asked again with a roster without that agent: the next attempt.

No two rosters of a round differ by a single agent, or the difference of their sums would be that
agent's upload: should the late upload of an agent that was dropped still arrive, a curious server
could take it. Where one agent dropped, another one is left out with it, drawn by the run's seed.
Agents hold the server to this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from privet.wire import REFUSED, Update, UploadError, WireError, content_bytes, ring, stream
from privet.wire.contract import is_need_state, read_update
from privet.wire.errors import one_line
from privet.wire.rosters import LEAST_ROSTER, with_roster

from .exchange import Reply, exchange
from .half import GroupSum, SummingHalf, grouped
from .history import Round
from .question import Question
from .roster import ENROL_TIMEOUT
from .round import ALL, Pending, Session, dropped, record_round, require, require_number

if TYPE_CHECKING:
    from .base import PrimalDualStrategy

log = logging.getLogger("flwr.privet")

MOST_ATTEMPTS = 4
"""Attempts at the sum of a group in one round; each is a release of every agent in it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A roster that was sent out, and why its sum failed, by agent (empty while it may come)."""

    number: int
    names: tuple[str, ...]
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass
class PendingSums(Pending):
    """A round of secure sums that was sent out."""

    least: int = LEAST_ROSTER
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """The groups whose sum is not there yet."""
    sums: dict[str, GroupSum] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    """What came with the uploads that were added."""
    renewed: set[str] = field(default_factory=set)
    """Agents that were given another chance in this round, with a new key; nobody gets two."""


def open_sums(
    half: SummingHalf[Any], session: Session, pending: Pending, least: int
) -> PendingSums:
    """Agree on the roster of every group; agents that cannot be on one are absent."""
    sums = PendingSums(**vars(pending), least=least)
    members: dict[str, list[str]] = {}
    units = grouped(half)
    position = {name: index for index, name in enumerate(session.roster.names)}
    for name in pending.asked:
        reason = sums.absent.get(name) or _unfit(half, session, sums, name)
        if reason:
            sums.absent[name] = reason
            continue
        group = ALL if units is None else units.group(session.state, position[name])
        members.setdefault(group, []).append(name)
    for group, names in members.items():
        _propose(session, sums, group, 1, names)
    return sums


def _unfit(half: SummingHalf[Any], session: Session, sums: PendingSums, name: str) -> str:
    """Return why an agent cannot be on a roster, or nothing; one may have to begin again."""
    agent = session.roster.agents[name]
    if agent.out:
        return agent.out
    if not agent.public_key:
        return "has no key for the secure sum"
    if not agent.tag or agent.tag in agent.held:
        return ""
    if half.restarts:
        session.roster.agents[name] = agent._replace(tag=0)
        sums.notes.append(f"agent {name} lost its state of round {agent.tag}: it starts again")
        return ""
    reason = (
        f"lost its state of round {agent.tag}, which the server of a secure sum does not hold: "
        "out of the run (state-path in the node config keeps it)"
    )
    session.roster.agents[name] = agent._replace(out=reason)
    return reason


def _propose(
    session: Session, sums: PendingSums, group: str, number: int, names: Iterable[str]
) -> bool:
    """Put a roster into the group's record; with too few agents it is absent."""
    names = tuple(names)
    if len(names) < sums.least:
        for name in names:
            sums.absent[name] = (
                f"a secure sum needs {sums.least} agents, its group had {len(names)} left"
            )
        return False
    keys = {name: session.roster.agents[name].public_key for name in names}
    sums.shared[group] = with_roster(sums.shared[group], number, keys)
    sums.attempts[group] = Attempt(number, names)
    return True


def settle(
    half: SummingHalf[Any],
    session: Session,
    pending: PendingSums,
    replies: Mapping[str, Reply],
) -> None:
    """Take the sum of every group whose uploads are all there; note why the others have none."""
    position = {name: index for index, name in enumerate(session.roster.names)}
    expected = {**half.summands(session.state), ring.MEMBERS: ()}
    for group, attempt in list(pending.attempts.items()):
        if attempt.failures:  # it has been looked at
            continue
        failures: dict[str, str] = {}
        updates: dict[str, Update] = {}
        total: ring.Words | None = None
        for name in attempt.names:
            try:
                reply = replies.get(name, Reply(None, "no reply"))
                updates[name] = _read(half, session, pending, name, reply)
                words = ring.from_bytes(updates[name].payload, expected)
            except Exception as error:  # whatever an agent sends costs that agent's reply only
                failures[name] = dropped(pending.round, name, error)
                continue
            if total is None:
                total = words
            else:
                ring.add(total, words)
        if total is not None and not failures:
            arrays = ring.decode(total)
            if arrays.pop(ring.MEMBERS) == len(attempt.names):
                places = tuple(position[name] for name in attempt.names)
                pending.sums[group] = GroupSum(arrays, places)
                pending.updates.update(updates)
                del pending.attempts[group]
                continue
            failures = dict.fromkeys(attempt.names, "the masks of its group did not cancel")
        pending.attempts[group] = replace(attempt, failures=failures)


def _read(
    half: SummingHalf[Any], session: Session, pending: PendingSums, name: str, reply: Reply
) -> Update:
    """Return one reply as read; what left the agent counts, also where it is not added."""
    agents = session.roster.agents
    if reply.content is None:
        if reply.code == REFUSED:  # each further question would cost the others an attempt
            agents[name] = agents[name]._replace(out=f"declined: {reply.reason}")
        raise UploadError(reply.reason)
    pending.bytes_up += content_bytes(reply.content)
    if is_need_state(reply.content):
        agents[name] = agents[name]._replace(held=(), public_key=b"")
        raise UploadError("does not hold its key or its state")
    update = read_update(reply.content, half.name, half.version, pending.round)
    pending.note_cost(session.roster, name, update)
    require_number(half, session, pending, name, update)
    if update.digest:
        raise WireError("digest of an upload that was to be masked")
    if update.note:
        pending.notes.append(f"agent {name}: {one_line(update.note)}")
    return update


def next_attempts(
    half: SummingHalf[Any],
    session: Session,
    pending: PendingSums,
    grid: Grid,
    question: Question,
    patience: float,
    seed: int,
) -> list[str]:
    """Agree on new rosters for the groups that came to no sum; return the agents to ask.

    Agents that lost their key are enrolled anew and stay, if they can go on; once a round, so that
    one which loses it each time costs the others a single attempt.
    """
    agents = session.roster.agents
    lost = [
        name
        for attempt in pending.attempts.values()
        for name in attempt.failures
        if not agents[name].public_key
        and agents[name].node in session.roster.online
        and name not in pending.renewed
    ]
    pending.renewed.update(lost)
    session.roster.ask_again(grid, lost, question, patience)
    asked: list[str] = []
    for group, attempt in list(pending.attempts.items()):
        del pending.attempts[group]
        culprits = ", ".join(f"agent {name}: {why}" for name, why in attempt.failures.items())
        pending.notes.append(f"secure sum, attempt {attempt.number} failed: {one_line(culprits)}")
        stay: list[str] = []
        for name in attempt.names:
            why = attempt.failures.get(name, "")
            if name in lost and agents[name].public_key:
                why = _unfit(half, session, pending, name)
            if why:
                pending.absent[name] = why
            else:
                stay.append(name)
        if len(attempt.names) - len(stay) == 1:
            rng = stream(seed, "left-out", group, pending.round * MOST_ATTEMPTS + attempt.number)
            spared = stay.pop(int(rng.integers(len(stay))))
            pending.absent[spared] = "left out: two sums of a round may not differ by one agent"
        if _propose(session, pending, group, attempt.number + 1, stay):
            asked += stay
    return asked


def play_sums(
    strategy: PrimalDualStrategy,
    half: SummingHalf[Any],
    pending: PendingSums,
    grid: Grid,
    deadline: float,
) -> None:
    """Send the round out and collect, attempt by attempt, until all sums are there or time is up.

    An attempt may take half of the time that is left until ``deadline`` (the last one all of it),
    so that there is time for another.
    """
    session = strategy.session
    assert session is not None
    messages: Mapping[str, Message] = pending.messages
    for number in range(1, MOST_ATTEMPTS + 1):
        left = max(deadline - time.monotonic(), 0.0)
        patience = left if number == MOST_ATTEMPTS else left / 2
        settle(half, session, pending, exchange(grid, messages, patience))
        left = deadline - time.monotonic()
        if not pending.attempts or number == MOST_ATTEMPTS or left <= 0:
            break
        question, patience = strategy.question(session), min(ENROL_TIMEOUT, left / 2)
        asked = next_attempts(half, session, pending, grid, question, patience, strategy.seed)
        if not asked:
            break
        messages = strategy.messages_for(asked)


def close_sums(
    half: SummingHalf[Any], session: Session, pending: PendingSums, min_agents: int
) -> Round:
    """Fold the sums that are there, name the agents that are in none, and record the round.

    Raises
    ------
    RunError
        If fewer uploads than ``min_agents`` (or than were asked) were added.
    """
    failures = dict(pending.absent)
    for attempt in pending.attempts.values():
        culprits = ", ".join(attempt.failures) or "none"
        for name in attempt.names:
            unused = f"its upload was not used: the sum lacks those of {one_line(culprits)}"
            failures[name] = attempt.failures.get(name, unused)
    for name, reason in failures.items():
        log.warning("round %d: agent %s is in no sum: %s", pending.round, name, reason)
    require(len(pending.updates), min_agents, pending, failures)
    session.state = half.fold_sums(session.state, pending.sums)
    return record_round(half, session, pending, pending.updates, failures)


__all__ = [
    "MOST_ATTEMPTS",
    "Attempt",
    "PendingSums",
    "close_sums",
    "next_attempts",
    "open_sums",
    "play_sums",
    "settle",
]
