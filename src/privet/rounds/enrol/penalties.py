"""The weight of agents' penalties that they leave to the run: the run's is that of pooled rows."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from privet.core import ConfigError
from privet.kernel import Facts
from privet.problems import PooledL2

from ..half import ServerHalf
from ..options import RunOptions
from ..session import Session

log = logging.getLogger("flwr.privet")


def require_open_penalties(options: RunOptions, session: Session) -> None:
    """Turn away agents with a penalty of their own, which ``penalty-c`` cannot change.

    Raises
    ------
    ConfigError
        If these are more than half.
    """
    roster, given = session.roster, options.penalty_c
    own = [
        name
        for name, agent in (roster.agents.items() if given != 1.0 else ())
        if not _leaves_penalty_open(agent.facts)
    ]
    if not own:
        return
    why = (
        "a penalty of its own (regularizer-weight, beta or divisor), which "
        f"penalty-c = {given:g} cannot change"
    )
    if 2 * len(own) > len(roster.agents):
        raise ConfigError(f"{len(own)} of {len(roster.agents)} agents: {why}")
    for name in own:
        roster.turn_away(name, why)


def _leaves_penalty_open(facts: str) -> bool:
    """Return whether an agent's facts leave the weight of its penalty to the run."""
    try:
        return bool(facts) and Facts.from_json(facts).regularizer == PooledL2.kind
    except ValueError:  # they cannot be read
        return False


def pooled(
    half: ServerHalf[Any], options: RunOptions, session: Session, known: list[Facts]
) -> list[Facts]:
    """Agree on D and the weight of agents that leave their penalty to the run.

    With D = n / N, n the declared examples of the N agents, and the weight 1 / (C n) the run's
    objective is scikit-learn's on the pooled rows. Both stay in the session as they are before
    round 1, whoever joins later. Returns the facts that the agents then have.
    """
    open_ = [one.regularizer == PooledL2.kind for one in known]
    if session.round == 0 and any(open_) and not all(open_):
        log.warning(
            "%d of %d agents leave the weight of their penalty to the run, the others do not "
            "(regularizer-weight): it is 1 over their own examples, and agents count alike",
            *(sum(open_), len(open_)),
        )
    elif session.round == 0 and any(open_):
        total = sum(one.num_examples for one in known)
        whole = half.agent.divisor == "federation"
        session.mean_examples = total / (1 if whole else len(known))
        session.pooled_weight = 1.0 / (options.penalty_c * session.mean_examples * len(known))
    if not session.pooled_weight:
        return known
    changes: Any = {"divisor": session.mean_examples, "penalty": session.pooled_weight}
    return [replace(one, **changes) for one in known]
