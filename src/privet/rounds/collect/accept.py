"""Uploads in clear are checked, a block of rows at a time, and folded into the state.

A reply is a block of one row (`of_reply`), the results of agents that worked together are a block
of many (`of_together`). A block is charged when it is read. `accept_rows` checks it: shapes, dtype,
finite numbers, digest; if private, norm and account. If a block of many is refused, each of its
rows is checked alone, and only the rows that fail are dropped; nothing is charged twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.agents.inputs import starting_rows
from privet.agents.sparsifiers import VALUES
from privet.agents.state import LARGE
from privet.agents.upload_bounds import norm_of
from privet.core import RunError, UploadError, mapped
from privet.kernel import NoCertificateError
from privet.wire import RECORD, Update, content_bytes, sort_names
from privet.wire.contract import is_need_state, means_privacy
from privet.wire.flower_internals import held_by
from privet.wire.magnitude import LARGEST
from privet.wire.payload import BUFFERS, ENCODED
from privet.wire.records import ARRAYS

from ..account import own_settings
from ..exchange import Reply
from ..failure import Failure
from ..half import Arrays
from ..roster import EnrolledAgent
from ..task import Task
from ..together import Together
from ..uploads import Block, Uploads
from .costs import (
    LostStateError,
    NoReplyError,
    dropped,
    note_cost,
    note_lost,
    read_cost,
    require_number,
)
from .round import Accepted, OpenRound

log = logging.getLogger("flwr.privet")

ROUNDED = 1.001
"""Margin of the bound of an upload for its numbers' rounding to float32."""
SHARE = 1e-6
"""Private agents refuse broadcast numbers above `LARGEST`. One upload may reach this share of it,
so that what the server computes of uploads stays below."""
SEVERAL, MANY = 10.0, 100.0
"""An agent's bound is at most 10 times the one with the regulariser of most agents, and, if it has
settings of its own, 100 times the one with the run's."""


class Arrived(NamedTuple):
    """Uploads that came back and are charged, a row each.

    Attributes
    ----------
    block : Block
        The arrays, and those that these agents were sent.
    digests, num_examples : list of int
        The digests of the states that the agents say they hold from now on, and their numbers of
        examples.
    updates : dict of str to Update
        The metadata of each, by agent.
    version : int, optional
        The round that a message answers; None for agents that worked together, whose uploads and
        accounts this library computed itself: their size and account are not checked.
    extras, statistics
        As in `Accepted`.
    """

    block: Block
    digests: list[int]
    num_examples: list[int]
    updates: dict[str, Update]
    version: int | None = None
    extras: Mapping[str, Any] = {}
    statistics: NDArray[Any] | None = None

    def rows(self) -> Iterator[Arrived]:
        """Yield each agent's upload by itself."""
        each = zip(self.block.rows(), self.updates.items(), strict=True)
        for row, (block, (name, update)) in enumerate(each):
            one = slice(row, row + 1)
            yield Arrived(block, self.digests[one], self.num_examples[one], {name: update})


def of_reply(opened: OpenRound, name: str, reply: Reply, task: Task | None = None) -> Arrived:
    """Return the upload in an agent's reply, by default to a message of this round.

    The release of an upload is charged, also of one that cannot be used. Nothing is charged for a
    request for its state or an agent's own error; a reply that never came counts as expected.

    Raises
    ------
    UploadError, WireError
    """
    half, session = opened.half, opened.session
    agent, position = session.roster.agents[name], session.roster.positions[name]
    version = task.version if task else opened.number
    if reply.content is None:
        if not (reply.is_from_agent or (task and task.counted)):
            note_lost(opened, name, reply.code, number=version)
        raise NoReplyError(reply.failure)
    opened.tally.bytes_up += content_bytes(reply.content)
    if is_need_state(reply.content):
        kept = half.recovery_of(session.state, position, session.start) is not None
        agent.held, agent.tag = (), agent.tag if kept else 0
        raise LostStateError("does not hold its state; the next message restores it")
    update = read_cost(opened, name, reply.content, version)
    upload = update.arrays()
    statistics = session.statistics_of(upload.pop(BUFFERS, None))
    if statistics is not None and means_privacy(half.settings()):
        raise UploadError("upload holds buffers, which no agent of a private run sends: un-noised")
    sent = task.sent if task else opened.broadcast.sent_to(name)
    if half.agent.codes:
        upload = half.decoded(session.state, position, sent, upload)
    rows = {key: array[None] for key, array in upload.items()}
    held = held_by(reply.content)
    extras = {key: record for key, record in held.items() if key not in (RECORD, ARRAYS)}
    if len(update.payload) > LARGE:
        update = update._replace(payload=b"")  # its arrays are kept as they will be folded
    return Arrived(
        Block(np.array([position]), rows, sent),
        [update.digest],
        [update.num_examples],
        {name: update},
        version,
        extras,
        statistics,
    )


def of_together(
    opened: OpenRound, together: Together, sent: Arrays, versions: Sequence[int]
) -> Arrived:
    """Charge and return the results of agents that worked together.

    ``sent`` is what they were sent, ``versions`` the round of each.
    """
    opened.tally.bytes_up += together.size
    updates = together.updates(versions)
    for name, update in updates.items():
        note_cost(opened, name, update)
    block = Block(together.positions, together.upload, sent)
    digests, num_examples = together.digests.tolist(), together.num_examples.tolist()
    return Arrived(block, digests, num_examples, updates)


def accept_reply(
    opened: OpenRound,
    name: str,
    reply: Reply,
    failures: dict[str, Failure],
    task: Task | None = None,
) -> None:
    """Accept the upload in an agent's reply, or note in ``failures`` why it cannot be used."""
    try:
        came = of_reply(opened, name, reply, task)
    except Exception as error:  # no reply of an agent ends the round
        failures[name] = dropped(opened, name, error)
    else:
        accept_rows(opened, came, failures)
    mapped.release()


def accept_rows(opened: OpenRound, came: Arrived, failures: dict[str, Failure]) -> None:
    """Accept uploads into ``Tally.uploads``, or note in ``failures`` why one cannot be used.

    Of a block of many that is refused, each row is checked by itself.
    """
    try:
        made = accepted(opened, came)
    except Exception as error:
        if len(came.updates) == 1:
            (name,) = came.updates
            failures[name] = dropped(opened, name, error)
            return
        log.debug("round %d: uploads are checked one by one: %r", opened.number, error)
        for row in came.rows():
            accept_rows(opened, row, failures)
    else:
        opened.tally.uploads |= dict.fromkeys(came.updates, made)


def accepted(opened: OpenRound, came: Arrived) -> Accepted:
    """Return uploads that fit the model, the agents' states and, if private, their clip and noise.

    Raises
    ------
    UploadError, WireError
        If one of them cannot be folded.
    """
    half, session, agents = opened.half, opened.session, opened.session.roster.agents
    for name, number in zip(came.updates, came.num_examples, strict=True):
        if agents[name].num_examples != number:
            require_number(opened, name, number)
    block, agreed = half.accept(session.state, came.block)
    if agreed.tolist() != came.digests:
        if len(came.updates) == 1:
            (name,) = came.updates
            agents[name].held = ()
        raise LostStateError("digest differs: agent and server do not hold the same state")
    if came.version is None:
        return Accepted(partial(_given, block), came.updates, came.extras)
    (name,) = came.updates
    require_honest_size(opened, agents[name], block, came.version)
    return Accepted(_stored(opened, block), came.updates, came.extras, came.statistics)


def _stored(opened: OpenRound, block: Block) -> Callable[[], Block]:
    """Store an upload until it is folded, on disk if need be; return its loader."""
    folder, tally = opened.options.folder, opened.tally
    if folder is None or not opened.large(sum(array.nbytes for array in block.upload.values())):
        return partial(_given, block)
    tally.spool = tally.spool or mapped.Spool(folder)
    load, light = tally.spool.keep(block.upload), block._replace(upload={}, state=None)
    return lambda: light._replace(upload=load())


def _given(block: Block) -> Block:
    return block


def require_honest_size(
    opened: OpenRound, agent: EnrolledAgent, block: Block, version: int
) -> None:
    """Refuse a private upload beyond all that its clip and its noise explain (`upload_bound`).

    An agent's own regulariser and settings explain no more than several times what those of most
    agents do (`Session.usual`). Where no bound is known, as around a user's training loop, an
    upload is refused if its norm is so large that the other agents might refuse the next broadcast
    (`require_tame`).

    Raises
    ------
    UploadError
        Naming its norm and the bound.
    """
    half, session = opened.half, opened.session
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
                bound = by.upload_bound(by.agent, known, start, dict(block.sent), version)
            except NoCertificateError:  # nothing is proven of the noise: there is no bound
                continue
            most = min(most, times * bound)
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


# ---------------------------------------------------------------------- folding


def fold_accepted(opened: OpenRound, ages: Mapping[str, int] | None = None) -> dict[str, Update]:
    """Fold the accepted uploads into the run's state; return their metadata, in folding order.

    ``ages``: by agent, how many rounds ago it was asked; None where rounds wait for all. Only
    uploads that came in messages have statistics of buffers.
    """
    half, session, tally = opened.half, opened.session, opened.tally
    whole = {id(one): one for one in tally.uploads.values()}
    updates, loaders = _in_order(tally.uploads, list(whole.values()))
    for name, update in updates.items():
        tally.note_remark(name, update)
    positions = [session.roster.positions[name] for name in updates]
    aged = [ages[name] for name in updates] if ages else ()
    uploads = Uploads(positions, loaders, aged, held=tally.spool is None)
    uploads.gaps, uploads.look = session.gaps, session.look
    with np.errstate(over="ignore", invalid="ignore"):  # the Divergence observer reports it
        uploads = session.robust.folded(half, session.state, uploads)
        fold = partial(half.fold, session.state, uploads, opened.turn)
        session.state = session.steps.folded(half, session.state, opened.turn, fold)
    tally.spool = None
    session.average(tally.uploads[name].statistics for name in updates)
    freed = {
        key: one._replace(load=_cannot_load_again, statistics=None) for key, one in whole.items()
    }
    tally.uploads = {name: freed[id(one)] for name, one in tally.uploads.items()}
    return updates


def _in_order(
    uploads: Mapping[str, Accepted], whole: Sequence[Accepted]
) -> tuple[dict[str, Update], list[Callable[[], Block]]]:
    """Return the metadata and the loaders of accepted uploads, in folding order.

    One block is folded whole; several are folded row by row, in the agents' order.
    """
    if len(whole) == 1:
        return whole[0].updates, [whole[0].load]
    rows: dict[str, Callable[[], Block]] = {}
    for one in whole:
        if len(one.updates) == 1:
            rows |= dict.fromkeys(one.updates, one.load)
        else:
            each = zip(one.updates, one.load().rows(), strict=True)
            rows |= {name: partial(_given, block) for name, block in each}
    names = sort_names(uploads)
    return {name: uploads[name].updates[name] for name in names}, [rows[name] for name in names]


def _cannot_load_again() -> Block:
    raise RunError("an upload is folded once")
