"""How a round ends: it is recorded, tried again, or too few of its uploads could be folded."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from privet.core import RunError
from privet.core.errors import FruitlessError, HopelessError, listed
from privet.wire import Update

from ..account import not_of, spent_after
from ..failure import FOR_A_PERSON, Failure, FailureCode
from ..session import Round
from .costs import largest_stated
from .round import OpenRound

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before a round that failed is tried again, at first and at most; they double."""


class TooFewError(RunError):
    """A round in which fewer uploads than ``min_agents`` (or than agents asked) could be folded."""


class OverflowedError(TooFewError, FruitlessError):
    """One whose uploads were not finite: another try would overflow as well."""


class DeclinedError(TooFewError, HopelessError):
    """One of which too few agents are left that do not refuse."""


class TargetSpentError(TooFewError):
    """One of which too few agents are left that can pay for another reply within the target."""


class InVainError(TooFewError, FruitlessError):
    """One after which every agent was charged for a task, and no upload was ever folded."""


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


def require(
    opened: OpenRound, folded: int, failures: Mapping[str, Failure], count: int | None = None
) -> None:
    """Raise ``TooFewError`` if fewer uploads than required could be folded.

    Required are ``min_agents``, or ``count`` where that is less: by default the agents chosen. A
    round of which replies were given up, as the run is to stop, is never folded: a resume plays it
    again, whole.
    """
    session, least = opened.session, opened.options.min_agents
    count = len(opened.chosen) if count is None else count
    given_up = any(one.code is FailureCode.STOPPED for one in failures.values())
    if folded >= min(least, count) and not given_up:
        return
    opened.tally.failures = dict(failures)
    texts = {name: why.text.removeprefix(f"agent {name}: ") for name, why in failures.items()}
    reasons = listed(f"agent {name}: {text}" for name, text in texts.items())
    below = "before the run stopped" if given_up else f"below min-agents = {least}"
    kind = TooFewError
    never = session.roster.never_folded(failures, others=folded > 0)
    gone = {name for name, one in failures.items() if one.code in FOR_A_PERSON}
    if session.overflowed(failures, count, never):
        kind = OverflowedError
    elif not given_up:
        spent = {name for name in failures if _is_spent(opened, name, declined=name in gone)}
        if count - len(gone - spent) < min(least, count):
            kind = DeclinedError
        elif count - len(gone | spent) < min(least, count):
            kind = TargetSpentError
    raise kind(f"round {opened.number}: {folded} of {count} agents replied, {below}: {reasons}")


def _is_spent(opened: OpenRound, name: str, *, declined: bool) -> bool:
    """Whether another reply would bring an agent above the run's target, by the account.

    Where agents add noise for each other a reply in a sum of few costs more: the fewest agents
    count for one that declined so, and all that were chosen for others.
    """
    half, session = opened.half, opened.session
    target, agents = half.terms.target_epsilon, 1
    if target <= 0:
        return False
    if half.masked:
        agents = opened.options.least_roster if declined else len(opened.chosen)
    agent = session.roster.agents[name]
    return spent_after(half, agent, opened.number, agents, session.noises) > target


def pause(opened: OpenRound, now: float) -> float:
    """Return the seconds until the next try of a round that failed; 0: there is none.

    It is tried again while there is time left and an agent to wait for: an agent that declined or
    failed would do so again. One that is sent its state with the next message may do better.
    """
    failed = opened.tally.failed_at
    failed.append(now)
    left = failed[0] + opened.options.patience - now
    if not _waited_for(opened) or left <= 0:
        return 0.0
    return min(FIRST_PAUSE * 2.0 ** min(len(failed) - 1, 30), LAST_PAUSE, left)


def explained(opened: OpenRound, few: TooFewError) -> TooFewError:
    """Return the failure of the last try, with what was spent in vain if that ends the run."""
    session, tally, timeout = opened.session, opened.tally, opened.options.round_timeout
    if (
        isinstance(few, DeclinedError | TargetSpentError)
        or not session.spent
        or _waited_for(opened)
    ):
        return few
    text = (
        f"{few}; {len(session.spent)} agents were charged for tasks without an upload folded, "
        "and are asked no more"
    )
    if math.isfinite(tally.shortest):
        text += (
            f": round-timeout = {timeout:g} is shorter than a task, of which the quickest took "
            f"{tally.shortest:.4g} s: raise it"
        )
    elif any(one.code == FailureCode.LATE for one in tally.failures.values()):
        text += f": raise round-timeout = {timeout:g} if a task takes longer"
    return (TooFewError if session.has_folded else InVainError)(text)


def _waited_for(opened: OpenRound) -> bool:
    """Whether there is an agent that asking again may help."""
    return any(not opened.in_vain(name) for name in opened.tally.awaited)


def record(opened: OpenRound, folded: Folded) -> Round:
    """Record a folded round: the agents' new tags and accounts, and the history's `Round`."""
    half, session, tally = opened.half, opened.session, opened.tally
    roster, epsilon = session.roster, largest_stated(opened)
    for name, update in folded.updates.items():
        refolded = roster.positions[name] in session.robust.changed
        roster.note_folded(name, update, refolded=refolded)
    last = session.history[-1] if session.history else None
    participants = tuple(folded.updates)
    if last is not None and last.participants == participants:
        participants = last.participants  # shared between rounds: a long run keeps them all
    before = 0.0 if last is None else last.epsilon
    if any(agent.unbound for agent in roster.agents.values()):
        if roster.is_unbound:
            epsilon = math.inf
        else:
            before = before if math.isfinite(before) else 0.0
            tally.notes += [not_of(tally.unbound)] if tally.unbound else []
    silent = [name for name in roster.names if name not in folded.updates]
    done = Round(
        round=opened.number,
        participants=participants,
        failures=dict(folded.failures),
        notes=(
            *roster.take_notes(),
            *_tries_before(opened),
            *tally.notes,
            *half.notes(session.state, silent),
        ),
        residual=half.residual(session.state),
        bytes_up=tally.bytes_up,
        bytes_down=tally.bytes_down,
        seconds=time.monotonic() - tally.begun,
        epsilon=max(before, epsilon),
        measures=half.measures(session.state),
        clock=folded.clock,
        versions=folded.versions,
    )
    session.history.append(done)
    session.round = opened.number
    tally.ended = True
    return done


def _tries_before(opened: OpenRound) -> list[str]:
    failed = opened.tally.failed_at
    if not failed:
        return []
    times, seconds = len(failed), failed[-1] - opened.tally.begun
    return [f"tried {times + 1} times: too few agents replied in the first {seconds:.0f} s"]
