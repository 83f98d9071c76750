"""What a run would cost: its account as if every planned round had happened.

The numbers are those of a run with the same config, because they come from the same places: the
calibration, the agent half's releases and the account that a run writes into ``privacy.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.datasets import DataError, federation_from_config, loss_kind
from privet.privacy import AgentLedger, Facts, SystemNoise, Totals
from privet.strategies import PrimalDualStrategy
from privet.strategies.roster import Agent, Roster
from privet.strategies.round import Session
from privet.wire import ConfigError, Layout, algorithm

from .account import privacy_account
from .calibration import agent_half, calibrate, plans

FACT_KEYS = ("num-examples", "dim")
"""Public numbers that stand in for the data, beside the run-config keys."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned run: its account as in ``privacy.json``, one round's cost, and its noise.

    Attributes
    ----------
    account : mapping
    per_round : float
        epsilon of the costliest round of one agent.
    noise : mapping
        The noise key of the algorithm and its value, as given or as calibrated.
    """

    account: Mapping[str, Any]
    per_round: float
    noise: Mapping[str, float]


def plan_account(config: Mapping[str, Any], public: Mapping[str, Any]) -> Planned:
    """Return the account of the run that a resolved config asks for.

    Parameters
    ----------
    config : mapping
        A resolved run config.
    public : mapping
        ``num-examples`` (and ``dim``) of every agent where the account is not for the config's own
        data; empty reads these.

    Raises
    ------
    ConfigError
        If the run cannot be private as configured, or the data cannot be read.
    """
    kind = algorithm(config["algorithm"]).load_strategy()
    # Asked for by servers that draw noise themselves; nothing is drawn here.
    options = {"noise": SystemNoise()} if getattr(kind, "adds_noise", False) else {}
    strategy = kind.from_config(config, **options)
    session = _session(config, _facts(config, public))
    prepare = calibrate(config)
    try:
        if prepare is not None:
            strategy.half = prepare(strategy.half, session)
        _complete(strategy, config, session)
    except ConfigError as error:
        if public and config["loss"] == "auto":
            raise ConfigError(f"{error}; num-examples leaves the loss open: give loss") from None
        raise
    half = agent_half(strategy.half)
    key = getattr(half, "noise_key", "")
    noise = {key: float(strategy.half.settings()[key])} if key else {}
    delta = float(config["delta"])
    per_round = max(
        (
            Totals().add(release).epsilon(delta)
            for agent in session.roster.agents.values()
            for release, _ in (AgentLedger.from_json(agent.ledger).entries if agent.ledger else ())
        ),
        default=math.inf,
    )
    return Planned(privacy_account(strategy, config), per_round, noise)


def _facts(config: Mapping[str, Any], public: Mapping[str, Any]) -> list[Facts]:
    """Return every agent's public numbers: those given, else those of the config's data."""
    count = int(config["num-agents"])
    if count < 1:
        raise ConfigError("num-agents = 0: give the number of agents the data are dealt to")
    if "num-examples" not in public:
        if public:
            raise ConfigError("dim: goes with num-examples")
        try:
            federation = federation_from_config(config, count)
        except DataError as error:
            raise ConfigError(str(error)) from None
        return [Facts.of(problem) for problem in federation.problems]
    weight = 2.0 * config["beta"] / count or config["regularizer-weight"]
    examples = int(public["num-examples"])
    whole = config["divisor"] == "federation" or (
        config["divisor"] == "auto" and config["algorithm"] == "dp-iadmm"
    )
    try:
        facts = Facts(
            num_examples=examples,
            divisor=float(examples * (count if whole else 1)),
            dim=int(public.get("dim", 1)),
            dtype=config["dtype"],
            loss=loss_kind(config["loss"]),
            regularizer=config["regularizer"],
            modulus=float(weight) if config["regularizer"] == "l2" else 0.0,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [facts] * count


def _session(config: Mapping[str, Any], facts: list[Facts]) -> Session:
    """Return a session of agents that have been enrolled and asked for nothing yet."""
    start = np.zeros(facts[0].dim, config["dtype"])
    layout = Layout.of(ArrayRecord({"x": Array(start)}))
    agents = {
        str(place): Agent(place, own.num_examples, facts=own.to_json())
        for place, own in enumerate(facts)
    }
    return Session("", layout, start, None, Roster(agents))


def _complete(strategy: PrimalDualStrategy, config: Mapping[str, Any], session: Session) -> None:
    """Note every planned release as made, and all rounds as played."""
    half, agents = agent_half(strategy.half), session.roster.agents
    if half.private:
        for name, plan in plans(config, session).items():
            if plan.rounds:
                agents[name] = agents[name]._replace(
                    tag=plan.rounds[-1], ledger=plan.carried_out(half)
                )
    session.round = int(config["num-server-rounds"])
    strategy.session = session
