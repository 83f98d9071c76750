"""What the agents of a run released, and what it costs: the account that ends a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privet.privacy import AgentLedger
from privet.wire.errors import one_line

from ..half import ServerHalf
from .session import Session


@dataclass(frozen=True, slots=True)
class Privacy:
    """What a run promises every agent's records, towards the coordinator and so towards everybody.

    Attributes
    ----------
    private : bool
    reason : str
        Why it promises nothing; empty where it does.
    epsilon, delta : float
        The largest epsilon of an agent at delta; infinity where the run is not private.
    relation : str
        Which data sets are neighbours.
    agents : mapping of str to AgentLedger
        What each agent released, its predecessors of the same name included.
    """

    private: bool
    reason: str
    epsilon: float
    delta: float
    relation: str
    agents: Mapping[str, AgentLedger] = field(default_factory=dict)

    @property
    def worst(self) -> str:
        """The agent that released most; its account is the run's."""
        return max(self.agents, key=lambda name: self.agents[name].spent(self.delta))


def privacy_of(half: ServerHalf[Any], session: Session | None) -> Privacy:
    """Return what a run promises, from the accounts of all its agents.

    A run in which anything left without noise, now or before a resume, or in which an agent's
    account cannot be read, promises nothing.
    """
    agents = {} if session is None else session.roster.agents
    accounts = {name: agent.accounts for name, agent in agents.items() if agent.accounts}
    relation = str(half.settings().get("relation", "replace-one"))

    def refused(reason: str) -> Privacy:
        return Privacy(False, f"not private: {reason}", math.inf, half.terms.delta, relation)

    reason = _not_private(half, [text for texts in accounts.values() for text in texts])
    history = [] if session is None else session.history
    if not reason and history and math.isinf(history[-1].epsilon):
        reason = "an agent's update left without noise of its own"
    if reason:
        return refused(reason)
    ledgers: dict[str, AgentLedger] = {}
    for name, texts in accounts.items():
        try:
            ledgers[name] = AgentLedger.joined(texts)
        except (ValueError, ArithmeticError) as error:  # the text is the agent's
            return refused(f"the account of agent {name} cannot be read: {one_line(str(error))}")
    largest = max(ledger.spent(half.terms.delta) for ledger in ledgers.values())
    if math.isinf(largest):
        return refused("the noise is too small for any epsilon")
    return Privacy(True, "", largest, half.terms.delta, relation, ledgers)


def _not_private(half: ServerHalf[Any], ledgers: list[str]) -> str:
    if not ledgers:
        return "no agent has taken part"
    if half.terms.noise_seed >= 0:
        return "the noise is seeded (noise-seed)"
    if half.settings().get("sensitivity") == "paper":
        return "the noise's scale is computed from the data (sensitivity = paper)"
    if not all(ledgers):
        return "updates leave without accounted noise"
    return ""


__all__ = ["Privacy", "privacy_of"]
