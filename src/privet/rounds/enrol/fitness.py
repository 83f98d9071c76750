"""Which agents fit a run: their model, settings, account, public numbers and certificate.

An agent is judged when it answers the enrolment question, and again once the noise is set: what
nothing is proven of takes no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.kernel import Facts
from privet.wire import Enrolment
from privet.wire.contract import means_privacy

from ..account import account_fault, own_settings, refused_facts, refused_settings, unreadable
from ..calibration import uncertified
from ..half import ServerHalf
from ..options import RunOptions
from ..roster import EnrolledAgent
from ..session import Session

_NO_FACTS = "declares no public numbers: a private run needs its number of examples"


def unfit(
    half: ServerHalf[Any], options: RunOptions, session: Session, enrolment: Enrolment
) -> str:
    """Return why an agent does not fit the run, or an empty text."""
    return (
        session.check(enrolment)
        or refused_settings(half, enrolment.own_settings)
        or _unknown_cost(half, options, session, enrolment)
    )


def _unknown_cost(
    half: ServerHalf[Any], options: RunOptions, session: Session, enrolment: Enrolment
) -> str:
    """Return why it cannot be told what an agent has released, and will; or an empty text."""
    facts, private = enrolment.facts, means_privacy(half.settings())
    if not facts and _plans_noise(half, options):
        return _NO_FACTS
    if facts and (why := refused_facts(facts) or _other_numbers(enrolment)):
        return why
    checked = facts and private and session.calibrated
    if checked and (why := _without_certificate(half, facts, enrolment.own_settings)):
        return why
    if not enrolment.ledger:
        return ""
    unknown = enrolment.agent not in session.roster.agents
    if private and session.begun_here and unknown and enrolment.ledger != "[]":
        return "the account of its ledger file has releases of this run, which never asked it"
    if private and not half.agent.private and half.noise_key:  # it is not set yet
        half = half.with_settings({half.noise_key: 1.0})
    # One above the target is joined, and its agent left out.
    stated = EnrolledAgent(0, facts=facts), enrolment.ledger
    if why := account_fault(half, *stated, 1, to_target=False):
        return f"the account of its ledger file cannot be used: {why}"
    return ""


def _other_numbers(enrolment: Enrolment) -> str:
    """Return how an agent's public numbers differ from the rest of its enrolment, or ""."""
    facts = Facts.from_json(enrolment.facts)
    for name, stated, enrolled in (
        ("examples", facts.num_examples, enrolment.num_examples),
        ("parameters", facts.dim, enrolment.dim),
        ("dtype", facts.dtype, enrolment.dtype),
    ):
        if stated != enrolled:
            return f"its public numbers are of {name} {stated}, and it enrols with {enrolled}"
    return ""


def _without_certificate(half: ServerHalf[Any], facts: str, own: str) -> str:
    """Return why nothing is proven of an agent's releases in this run, or an empty text."""
    return uncertified(half, Facts.from_json(facts), own_settings(own))


def _plans_noise(half: ServerHalf[Any], options: RunOptions) -> bool:
    """Whether the noise is checked or set from the agents' public numbers before round 1."""
    known = options.rounds is not None or options.max_uploads > 0
    accounted = half.agent.private and half.terms.noise_seed < 0
    return known and (accounted or half.terms.target_epsilon > 0)


def uncertified_agents(
    half: ServerHalf[Any], options: RunOptions, session: Session
) -> dict[str, str]:
    """Return why nothing is proven of agents' releases, by name; empty where that is all.

    What holds of all agents is a fault of the run's own keys, which `calibrated` names.
    """
    if not _plans_noise(half, options):
        return {}
    agents = session.roster.agents
    asked = {name: agent for name, agent in agents.items() if agent.facts and not agent.out}
    known = {(one.facts, one.own): "" for one in asked.values()}
    faults = {texts: why for texts in known if (why := _without_certificate(half, *texts))}
    if len(faults) == len(known):
        return {}
    terms = {name: (one.facts, one.own) for name, one in asked.items()}
    return {name: faults[one] for name, one in terms.items() if one in faults}


def unreadable_agents(
    half: ServerHalf[Any], options: RunOptions, session: Session
) -> dict[str, str]:
    """Return why the texts of agents in a private run's checkpoint cannot be read, by name."""
    if not means_privacy(half.settings()):
        return {}
    agents, plans_noise = session.roster.agents, _plans_noise(half, options)
    known: dict[Any, str] = {}
    faults: dict[str, str] = {}
    for name in session.roster.names:
        agent = agents[name]
        texts = (agent.terms, agent.accounts)
        if texts not in known:
            missing = _NO_FACTS if not agent.facts and plans_noise else ""
            known[texts] = missing or unreadable(half, agent)
        if why := known[texts]:
            faults[name] = why
    return faults


def leave_out(session: Session, faults: Mapping[str, str]) -> None:
    """Ask agents no more, by name why."""
    for name, why in faults.items():
        session.roster.leave_out(name, why)


def row_norm_of(half: ServerHalf[Any]) -> float:
    """Return the norm that an algorithm's agents scale all rows down to, whatever they set."""
    settings: Mapping[str, Any] = half.settings()
    if not means_privacy(settings) or settings.get("smoothness", 0.0) > 0:
        return 0.0
    return float(settings.get("row-norm", 0.0))
