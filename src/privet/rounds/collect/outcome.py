"""The outcome of a round: accepted uploads, their cost, failures, and the history's record."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import RecordDict
from numpy.typing import NDArray

from privet.core import NotFiniteError, PrivetError, RunError, UploadError, WireError, mapped
from privet.core.errors import FruitlessError, HopelessError, listed, one_line
from privet.kernel import AgentLedger
from privet.wire import Update
from privet.wire.contract import read_update

from ..account import (
    claims_by_agent,
    expected_release,
    is_above_target,
    not_of,
    upload_fault,
    with_lost,
)
from ..failure import FOR_A_PERSON, Failure, FailureCode
from ..half import ServerHalf
from ..options import RunOptions
from ..roster import CLIENT_APP_FAILED, NODE_UNAVAILABLE
from ..session import Round, Session
from ..uploads import Block

log = logging.getLogger("flwr.privet")


class TooFewError(RunError):
    """A round in which fewer uploads than ``min_agents`` (or than agents asked) could be folded."""


class OverflowedError(TooFewError, FruitlessError):
    """One whose uploads were not finite: another try would overflow as well."""


class DeclinedError(TooFewError, HopelessError):
    """One of which too few agents are left that do not refuse."""


class InVainError(TooFewError, FruitlessError):
    """One after which every agent was charged for a task, and no upload was ever folded."""


class AccountError(UploadError):
    """An upload whose account of its agent's releases cannot be kept."""


class NoReplyError(UploadError):
    """A chosen agent sent no upload; ``failure`` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Accepted(NamedTuple):
    """An agent's accepted upload: ``folded`` loads its arrays; the rest came with them."""

    folded: Callable[[], Block]
    update: Update
    extras: dict[str, Any]
    statistics: NDArray[Any] | None = None
    """The statistics of its model's buffers, if they are averaged."""


class Folded(NamedTuple):
    """What a round has folded.

    Attributes
    ----------
    updates : dict of str to Update
        The metadata of the uploads that are in the state now, by agent in folding order.
    failures : dict of str to Failure
        Why other agents were not folded.
    clock, versions
        As in `Round`, in a run whose rounds do not wait for all replies.
    """

    updates: Mapping[str, Update]
    failures: Mapping[str, Failure]
    clock: float = math.nan
    versions: tuple[int, ...] = ()


@dataclass
class Outcome:
    """The outcome of a round so far.

    Attributes
    ----------
    half, options, session
        The run's.
    round : int
        Counted from 1.
    begun : float
        Start of the round on the monotonic clock.
    count : int
        The number of chosen agents.
    uploads : dict of str to Accepted
        The uploads in clear that will be folded; they are kept when a try fails.
    awaited : set of str
        Agents that did not answer themselves, so that asking again may help.
    failed : list of float
        The times of failed tries, on the monotonic clock.
    notes : list of str
        Notes for the history.
    bytes : int
        The bytes of the replies.
    epsilon : float
        The largest epsilon that an agent has spent after this round, within the target if there is
        one; of those that state one, where each agent's claim rests on its own noise
        (`claims_by_agent`).
    stated : dict of str to (float, str)
        The epsilon that uploads state and their accounts, by agent: it counts as far as the account
        bears it out (`record`).
    unbound : list of str
        Agents that state none since this round.
    unanswered : dict of str to list of int
        By agent, its requests whose cost is not noted yet: the agents in the sum of each.
    folded : bool
        Whether the round has ended.
    failures : dict of str to Failure
        Why agents were not folded, if too few uploads were.
    shortest : float
        The seconds of the quickest task that was withdrawn, where that is known; else infinity.
    spool : Spool, optional
        The files of uploads that are too large for memory.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    round: int
    begun: float
    count: int
    uploads: dict[str, Accepted] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    unanswered: dict[str, list[int]] = field(default_factory=dict)
    failed: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes: int = 0
    epsilon: float = 0.0
    stated: dict[str, tuple[float, str]] = field(default_factory=dict)
    unbound: list[str] = field(default_factory=list)
    folded: bool = False
    failures: dict[str, Failure] = field(default_factory=dict)
    shortest: float = math.inf
    spool: mapped.Spool | None = None

    def keep(self, block: Block) -> Callable[[], Block]:
        """Store an upload until it is folded, on disk if need be; return its loader."""
        folder = self.options.folder
        if folder is None or not self._large(sum(array.nbytes for array in block.upload.values())):
            return lambda: block
        self.spool = self.spool or mapped.Spool(folder)
        load, light = self.spool.keep(block.upload), block._replace(upload={}, state=None)
        return lambda: light._replace(upload=load())

    def _large(self, size: int) -> bool:
        return size * self.count > mapped.LIMIT

    def read(self, name: str, content: RecordDict, round_: int) -> Update:
        """Return an agent's upload of a round; its release is charged even if it is not folded.

        Raises
        ------
        WireError
            If it is not an upload of this round.
        UploadError
            If its account cannot be kept, or its number of examples is not the one its agent is
            enrolled with.
        """
        update = self.read_cost(name, content, round_)
        self._require_number(name, update)
        return update

    def read_cost(self, name: str, content: RecordDict, round_: int) -> Update:
        """Return an agent's upload of a round, and note the cost that it states.

        Raises
        ------
        WireError
            If it is not an upload of this round.
        AccountError
            If its account cannot be kept. ``dropped`` charges what was asked for, and asks the
            agent no more.
        """
        update = read_update(content, self.half.name, self.half.version, round_)
        if not self.half.agent.private:  # there is no cost: an account would be the agent's alone
            update = update._replace(ledger="", epsilon=math.inf)
        if name not in self.stated or self.stated[name][1] != update.ledger:  # not read before
            agents, noises = self.session.roster.agents, self.session.noises
            ledger, enrolled = update.ledger, len(agents)
            why = upload_fault(self.half, agents[name], ledger, round_, noises, enrolled=enrolled)
            if why:
                raise AccountError(f"the account that it states cannot be used: {why}")
        self.note_cost(name, update, computed=False)
        return update

    def read_masked(self, name: str, content: RecordDict, round_: int, agents: int) -> Update:
        """Return an agent's upload to a sum of so many agents, as `read`.

        Where its account cannot be kept it is charged as asked and asked no more. Its upload stays
        in the sum all the same: another attempt would cost every other agent a release.
        """
        try:
            return self.read(name, content, round_)
        except AccountError as error:
            self.dropped(name, error, agents)
        update = read_update(content, self.half.name, self.half.version, round_)
        charged = self.session.roster.agents[name].ledger
        update = update._replace(ledger=charged, epsilon=0.0)
        self._require_number(name, update)
        return update

    def note_cost(self, name: str, update: Update, *, computed: bool = True) -> None:
        """Note the privacy cost that an agent reports, with that of its predecessors.

        ``computed`` says that the epsilon was computed in this process, and is no agent's word.
        """
        self.settle(name)
        roster = self.session.roster
        if update.ledger:
            roster.note_ledger(name, update.ledger, update.head, stated=True)
        spent = update.epsilon
        if claims_by_agent(self.half):
            if math.isinf(spent) or update.ledger in ("", "[]"):
                self.unbound += [name] * roster.note_unbound(name)
            if roster.agents[name].unbound:
                return
        if not computed:
            self.stated[name] = spent, update.ledger
        if math.isfinite(spent) and not computed and update.ledger:
            return
        if roster.agents[name].former:  # its own account lacks theirs
            spent = max(spent, roster.agents[name].spent(update.delta))
        self.epsilon = max(self.epsilon, spent)

    def _compare_stated(self) -> None:
        """Take the largest epsilon that uploads state and their accounts bear out.

        So one account is evaluated a round, that of the largest, and another for each agent that
        states more than its own account. One that states less hides its own cost from the history
        alone: the run's account has it.
        """
        roster, terms = self.session.roster, self.half.terms
        left = {name: spent for name, (spent, text) in self.stated.items() if text}
        while left:
            name = max(left, key=left.__getitem__)
            said = left.pop(name)
            former = roster.agents[name].former
            if not former and said <= self.epsilon:
                left = {name: one for name, one in left.items() if roster.agents[name].former}
                continue
            if not math.isfinite(said) or roster.agents[name].unbound:
                continue
            try:
                spent = AgentLedger.joined([*former, self.stated[name][1]]).spent(terms.delta)
            except (ValueError, ArithmeticError):  # then the run's account claims nothing of it
                continue
            spent = said if math.isclose(spent, said, rel_tol=1e-9) else spent
            if not is_above_target(self.half, spent):
                self.epsilon = max(self.epsilon, spent)

    def ask(self, names: Iterable[str], agents: int) -> None:
        """Note requests that leave now: a run that ends before their cost is known counts them."""
        for name in names:
            self.unanswered.setdefault(name, []).append(agents)

    def settle(self, name: str) -> None:
        """Note that the cost of an agent's newest request is in its account."""
        if asked := self.unanswered.get(name):
            asked.pop()

    def note_lost(self, name: str, code: int, agents: int = 1, *, as_before: bool = True) -> None:
        """Charge a reply that may have left and did not arrive, until the agent reports itself.

        ``agents`` were to be in its sum, if uploads are masked; ``as_before`` is that of
        `expected_release`.

        The agent's next account replaces this one. Until then it counts in the run's account, and
        is sent to an agent that has lost its own.
        """
        if code != CLIENT_APP_FAILED:
            self.awaited.add(name)
        self.settle(name)
        roster, terms = self.session.roster, self.half.terms
        if code == NODE_UNAVAILABLE:  # it may be back before the nodes are listed again
            roster.doubtful.add(name)
        agent = roster.agents[name]
        noises = self.session.noises
        release = expected_release(
            self.half, agent, self.round, agents, noises, as_before=as_before
        )
        if release is None:
            return
        roster.note_ledger(name, with_lost(agent.ledger, release))
        spent = roster.agents[name].spent(terms.delta)
        above = is_above_target(self.half, spent)
        if terms.noise_seed < 0 and not agent.unbound and not above:
            self.epsilon = max(self.epsilon, spent)

    def _require_number(self, name: str, update: Update) -> None:
        """Refuse an upload whose number of examples is not the one its agent is enrolled with.

        The agent is enrolled again before the next round.
        """
        agent, sent = self.session.roster.agents[name], update.num_examples
        if agent.num_examples == sent:
            return
        self.session.roster.doubtful.add(name)
        raise UploadError(
            f"upload of {sent} examples by an agent enrolled with {agent.num_examples}"
        )

    def note_remark(self, name: str, update: Update) -> None:
        """Keep an agent's note on its upload for the history."""
        if update.note:
            self.notes.append(f"agent {name}: {one_line(update.note)}")

    def dropped(self, name: str, error: Exception, agents: int = 1) -> Failure:
        """Log why an agent's reply is not folded, and return the failure.

        ``agents`` are those of its sum, if uploads are masked.
        """
        if isinstance(error, AccountError):
            self.note_lost(name, CLIENT_APP_FAILED, agents, as_before=False)
            # What it is charged for brings nothing.
            self.session.roster.leave_out(name, str(error), any_node=True)
        elif isinstance(error, WireError) and self.unanswered.get(name):  # its cost is not read
            self.note_lost(name, CLIENT_APP_FAILED, agents)
        known = isinstance(error, PrivetError)
        why = one_line(str(error) if known else f"reply cannot be used ({error!r})")
        log.warning("round %d: agent %s dropped: %s", self.round, name, why, exc_info=not known)
        if isinstance(error, NoReplyError):
            if error.failure.code is FailureCode.ENROL_AGAIN:
                self.session.roster.doubtful.add(name)
            return error.failure
        infinite = isinstance(error, NotFiniteError)
        return Failure(FailureCode.NOT_FINITE if infinite else FailureCode.DROPPED, why)

    def require(self, folded: int, failures: Mapping[str, Failure]) -> None:
        """Raise ``TooFewError`` if fewer uploads than required could be folded.

        A round of which replies were given up, as the run is to stop, is never folded: a resume
        plays it again, whole.
        """
        least = self.options.min_agents
        given_up = any(one.code is FailureCode.STOPPED for one in failures.values())
        if folded >= min(least, self.count) and not given_up:
            return
        self.failures = dict(failures)
        texts = {name: why.text.removeprefix(f"agent {name}: ") for name, why in failures.items()}
        reasons = listed(f"agent {name}: {text}" for name, text in texts.items())
        below = "before the run stopped" if given_up else f"below min-agents = {least}"
        kind = TooFewError
        left = self.count - sum(one.code in FOR_A_PERSON for one in failures.values())
        never = self.session.roster.never_folded(failures, others=folded > 0)
        if self.session.overflowed(failures, self.count, never):
            kind = OverflowedError
        elif left < min(least, self.count) and not given_up:
            kind = DeclinedError
        raise kind(
            f"round {self.round}: {folded} of {self.count} agents replied, {below}: {reasons}"
        )

    def record(self, folded: Folded, sent: int, notes: Iterable[str]) -> Round:
        """Record a folded round: the agents' new tags and accounts, and the history's `Round`.

        ``sent`` is the number of bytes that went out, ``notes`` are those of the outgoing side.
        """
        half, session, roster = self.half, self.session, self.session.roster
        self._compare_stated()
        for name, update in folded.updates.items():
            roster.accepted(name, update)
        last = session.history[-1] if session.history else None
        participants = tuple(folded.updates)
        if last is not None and last.participants == participants:
            participants = last.participants  # shared between rounds: a long run keeps them all
        before = 0.0 if last is None else last.epsilon
        if any(agent.unbound for agent in roster.agents.values()):
            if roster.is_unbound:
                self.epsilon = math.inf
            else:
                before = before if math.isfinite(before) else 0.0
                self.notes += [not_of(self.unbound)] if self.unbound else []
        silent = [name for name in roster.names if name not in folded.updates]
        done = Round(
            round=self.round,
            participants=participants,
            failures=dict(folded.failures),
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
            epsilon=max(before, self.epsilon),
            measures=half.measures(session.state),
            clock=folded.clock,
            versions=folded.versions,
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
