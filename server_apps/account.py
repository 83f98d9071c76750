"""The account of a run: what the agents released, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from privet.privacy import AgentLedger
from privet.strategies import PrimalDualStrategy
from privet.wire.errors import one_line

from .calibration import agent_half, first_facts
from .gfl.account import gfl_account
from .report import format as fmt

ASSUMPTIONS = (
    "unit: one record of one agent; honest-but-curious coordinator that sees every message",
    "examples per agent, clipping and row norm are public and enforced by the agents",
    "no amplification by sampling: the participations that happened are composed",
    "noise on a public grid, so that its low bits carry nothing else; AES-256 is a good generator, "
    "and the sampler adds (1 + e^epsilon) 2.4e-16 a coordinate and draw to delta at most",
)

IN_PLACE = (
    "add-remove: the record is there, or counts as zero in its place; a file from which a row is "
    "deleted, so that others move up and are rounded otherwise, is not covered"
)


def privacy_account(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what goes into ``privacy.json``.

    ``private``, ``reason``, ``accounts`` (towards the coordinator, and for the final model, which
    is post-processing of the same messages) and ``agents`` (each one's releases and epsilons; the
    largest is the run's). A run in which anything left without noise, now or before a resume, or in
    which an agent's account cannot be read, claims nothing.
    """
    if config["algorithm"] in _OWN:
        return _OWN[config["algorithm"]](strategy, config)
    session = strategy.session
    agents = {} if session is None else session.roster.agents
    taking_part = {name: agent.accounts for name, agent in agents.items() if agent.accounts}
    reason = _not_private(config, [text for texts in taking_part.values() for text in texts])
    history = [] if session is None else session.history
    if not reason and history and math.isinf(history[-1].epsilon):
        reason = "an agent's update left without noise of its own"
    if reason:
        return _refused(reason)
    delta = float(config["delta"])
    per_agent: dict[str, AgentLedger] = {}
    for name, texts in taking_part.items():
        try:
            per_agent[name] = AgentLedger.joined(texts)
        except (ValueError, ArithmeticError) as error:  # the text is the agent's
            return _refused(f"the account of agent {name} cannot be read: {one_line(str(error))}")
    epsilons = {name: ledger.spent(delta) for name, ledger in per_agent.items()}
    worst = max(epsilons, key=epsilons.__getitem__)
    if math.isinf(epsilons[worst]):
        return _refused("the noise is too small for any epsilon")
    printed = as_printed(strategy, config)
    in_place = [IN_PLACE] if config["relation"] == "add-remove" else []
    assumptions = [*ASSUMPTIONS, *in_place]
    accounts = [
        {
            "to": to,
            "epsilon": epsilons[worst],
            "delta": delta,
            "method": per_agent[worst].totals.method,
            "assumptions": assumptions,
            "as-printed": printed,
        }
        for to in ("coordinator", "world")
    ]
    return {
        "private": True,
        "reason": f"epsilon {fmt.epsilon(epsilons[worst])} at delta {delta:g} "
        f"({config['relation']})",
        "accounts": accounts,
        "agents": {
            name: {
                "epsilon": epsilons[name],
                "releases": [
                    {**release.to_dict(), "times": times} for release, times in ledger.entries
                ],
            }
            for name, ledger in per_agent.items()
        },
    }


def _refused(reason: str) -> dict[str, Any]:
    return {"private": False, "reason": f"not private: {reason}", "accounts": []}


def _not_private(config: Mapping[str, Any], ledgers: list[str]) -> str:
    if not ledgers:
        return "no agent has taken part"
    if config["noise-seed"] >= 0:
        return "the noise is seeded (noise-seed)"
    if config["sensitivity"] == "paper":
        return "the noise's scale is computed from the data (sensitivity = paper)"
    if not all(ledgers):
        return "updates leave without accounted noise"
    return ""


def as_printed(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> float | None:
    """Return the paper's own formula for the run, which is not a claim; None where it has none."""
    session = strategy.session
    half = agent_half(strategy.half)
    formula = getattr(half, "as_printed", None)
    if session is None or formula is None:
        return None
    facts = first_facts((n, agent) for n, agent in session.roster.agents.items() if agent.tag)
    if facts is None:
        return None
    try:
        found: float | None = formula(facts, max(1, session.round), float(config["delta"]))
    except ValueError:  # outside the formula's conditions, such as no row-norm
        return None
    return found


_OWN: dict[str, Callable[[PrimalDualStrategy, Mapping[str, Any]], dict[str, Any]]] = {
    "gfl": gfl_account,
}
"""Accounts of algorithms whose noise is not the agents' own."""
