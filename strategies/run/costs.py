"""What a reply costs its agent in privacy where the server does not get to read it."""

from __future__ import annotations

from functools import reduce
from typing import Any

from privet.privacy import AgentLedger, Facts, Release
from privet.privacy.ledger_lines import dearer
from privet.wire.contract import means_privacy

from ..half import ServerHalf
from .roster import Agent


def expected_release(half: ServerHalf[Any], agent: Agent, number: int) -> Release | None:
    """Return what an agent's reply of a round releases at least, None where none is accounted.

    It is asked of the agent half, with what the agent says of itself; an agent that has released
    more in one of its messages, by settings of its own, is taken to do so again.
    """
    if not (agent.facts and means_privacy(half.settings())):
        return None
    try:
        release = half.agent.release(Facts.from_json(agent.facts), number)
        before = [known for known, _ in AgentLedger.joined([agent.ledger]).entries]
    except (ValueError, TypeError, ArithmeticError):
        return None
    if release.mechanism == "none":
        return None
    return reduce(dearer, before, release)


def spent_up(half: ServerHalf[Any], agent: Agent, number: int) -> str:
    """Return why an agent must not be asked: with its predecessors it would pass the run's target.

    An agent refuses by itself to pass it, but knows only of its own releases.
    """
    target = half.terms.target_epsilon
    if not (target > 0 and agent.former):
        return ""
    release = expected_release(half, agent, number)
    if release is None:
        return ""
    after = AgentLedger.joined(agent.accounts).record(release).spent(half.terms.delta)
    return f"target-epsilon: {after:.6g} under this name" if after > target else ""


__all__ = ["expected_release", "spent_up"]
