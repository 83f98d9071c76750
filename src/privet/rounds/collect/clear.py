"""Uploads in clear: the server reads every agent's and folds those it accepts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privet.agents.inputs import starting_rows
from privet.agents.sparsifiers import VALUES
from privet.agents.state import LARGE
from privet.agents.upload_bounds import norm_of
from privet.core import RunError, UploadError, WireError, mapped
from privet.kernel import NoCertificateError
from privet.wire import RECORD, Update, content_bytes, sort_names
from privet.wire.contract import is_need_state, means_privacy
from privet.wire.flower_internals import held_by
from privet.wire.magnitude import LARGEST
from privet.wire.payload import BUFFERS, ENCODED

from ..account import own_settings
from ..exchange import EngineGrid, Reply
from ..half import ServerHalf
from ..method import Arrays
from ..roster import EnrolledAgent, Question
from ..session import Session
from ..task import Task
from ..together import Together
from ..uploads import Block, Uploads
from .collector import Collector
from .outcome import Accepted, Folded, NoReplyError
from .round import Pending

log = logging.getLogger("flwr.privet")

ROUNDED = 1.001
"""Margin of the bound of an upload for its numbers' rounding to float32."""
SHARE = 1e-6
"""The share of the largest number in a broadcast that one agent may upload: the rest is for what a
server makes of it."""
SEVERAL, MANY = 10.0, 100.0
"""An agent's bound in multiples, at most, of that by the regulariser of most agents, and of that by
the run's own settings."""
LEAST_TIMEOUT = 1.0
"""Seconds a second try has at least, however late the first replies were."""


class ClearUploads(Collector):
    """Collects uploads one by one; agents that lost their state get a second try with it."""

    def open(self, pending: Pending) -> list[str]:
        """Begin a round and return the agents to ask: the chosen ones that are not absent."""
        return [name for name in pending.chosen if name not in pending.absent]

    def reopen(self, pending: Pending) -> list[str] | None:
        """Begin another try and return the agents to ask: those without an accepted upload.

        None if the round must be opened again, with newly enrolled nodes: if no upload was accepted
        so far (which loses nothing), or if too few agents are left and there are such nodes.
        """
        roster = pending.session.roster
        waiting = [name for name in pending.chosen if name not in pending.outcome.uploads]
        pending.note_absent(waiting)
        here = [name for name in waiting if name not in pending.absent]
        enough = min(pending.options.min_agents, len(pending.chosen))
        if not pending.outcome.uploads or (
            len(pending.outcome.uploads) + len(here) < enough and roster.has_strangers
        ):
            return None
        return here

    def timeout(self, pending: Pending) -> float:
        """Return what is left of the round's timeout; a second at least, however late it is."""
        if pending.tries == 0:
            whole = pending.options.round_timeout
            return min(whole, max(LEAST_TIMEOUT, whole - pending.used))
        return max(LEAST_TIMEOUT, pending.deadline - time.monotonic())

    def retry(
        self, pending: Pending, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Return messages, with their state, to the agents that replied that they do not hold it.

        No messages end the collecting. ``replies`` are all that came in this round.
        """
        if pending.tries > 1:
            return {}
        need_state = [one for one in replies if one.has_content() and is_need_state(one.content)]
        if not need_state:
            return {}
        lost = pending.sort(need_state)
        return self.with_states(
            pending, grid, list(filter(lost.__contains__, pending.outgoing.messages))
        )

    def with_states(self, pending: Pending, grid: Grid, names: Sequence[str]) -> dict[str, Message]:
        """Return messages to agents that lost their state, with it where the server knows it.

        What simulated agents alone knew is put back from the newest checkpoint, if that has it
        after the round that was accepted last; the account that goes with it is the run's, which
        holds lost replies too. Others start again by their half's rule.
        """
        session, half, out = pending.session, pending.half, pending.outgoing
        places, agents = session.roster.positions, session.roster.agents
        unknown = {
            name
            for name in names
            if half.recovery_of(session.state, places[name], session.start) is None
        }
        back: set[str] = set()
        if unknown and isinstance(grid, EngineGrid):
            tables = session.saved_of(unknown)
            back = {name for table in tables for name in table.names}
            try:
                grid.restore_node_states(tables)
            except RunError as error:
                log.warning("round %d: %s", pending.round, error)
                back = set()
        out.notes += [
            f"agent {name} was given its state of round {agents[name].tag} from the checkpoint"
            for name in names
            if name in back
        ]
        sent = out.messages_for([name for name in names if name in back])
        return sent | out.messages_for([name for name in names if name not in back], force=True)

    def take(self, pending: Pending, name: str, reply: Message) -> bool:
        """Accept a reply as it comes; if it cannot be accepted, ``fold`` reports why."""
        known = pending.session.roster.positions.get(name)
        if known is None or not reply.has_content() or is_need_state(reply.content):
            return False
        half, before = pending.half, pending.outcome.bytes
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused then
                made = accepted(half, pending, name, known, Reply(reply.content))
        except Exception:
            pending.outcome.bytes = before
            return False
        pending.outcome.uploads[name] = made
        mapped.release()
        return True

    def fold(self, pending: Pending, replies: Mapping[str, Reply]) -> Folded:
        """Accept or drop each reply, and fold the accepted ones.

        Raises
        ------
        RunError
            If fewer uploads than ``min_agents`` (or than agents were chosen) could be folded;
            accepted uploads stay in ``pending`` for another try.
        """
        half, session = pending.half, pending.session
        if pending.together is not None:
            if folded := _folded_together(half, pending, pending.together):
                return folded
            made = pending.together.replies(half.name, half.version, pending.round)
            replies, pending.together = {**replies, **made}, None
        failures, places = dict(pending.absent), session.roster.positions
        with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused then
            asked = {*pending.outgoing.messages, *pending.missing, *replies}
            for name, place in places.items():
                if name not in asked or name in failures or name in pending.outcome.uploads:
                    continue
                reply = pending.reply(name, replies)
                if reply.content is None and not reply.is_from_agent:
                    pending.outcome.note_lost(name, reply.code)
                try:
                    pending.outcome.uploads[name] = accepted(half, pending, name, place, reply)
                except Exception as error:  # whatever an agent sends costs that agent's reply only
                    failures[name] = pending.outcome.dropped(name, error)
                mapped.release()
        for name, reason in pending.absent.items():
            log.warning("round %d: agent %s absent: %s", pending.round, name, reason)
        pending.outcome.require(len(pending.outcome.uploads), failures)
        pending.outgoing.forget()
        uploads = {
            name: pending.outcome.uploads[name] for name in sort_names(pending.outcome.uploads)
        }
        positions = [places[name] for name in uploads]
        held = pending.outcome.spool is None
        accepted_ones = Uploads(positions, [one.folded for one in uploads.values()], held=held)
        updates = {name: one.update for name, one in uploads.items()}
        fold_into_state(half, pending, accepted_ones, updates)
        return Folded(updates, failures)


def fold_into_state(
    half: ServerHalf[Any], pending: Pending, uploads: Uploads, updates: Mapping[str, Update]
) -> None:
    """Fold the uploads into the run's state; ``updates`` are their metadata, in folding order.

    Statistics of buffers come with uploads that were read one by one.
    """
    session, outcome = pending.session, pending.outcome
    for name, update in updates.items():
        outcome.note_remark(name, update)
    uploads.gaps = session.gaps
    with np.errstate(over="ignore", invalid="ignore"):  # the Divergence observer reports it
        fold = partial(half.fold, session.state, uploads, pending.turn)
        session.state = session.steps.folded(half, session.state, pending.turn.t, fold)
    outcome.spool = None
    session.average(outcome.uploads[name].statistics for name in sort_names(outcome.uploads))
    for name, one in outcome.uploads.items():  # frees the arrays
        outcome.uploads[name] = one._replace(folded=_is_folded, statistics=None)


def _is_folded() -> Block:
    raise RunError("an upload is folded once")


def _folded_together(half: ServerHalf[Any], pending: Pending, together: Together) -> Folded | None:
    """Fold the joint results of all agents; None if uploads must be checked one by one."""
    enough = min(pending.options.min_agents, len(pending.chosen))
    by_message = pending.outgoing.messages or pending.missing or pending.outcome.uploads
    if by_message or len(together.names) < enough:
        return None
    session, agents = pending.session, pending.session.roster.agents
    expected = np.array([agents[name].num_examples for name in together.names])
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            uploads = together.accepted(half, session.state, pending.outgoing.read, expected)
        except Exception as error:  # checked one by one, the sender is named
            log.debug("round %d: uploads are checked one by one: %r", pending.round, error)
            return None
    for name, reason in pending.absent.items():
        log.warning("round %d: agent %s absent: %s", pending.round, name, reason)
    pending.outcome.require(len(together.names), pending.absent)
    pending.outcome.bytes += together.size
    updates = together.updates([pending.round] * len(together.names))
    for name, update in updates.items():
        pending.outcome.note_cost(name, update)
    fold_into_state(half, pending, uploads, updates)
    return Folded(updates, pending.absent)


def require_honest_size(
    half: ServerHalf[Any],
    session: Session,
    agent: EnrolledAgent,
    block: Block,
    sent: Arrays,
    round_: int,
) -> None:
    """Refuse a private upload beyond all that its clip and its noise explain (`upload_bound`).

    An agent's own regulariser and settings explain no more than several times what those of most
    agents do (`Session.usual`). Where no bound is known, as around a user's training loop, numbers
    that the others could not compute with are refused: private agents answer no broadcast of such
    (`require_tame`).

    Raises
    ------
    UploadError
        Naming its norm and the bound.
    """
    if not (agent.facts and half.agent.bounds_uploads):
        return
    state, upload = session.state, block.upload
    if ENCODED in upload or VALUES in upload:
        upload = {VALUES: block.sparse(0, getattr(state, half.last)).values}
    norm, held = math.hypot(*map(norm_of, upload.values())), half.recovery(state, block.where)
    most = math.inf
    if held is not None:
        facts, usual = session.usual(agent.facts)
        local = half.with_settings(own_settings(agent.own)) if agent.own else half
        bounds = [(1.0, local, facts)]
        if usual is not facts:
            bounds.append((SEVERAL, local, usual))
        if agent.own:
            bounds.append((MANY, half, usual))
        start = starting_rows(held, 0)
        for times, by, known in bounds:
            try:
                most = min(most, times * by.upload_bound(by.agent, known, start, sent, round_))
            except NoCertificateError:  # nothing is proven of the noise: there is no bound
                continue
    if math.isfinite(most) and not norm <= ROUNDED * most:
        raise UploadError(
            f"upload of norm {norm:.3g}: clip and noise explain {most:.3g} at most; it is not of "
            "this run's steps"
        )
    size = max(array.dtype.itemsize for array in upload.values())
    if not norm <= (most := SHARE * LARGEST[size]):
        raise UploadError(
            f"upload of norm {norm:.3g}: agents of a private run do not compute with numbers near "
            f"{most:.3g}"
        )


def accepted(
    half: ServerHalf[Any],
    pending: Pending,
    name: str,
    position: int,
    reply: Reply,
    task: Task | None = None,
) -> Accepted:
    """Return the accepted upload of one reply, by default to a message of this round."""
    session, agents = pending.session, pending.session.roster.agents
    if reply.content is None:
        raise NoReplyError(reply.failure)
    pending.outcome.bytes += content_bytes(reply.content)
    if is_need_state(reply.content):
        kept = half.recovery_of(session.state, position, session.start) is not None
        tag = agents[name].tag if kept else 0
        agents[name].held, agents[name].tag = (), tag
        raise UploadError("does not hold its state; the next message restores it")
    update = pending.outcome.read(name, reply.content, task.version if task else pending.round)
    upload = update.arrays()
    statistics = session.statistics_of(upload.pop(BUFFERS, None))
    if statistics is not None and means_privacy(half.settings()):
        raise UploadError("upload holds buffers, which no agent of a private run sends: un-noised")
    sent = task.sent if task else pending.outgoing.sent_to(name)
    if half.agent.codes:
        upload = half.decoded(session.state, position, sent, upload)
    rows = {key: array[None] for key, array in upload.items()}
    block, agreed = half.accept(session.state, Block(np.array([position]), rows, sent))
    if update.digest != agreed[0]:
        agents[name].held = ()
        raise WireError("digest differs: agent and server do not hold the same state")
    number = task.version if task else pending.round
    require_honest_size(half, session, agents[name], block, sent, number)
    extras = {key: record for key, record in held_by(reply.content).items() if key != RECORD}
    if len(update.payload) > LARGE:
        update = update._replace(payload=b"")  # its arrays are kept as they will be folded
    return Accepted(pending.outcome.keep(block), update, extras, statistics)
