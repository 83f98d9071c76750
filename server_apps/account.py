"""The account of a run: what the agents released, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from privet.privacy import Account, AgentLedger, account
from privet.strategies import PrimalDualStrategy
from privet.wire.errors import one_line

from .gfl_account import gfl_account

ASSUMPTIONS = (
    "unit: one record of one agent; honest-but-curious coordinator that sees every message",
    "examples per agent, clipping and row norm are public and enforced by the agents",
    "no amplification by sampling: the participations that happened are composed",
    "real-valued noise (floating-point attacks are not covered)",
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
    taking_part = {name: agent for name, agent in agents.items() if agent.tag or agent.ledger}
    reason = _not_private(config, [agent.ledger for agent in taking_part.values()])
    history = [] if session is None else session.history
    if not reason and history and math.isinf(history[-1].epsilon):
        reason = "an agent's update left without noise of its own"
    if reason:
        return _refused(reason)
    delta = float(config["delta"])
    per_agent: dict[str, Account] = {}
    for name, agent in taking_part.items():
        try:
            per_agent[name] = _account(agent.ledger, delta)
        except (ValueError, ArithmeticError) as error:  # the text is the agent's
            return _refused(f"the account of agent {name} cannot be read: {one_line(str(error))}")
    worst = max(per_agent.values(), key=lambda found: found.epsilon)
    if math.isinf(worst.epsilon):
        return _refused("the noise is too small for any epsilon")
    printed = as_printed(strategy, config)
    accounts = [
        {
            "to": to,
            "epsilon": worst.epsilon,
            "delta": delta,
            "method": worst.method,
            "rdp": worst.rdp,
            "pld": worst.pld,
            "assumptions": list(ASSUMPTIONS),
            "as-printed": printed,
        }
        for to in ("coordinator", "world")
    ]
    return {
        "private": True,
        "reason": f"epsilon {worst.epsilon:.4g} at delta {delta:g} ({config['relation']})",
        "accounts": accounts,
        "agents": {
            name: {
                "epsilon": found.epsilon,
                "rdp": found.rdp,
                "pld": found.pld,
                "releases": [
                    release.to_dict()
                    for release in AgentLedger.from_json(taking_part[name].ledger).releases()
                ],
            }
            for name, found in per_agent.items()
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


@lru_cache(maxsize=4096)
def _account(ledger: str, delta: float) -> Account:
    """Agents with equal releases cost the same; the account is computed once."""
    return account(AgentLedger.from_json(ledger).releases(), delta)


def as_printed(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> float | None:
    """Return the paper's own formula for the run, which is not a claim; None where it has none."""
    if strategy.session is None or config["algorithm"] not in _AS_PRINTED:
        return None
    try:
        return _AS_PRINTED[config["algorithm"]](strategy, config)
    except ValueError:  # a setting outside the formula's conditions, such as no row-norm
        return None


def _fed_plt(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> float | None:
    from privet.privacy.as_printed import fed_plt_epsilon

    session = strategy.session
    assert session is not None
    settings = strategy.half.settings()
    strong = float(config["regularizer-weight"]) if config["regularizer"] == "l2" else 0.0
    if strong <= 0:
        return None
    counts = [agent.num_examples for agent in session.roster.agents.values() if agent.tag]
    from .calibration import fed_plt_step

    monitor: Any = strategy.monitor
    step, _ = fed_plt_step(config, monitor.federation)
    return fed_plt_epsilon(
        sensitivity=2.0 * float(config["clip"]),
        strong_convexity=strong,
        tau=math.sqrt(float(settings["noise-variance"])),
        num_examples=min(counts),
        step_size=step,
        rounds=max(1, session.round),
        local_steps=int(config["local-epochs"]),
        delta=float(config["delta"]),
    )


def _dp_iadmm(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> float | None:
    """Theorem 1's epsilon is that of one use of Laplace noise, however many there are."""
    from privet.privacy.as_printed import dp_iadmm_epsilon

    session = strategy.session
    assert session is not None
    ledgers = [agent.ledger for agent in session.roster.agents.values() if agent.ledger]
    used = [one for text in ledgers for one in AgentLedger.from_json(text).releases()]
    losses = [one.loss for one in used if one.mechanism == "laplace"]
    if config["perturbation"] != "objective" or not losses:
        return None
    return dp_iadmm_epsilon(max(losses))


_AS_PRINTED: dict[str, Callable[[PrimalDualStrategy, Mapping[str, Any]], float | None]] = {
    "dp-iadmm": _dp_iadmm,
    "fed-plt": _fed_plt,
}

_OWN: dict[str, Callable[[PrimalDualStrategy, Mapping[str, Any]], dict[str, Any]]] = {
    "gfl": gfl_account,
}
"""Accounts of algorithms whose noise is not the agents' own."""
