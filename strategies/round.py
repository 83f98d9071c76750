"""One round on the server: the messages that go out, and what becomes of the replies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from privet.privacy import AgentLedger, Facts, Release
from privet.wire import (
    AGENT_RECORD,
    FAILED,
    RECORD,
    REFUSED,
    Layout,
    PrivetError,
    RunError,
    Update,
    UploadError,
    WireError,
    algorithm,
    content_bytes,
    pack,
)
from privet.wire.contract import (
    agent_record,
    encode_settings,
    is_need_state,
    means_privacy,
    read_update,
    shared_record,
)
from privet.wire.errors import listed, one_line
from privet.wire.records import record_dict

from .exchange import Reply
from .half import Arrays, FoldingHalf, ServerHalf, grouped, summing
from .history import Round
from .roster import Agent, Roster

log = logging.getLogger("flwr.privet")

ALL = ""
"""The one group of agents where the algorithm does not divide them."""


@dataclass
class Session:
    """The state of one run on the server."""

    experiment: str
    layout: Layout
    start: NDArray[Any]
    state: Any
    roster: Roster
    round: int = 0
    history: list[Round] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The history as JSON, as far as it is in a checkpoint."""
    settings_before: Mapping[str, Any] = field(default_factory=dict)
    """The agents' settings before a resume, empty in a run that was not resumed."""
    encoded: tuple[Any, str] = (None, "")
    """The settings as JSON, and the half and seed they are of."""

    def settings(self, half: ServerHalf[Any], seed: int) -> str:
        """Return what travels with every message, encoded once and not every round."""
        of, text = self.encoded
        if of is None or of[0] is not half or of[1] != seed:
            masked = {"secure-sum": True} if summing(half) else {}
            text = encode_settings({**half.settings(), "seed": seed, **masked})
            self.encoded = ((half, seed), text)
        return text


@dataclass
class Pending:
    """A round that was sent out: the shared records, the messages, and what came of it."""

    round: int
    shared: dict[str, ConfigRecord]
    """What the agents of a group are all sent, by group."""
    messages: dict[str, Message]
    asked: tuple[str, ...]
    bytes_down: int = 0
    bytes_up: int = 0
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    folded: bool = False
    epsilon: float = 0.0
    """The most that an agent has spent after this round."""

    def note_cost(self, roster: Roster, name: str, update: Update) -> None:
        """Note what an agent has released: it counts, also where its upload cannot be folded."""
        if update.ledger:
            roster.said(name, update.ledger)
        spent = update.epsilon
        if roster.agents[name].former:  # its own account knows nothing of theirs
            spent = max(spent, roster.agents[name].spent(update.delta))
        self.epsilon = max(self.epsilon, spent)


def place_all(half: ServerHalf[Any], state: Any, roster: Roster) -> Any:
    """Return the state in which every agent is in its unit, where the half divides them."""
    units = grouped(half)
    if units is not None:
        for position, name in enumerate(roster.names):
            state = units.place(state, position, name, roster.agents[name].unit)
    return state


def admit(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Take a newcomer into the state."""
    position = session.roster.names.index(name)
    session.state = half.admit(session.state, position, session.start)
    _put(half, session, position, name)


def _put(half: ServerHalf[Any], session: Session, position: int, name: str) -> None:
    """Put an agent into its unit, where the half divides them."""
    units = grouped(half)
    if units is not None:
        unit = session.roster.agents[name].unit
        session.state = units.place(session.state, position, name, unit)


def renew(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Let the node that took a lost one's place begin as a newcomer does."""
    position = session.roster.names.index(name)
    if summing(half) is None:  # a server of sums has no table of agents
        folding = cast("FoldingHalf[Any]", half)
        session.state = folding.renew(session.state, position, session.start)
    _put(half, session, position, name)


def open_round(
    half: ServerHalf[Any], session: Session, number: int, asked: Iterable[str], seed: int
) -> Pending:
    """Begin a round for the agents that are asked: broadcast, and note who is not connected."""
    names = tuple(asked)
    roster = session.roster
    session.state, arrays = half.broadcast(session.state)
    settings = session.settings(half, seed)

    def record(broadcast: Arrays) -> ConfigRecord:
        return shared_record(
            half.name, half.version, session.experiment, number, settings, broadcast
        )

    units = grouped(half)
    if units is not None:
        position = {name: index for index, name in enumerate(roster.names)}
        groups = {units.group(session.state, position[name]) for name in names}
        shared = {
            group: record({**arrays, **units.broadcast_to(session.state, group)})
            for group in sorted(groups)
        }
    else:
        shared = {ALL: record(arrays)}
    absent = {}
    for name in names:
        agent = roster.agents[name]
        why = agent.out or ("" if roster.connected(name) else "not connected")
        if why := why or spent_up(half, agent, number):
            absent[name] = why
    return Pending(number, shared, {}, names, absent=absent)


def messages_for(
    half: ServerHalf[Any],
    session: Session,
    pending: Pending,
    names: Iterable[str],
    recovered: Callable[[str, int], str],
    *,
    force: bool = False,
) -> dict[str, Message]:
    """Build and remember the messages of this round for some agents.

    An agent whose node does not hold the state last accepted is sent it (``force`` sends it in
    any case), with the account of its releases, which it would else begin anew; where the half
    does not hold that state either, the agent starts again by its own rule. What another node left
    is in neither, unless the run recovers by name. ``recovered`` gives
    the note on an agent that was sent its state of a round.
    """
    position = {name: i for i, name in enumerate(session.roster.names)}
    units = grouped(half)
    sizes = {
        group: sum(len(value) for value in shared.values() if isinstance(value, bytes))
        for group, shared in pending.shared.items()
    }
    contents: dict[tuple[str, int, bytes | None, str], RecordDict] = {}
    built: dict[str, Message] = {}
    for name in names:
        agent = session.roster.agents[name]
        recovery, ledger = None, ""
        if force or agent.tag == 0 or agent.tag not in agent.held:
            recovery = half.recovery(session.state, position[name])
            ledger = agent.ledger
        packed = None if recovery is None else pack(recovery)
        tag = 0 if force and packed is None else agent.tag
        if tag != agent.tag:
            pending.notes.append(
                f"agent {name} lost its state of round {agent.tag}: it starts again"
            )
        if packed is not None:
            pending.bytes_down += len(packed)
            if agent.tag:
                pending.notes.append(recovered(name, agent.tag))
        group = ALL if units is None else units.group(session.state, position[name])
        content = contents.get((group, tag, packed, ledger))
        if content is None:  # one object on the wire for all agents that are sent the same
            own = agent_record(tag, packed, ledger)
            content = record_dict({RECORD: pending.shared[group], AGENT_RECORD: own})
            contents[group, tag, packed, ledger] = content
        built[name] = Message(content.copy(), agent.node, MessageType.TRAIN)
        pending.bytes_down += sizes[group]
    pending.messages.update(built)
    return built


def close_round(
    half: FoldingHalf[Any],
    session: Session,
    pending: Pending,
    replies: Mapping[str, Reply],
    min_agents: int,
) -> Round:
    """Accept or drop each reply, fold the accepted ones, and record the round.

    Raises
    ------
    RunError
        If fewer uploads than ``min_agents`` (or than were asked) could be folded.
    """
    names = session.roster.names
    failures = dict(pending.absent)
    uploads: dict[int, Arrays] = {}
    updates: dict[str, Update] = {}
    for position, name in enumerate(names):
        if name not in pending.messages:
            continue
        reply = replies.get(name, Reply(None, "no reply"))
        if reply.content is None and reply.code not in (REFUSED, FAILED):
            note_lost(half, session, pending, name)
        try:
            uploads[position], update = _accept(half, session, pending, name, position, reply)
        except Exception as error:  # whatever an agent sends costs that agent's reply only
            failures[name] = dropped(pending.round, name, error)
            continue
        updates[name] = update
    for name, reason in pending.absent.items():
        log.warning("round %d: agent %s absent: %s", pending.round, name, reason)
    require(len(uploads), min_agents, pending, failures)
    session.state = half.fold(session.state, uploads)
    return record_round(half, session, pending, updates, failures)


def record_round(
    half: ServerHalf[Any],
    session: Session,
    pending: Pending,
    updates: Mapping[str, Update],
    failures: Mapping[str, str],
) -> Round:
    """Note a round that was folded: whose uploads were accepted, and its line of the history."""
    for name, update in updates.items():
        session.roster.accepted(name, update)
    before = session.history[-1].epsilon if session.history else 0.0
    done = Round(
        round=pending.round,
        participants=tuple(updates),
        failures=dict(failures),
        notes=(*session.roster.take_notes(), *pending.notes),
        residual=half.residual(session.state),
        bytes_up=pending.bytes_up,
        bytes_down=pending.bytes_down,
        epsilon=max(before, pending.epsilon),
    )
    session.history.append(done)
    session.round = pending.round
    pending.folded = True
    return done


def expected_release(half: ServerHalf[Any], agent: Agent, number: int) -> Release | None:
    """Return what an agent's reply of a round releases at least, None where none is accounted.

    It is asked of the agent half, with what the agent says of itself; an agent that has released
    more in one of its messages, by settings of its own, is taken to do so again.
    """
    settings = half.settings()
    if not (agent.facts and means_privacy(settings)):
        return None
    try:
        made = algorithm(half.name).load_agent().from_settings(settings)
        release: Release = made.release(Facts.from_json(agent.facts), number)
        before = [known for known, _ in AgentLedger.joined([agent.ledger]).entries]
    except (ValueError, TypeError, ArithmeticError):
        return None
    if release.mechanism == "none":
        return None
    return max([release, *before], key=lambda one: one.count * one.loss * one.loss)


def spent_up(half: ServerHalf[Any], agent: Agent, number: int) -> str:
    """Return why an agent must not be asked: with its predecessors it would pass the run's target.

    An agent refuses by itself to pass it, but knows only of its own releases.
    """
    settings = half.settings()
    target = float(settings.get("target-epsilon", 0.0))
    if not (target > 0 and agent.former):
        return ""
    release = expected_release(half, agent, number)
    if release is None:
        return ""
    after = AgentLedger.joined(agent.accounts).record(release).spent(float(settings["delta"]))
    return f"target-epsilon: {after:.6g} under this name" if after > target else ""


def note_lost(half: ServerHalf[Any], session: Session, pending: Pending, name: str) -> None:
    """Count a reply that may have left and did not arrive, until the agent speaks for itself.

    The agent's next account takes the place of this one. Until then it counts in the run's account,
    and goes to an agent that has lost its own.
    """
    agent = session.roster.agents[name]
    release = expected_release(half, agent, pending.round)
    if release is None:
        return
    ledger = AgentLedger.joined([agent.ledger]).record(release)
    session.roster.said(name, ledger.to_json())
    spent = session.roster.agents[name].spent(float(half.settings()["delta"]))
    if int(half.settings().get("noise-seed", -1)) < 0:
        pending.epsilon = max(pending.epsilon, spent)


def dropped(round_: int, name: str, error: Exception) -> str:
    """Log why an agent's reply is not folded, and return it as one line."""
    known = isinstance(error, PrivetError)
    why = one_line(str(error) if known else f"reply cannot be used ({error!r})")
    log.warning("round %d: agent %s dropped: %s", round_, name, why, exc_info=not known)
    return why


def _accept(
    half: FoldingHalf[Any],
    session: Session,
    pending: Pending,
    name: str,
    position: int,
    reply: Reply,
) -> tuple[Arrays, Update]:
    """Return what is folded of one reply, and the reply as read."""
    agents = session.roster.agents
    if reply.content is None:
        raise UploadError(reply.reason)
    pending.bytes_up += content_bytes(reply.content)
    if is_need_state(reply.content):
        kept = half.recovery(session.state, position) is not None
        tag = agents[name].tag if kept else 0
        agents[name] = agents[name]._replace(held=(), tag=tag)
        raise UploadError("does not hold its state; the next message takes care of it")
    update = read_update(reply.content, half.name, half.version, pending.round)
    pending.note_cost(session.roster, name, update)
    require_number(half, session, pending, name, update)
    folded, agreed = half.accept(session.state, position, update.arrays())
    if update.digest != agreed:
        agents[name] = agents[name]._replace(held=())
        raise WireError("digest differs: agent and server do not hold the same state")
    if update.note:
        pending.notes.append(f"agent {name}: {one_line(update.note)}")
    return folded, update


def require_number(
    half: ServerHalf[Any], session: Session, pending: Pending, name: str, update: Update
) -> None:
    """Refuse an upload of another number of examples than its agent is enrolled with.

    The agent is asked anew before the next round. One that cannot be (a ClientApp that is not of
    this library) is taken at its word, with a note, unless the run is private.

    Raises
    ------
    UploadError
        With both numbers.
    """
    agent, sent = session.roster.agents[name], update.num_examples
    if agent.num_examples in (0, sent):  # 0: a foreign agent, before its first upload
        return
    if agent.foreign and not means_privacy(half.settings()):
        pending.notes.append(f"agent {name}: {sent} examples, before {agent.num_examples}")
        return
    session.roster.doubtful.add(name)
    raise UploadError(f"upload of {sent} examples by an agent enrolled with {agent.num_examples}")


def require(folded: int, least: int, pending: Pending, failures: Mapping[str, str]) -> None:
    """Raise ``RunError`` if fewer uploads than wanted could be folded."""
    if folded >= min(least, len(pending.asked)):
        return
    reasons = listed(f"agent {name}: {why}" for name, why in failures.items())
    raise RunError(
        f"round {pending.round}: {folded} of {len(pending.asked)} agents replied, below "
        f"min-agents = {least}: {reasons}"
    )


__all__ = [
    "ALL",
    "Pending",
    "Session",
    "admit",
    "close_round",
    "dropped",
    "messages_for",
    "open_round",
    "place_all",
    "record_round",
    "renew",
    "require",
    "require_number",
]
