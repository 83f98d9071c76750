"""What the replies of a round cost their agents: stated, charged without a reply, or refused.

An agent charges its own ledger before it computes, and states its account in its reply. `read_cost`
takes that over, also from uploads that are not folded; `note_lost` charges a reply that never came,
or that cannot be read.
"""

from __future__ import annotations

import logging
import math

from flwr.app import RecordDict

from privet.core import NotFiniteError, PrivetError, UploadError
from privet.core.errors import ImpossibleError, one_line
from privet.kernel import AgentLedger
from privet.wire import Update
from privet.wire.contract import read_update

from ..account import claims_by_agent, expected_release, is_above_target, upload_fault, with_lost
from ..failure import Failure, FailureCode
from ..roster import CLIENT_APP_FAILED, NODE_UNAVAILABLE
from .round import OpenRound

log = logging.getLogger("flwr.privet")

_CODES = {
    NotFiniteError: FailureCode.NOT_FINITE,
    ImpossibleError: FailureCode.IMPOSSIBLE,
}
"""The kind of failure of an upload that is refused, where it is not just dropped."""


class AccountError(UploadError):
    """An upload whose account of its agent's releases cannot be kept."""


class LostStateError(UploadError):
    """An agent does not hold the state that the server has of it: its next message restores it."""


class NoReplyError(UploadError):
    """A chosen agent sent no upload; ``failure`` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def read_cost(
    opened: OpenRound, name: str, content: RecordDict, number: int, summed: int = 1
) -> Update:
    """Return an agent's upload of a round, and note the cost that it states.

    Its release is charged even if it is not folded: as it was asked for, where the reply states
    nothing that can be kept. ``summed`` agents are in its sum, if uploads are masked.

    Raises
    ------
    WireError
        If it is not an upload of this round.
    AccountError
        If its account cannot be kept. The agent is asked no more.
    """
    half, session = opened.half, opened.session
    try:
        update = read_update(content, half.name, half.version, number)
    except Exception:
        note_lost(opened, name, CLIENT_APP_FAILED, summed, number=number)
        raise
    if not half.agent.private:  # there is no cost: an account would be the agent's alone
        update = update._replace(ledger="", epsilon=math.inf)
    stated = opened.tally.stated
    if name not in stated or stated[name][1] != update.ledger:  # not read before
        agents, noises = session.roster.agents, session.noises
        ledger, enrolled = update.ledger, len(agents)
        why = upload_fault(half, agents[name], ledger, number, noises, enrolled=enrolled)
        if why:
            why = f"the account that it states cannot be used: {why}"
            note_lost(opened, name, CLIENT_APP_FAILED, summed, number=number, as_before=False)
            session.roster.leave_out(name, why, any_node=True)  # it would bring nothing
            raise AccountError(why)
    note_cost(opened, name, update, computed=False)
    return update


def read_masked(opened: OpenRound, name: str, content: RecordDict, agents: int) -> Update:
    """Return an agent's upload to a sum of so many agents, as `read_cost`.

    Where its account cannot be kept, its upload stays in the sum all the same: another attempt
    would cost every other agent a release.

    Raises
    ------
    WireError
        If it is not an upload of this round.
    UploadError
        If its number of examples is not the one its agent is enrolled with.
    """
    try:
        update = read_cost(opened, name, content, opened.number, agents)
    except AccountError as error:
        log.warning("round %d: agent %s is kept in the sum: %s", opened.number, name, error)
        update = read_update(content, opened.half.name, opened.half.version, opened.number)
        charged = opened.session.roster.agents[name].ledger
        update = update._replace(ledger=charged, epsilon=0.0)
    require_number(opened, name, update.num_examples)
    return update


def note_cost(opened: OpenRound, name: str, update: Update, *, computed: bool = True) -> None:
    """Note the privacy cost that an agent reports, with that of its predecessors.

    ``computed`` says that the epsilon was computed in this process, and is no agent's word.
    """
    tally, roster = opened.tally, opened.session.roster
    tally.drop_newest_request(name)
    if update.ledger:
        roster.note_ledger(name, update.ledger, update.head, stated=True)
    spent = update.epsilon
    if claims_by_agent(opened.half):
        if math.isinf(spent) or update.ledger in ("", "[]"):
            tally.unbound += [name] * roster.note_unbound(name)
        if roster.agents[name].unbound:
            return
    if not computed:
        tally.stated[name] = spent, update.ledger
    if math.isfinite(spent) and not computed and update.ledger:
        return
    if roster.agents[name].former:  # its own account lacks theirs
        spent = max(spent, roster.agents[name].spent(update.delta))
    tally.epsilon = max(tally.epsilon, spent)


def largest_stated(opened: OpenRound) -> float:
    """Return the largest epsilon so far, with those that uploads state and their accounts bear out.

    Only the account of the largest claim is evaluated, and of each agent that claims more than its
    account shows. A claim that is too small lowers the history's figure, not the statement of
    privacy, which is made from the accounts.
    """
    tally, roster, terms = opened.tally, opened.session.roster, opened.half.terms
    largest = tally.epsilon
    left = {name: spent for name, (spent, text) in tally.stated.items() if text}
    while left:
        name = max(left, key=left.__getitem__)
        said = left.pop(name)
        former = roster.agents[name].former
        if not former and said <= largest:
            left = {name: one for name, one in left.items() if roster.agents[name].former}
            continue
        if not math.isfinite(said) or roster.agents[name].unbound:
            continue
        try:
            spent = AgentLedger.joined([*former, tally.stated[name][1]]).spent(terms.delta)
        except (ValueError, ArithmeticError):  # then the run's account claims nothing of it
            continue
        spent = said if math.isclose(spent, said, rel_tol=1e-9) else spent
        if not is_above_target(opened.half, spent):
            largest = max(largest, spent)
    return largest


def note_lost(
    opened: OpenRound,
    name: str,
    code: int,
    agents: int = 1,
    *,
    number: int = 0,
    as_before: bool = True,
) -> None:
    """Charge a reply that may have left and did not arrive, until the agent reports itself.

    ``agents`` were to be in its sum, if uploads are masked; ``number`` is the round in which it was
    asked, 0 for this one; ``as_before`` is that of `expected_release`.

    The agent's next account replaces this one. Until then it counts in the run's account, and is
    sent to an agent that has lost its own.
    """
    half, tally, roster = opened.half, opened.tally, opened.session.roster
    if code != CLIENT_APP_FAILED:
        tally.awaited.add(name)
    tally.drop_newest_request(name)
    if code == NODE_UNAVAILABLE:  # it may be back before the nodes are listed again
        roster.doubtful.add(name)
    agent, noises = roster.agents[name], opened.session.noises
    number = number or opened.number
    release = expected_release(half, agent, number, agents, noises, as_before=as_before)
    if release is None:
        return
    roster.note_ledger(name, with_lost(agent.ledger, release))
    spent = roster.agents[name].spent(half.terms.delta)
    above = is_above_target(half, spent)
    if half.terms.noise_seed < 0 and not agent.unbound and not above:
        tally.epsilon = max(tally.epsilon, spent)


def require_number(opened: OpenRound, name: str, sent: int) -> None:
    """Refuse an upload whose number of examples is not the one its agent is enrolled with.

    The agent is enrolled again before the next round (raises ``UploadError``).
    """
    roster = opened.session.roster
    if roster.agents[name].num_examples == sent:
        return
    roster.doubtful.add(name)
    enrolled = roster.agents[name].num_examples
    raise UploadError(f"upload of {sent} examples by an agent enrolled with {enrolled}")


def dropped(opened: OpenRound, name: str, error: Exception) -> Failure:
    """Log why an agent's reply is not folded, and return the failure."""
    known = isinstance(error, PrivetError)
    why = one_line(str(error) if known else f"reply cannot be used ({error!r})")
    opened.session.complain(opened.number, name, f"dropped: {why}", traceback=not known)
    tally = opened.tally
    if isinstance(error, LostStateError) and name not in tally.restored:
        tally.awaited.add(name)
        tally.restored.add(name)
    if isinstance(error, NoReplyError):
        if error.failure.code is FailureCode.ENROL_AGAIN:
            opened.session.roster.doubtful.add(name)
        return error.failure
    kinds = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return Failure(next(kinds, FailureCode.DROPPED), why)
