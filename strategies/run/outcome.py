"""What has come of a round: accepted uploads, what they cost, who failed, the history's line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import RecordDict
from numpy.typing import NDArray

from privet.core import NotFiniteError, PrivetError, RunError, UploadError, mapped
from privet.core.errors import listed, one_line
from privet.wire import Update
from privet.wire.contract import read_update

from ..half import ServerHalf
from ..uploads import Block
from .account import expected_release, with_lost
from .failure import Failure, FailureCode, overflowed
from .options import RunOptions
from .roster import CLIENT_APP_FAILED
from .session import Round, Session

log = logging.getLogger("flwr.privet")


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
class Outcome:
    """What has come of a round so far.

    Attributes
    ----------
    half, options, session
        Those of the run.
    round : int
        Counted from 1.
    begun : float
        When it began, on the monotonic clock.
    count : int
        How many agents were chosen.
    uploads : dict of str to Accepted
        The uploads in clear that will be folded; they outlast a try that failed.
    awaited : set of str
        Agents that gave no answer of their own, so that asking again may help.
    failed : list of float
        When a try of the round failed, on the monotonic clock.
    notes : list of str
        For the history.
    bytes : int
        Of the replies.
    epsilon : float
        The most that an agent has spent after this round.
    folded : bool
        Whether it has ended.
    failures : dict of str to Failure
        Why agents were not folded, in a round that too few were.
    spool : Spool, optional
        Where uploads wait that are too large for the memory.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    round: int
    begun: float
    count: int
    uploads: dict[str, Accepted] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    failed: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes: int = 0
    epsilon: float = 0.0
    folded: bool = False
    failures: dict[str, Failure] = field(default_factory=dict)
    spool: mapped.Spool | None = None

    def keep(self, block: Block) -> Callable[[], Block]:
        """Keep what will be folded of an upload until it is asked for, on the disk if it must."""
        folder = self.options.folder
        if folder is None or not self._large(sum(array.nbytes for array in block.upload.values())):
            return lambda: block
        self.spool = self.spool or mapped.Spool(folder)
        load, light = self.spool.keep(block.upload), block._replace(upload={}, state=None)
        return lambda: light._replace(upload=load())

    def _large(self, size: int) -> bool:
        return size * self.count > mapped.LIMIT

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
            roster.note_ledger(name, update.ledger)
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
        roster.note_ledger(name, with_lost(agent.ledger, release))
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
        if folded >= min(least, self.count):
            return
        self.failures = dict(failures)
        texts = {name: why.text.removeprefix(f"agent {name}: ") for name, why in failures.items()}
        reasons = listed(f"agent {name}: {text}" for name, text in texts.items())
        few = TooFewError(
            f"round {self.round}: {folded} of {self.count} agents replied, below "
            f"min-agents = {least}: {reasons}"
        )
        few.overflowed = overflowed(failures, self.count)
        raise few

    def record(
        self,
        updates: Mapping[str, Update],
        failures: Mapping[str, Failure],
        sent: int,
        notes: Iterable[str],
    ) -> Round:
        """Note a round that was folded: whose uploads were accepted, its line of the history.

        ``sent`` are the bytes that went out, ``notes`` what there is to say of that.
        """
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
                *notes,
                *self.notes,
                *half.notes(session.state, silent),
            ),
            residual=half.residual(session.state),
            bytes_up=self.bytes,
            bytes_down=sent,
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
