"""The account of a run: what the agents released, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from privet.core import format as fmt
from privet.core.errors import one_line
from privet.data import DataError
from privet.data.tables.schema import read_schema
from privet.kernel import UNITS, AgentLedger, drawn_delta
from privet.kernel.programs.custom import custom_in
from privet.rounds.account import Privacy, draw_length, privacy_of, terms_of
from privet.rounds.calibration import first_facts
from privet.rounds.views import table
from privet.strategies import PrimalDualStrategy

ASSUMPTIONS = (
    "unit: {}; honest-but-curious coordinator that sees every message",
    "examples per agent, clipping and row norm are public and enforced by the agents",
    "no amplification by sampling of agents: the participations that happened are composed",
    "noise on a public grid, so that its low bits carry nothing else; AES-256 is a good generator, "
    "and the sampler adds (1 + e^epsilon) 2.4e-16 a coordinate and draw to delta at most",
)

IN_PLACE = (
    "add-remove: the record is there, or counts as zero in its place; a file from which a row is "
    "deleted, so that others move up and are rounded otherwise, is not covered"
)

SAMPLED = (
    "records are sampled: each takes part in a step with probability {} by a coin of its agent's "
    "that nobody else knows, and the divisor is the expected batch; both directions of add-remove "
    "are composed, and the larger counts"
)

IN_TURN = (
    "batches in turn: each record is in one step of {} at a time of its agent's, and a cycle is "
    "charged when it begins; its place in the table depends on no record's values"
)

IN_SUMS = (
    "noise shared out over masked sums: epsilon holds towards {}, and no one else; each node takes "
    "its peers' noise and keys on trust, as its own config says"
)


DESCRIBED = (
    "beside the noised description that the schema is from: it cost each site epsilon "
    "{epsilon:.6g} at delta {delta:g}, which adds to these figures; a node's ledger holds both"
)

OBSERVERS = ("coordinator", "world")
"""Towards whom a private run states its figures: the same releases are seen."""
VOUCHED = "{}; its package vouches for this proof, and an auditor reads its code"


def _custom(ledgers: Iterable[AgentLedger]) -> list[str]:
    """Return an account's statements on the custom programs that it rests on."""
    statements = (release.what for ledger in ledgers for release, _ in ledger.entries)
    return [VOUCHED.format(one_line(what)) for what in custom_in(statements)]


def _against(ledger: AgentLedger) -> str:
    """Return the adversary of an account that rests on noise of several agents, else nothing."""
    if ledger.totals.colluders is None:
        return ""
    sizes = [release.agents for release, _ in ledger.entries]
    return (
        f"the coordinator and at most {ledger.totals.colluders} other agents, in sums of "
        f"{min(sizes)} or more"
    )


def _rates(ledger: AgentLedger) -> str:
    """Return the probabilities with which records are sampled, empty where none are."""
    rates = sorted({release.sampling for release, _ in ledger.entries if release.sampling < 1})
    ends = dict.fromkeys(f"{rate:.3g}" for rate in (*rates[:1], *rates[-1:]))
    return " to ".join(ends)


def assumptions_of(worst: AgentLedger, ledgers: Iterable[AgentLedger]) -> list[str]:
    """Return what the epsilon of a run rests on.

    Parameters
    ----------
    worst
        The account of the agent that released most, with at least one release.
    ledgers
        Those of all agents.
    """
    relation = worst.totals.relation or "replace-one"
    stated = [line.format(UNITS[relation]) for line in ASSUMPTIONS]
    in_place = [IN_PLACE] if relation == "add-remove" else []
    sampled = [SAMPLED.format(rates)] if (rates := _rates(worst)) else []
    batches = sorted({release.batches for release, _ in worst.entries if release.batches > 1})
    in_turn = [IN_TURN.format(" or ".join(map(str, batches)))] if batches else []
    in_sums = [IN_SUMS.format(against)] if (against := _against(worst)) else []
    return [*stated, *in_place, *sampled, *in_turn, *in_sums, *_custom(ledgers)]


class Account(dict[str, Any]):
    """The content of ``privacy.json``; a notebook shows it as a table, ``str`` in one line."""

    def __str__(self) -> str:
        return str(self["reason"])

    def _repr_html_(self) -> str:
        agents = self.get("agents", {})
        rows = [(name, fmt.epsilon(one["epsilon"])) for name, one in agents.items()]
        spent = table(["agent", "epsilon"], rows) if rows else ""
        return f"<p>Privacy: {fmt.text(self)}</p>{spent}"


def privacy_account(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> Account:
    """Return the content of ``privacy.json``.

    ``private``, ``reason``, ``accounts`` (towards the coordinator, and for the final model, which
    is post-processing of the same messages), ``agents`` (each one's releases and epsilons; the
    largest is the run's), ``apart``, those whose accounts are above the run's target and in no
    figure but their own, and ``unbound``, agents that stated no bound, of whose records nothing is
    claimed. A run in which anything left without noise, now or before a resume, or in which no
    agent's account can be read, claims nothing. An account whose method is "gaussian" states the
    Gaussian-DP parameter ``mu`` of the releases; elsewhere it is None.
    """
    session = strategy.session
    agents = {} if session is None else session.roster.agents
    special = strategy.account(config, lambda: terms_of(agents.values()))
    if special is not None:
        return Account(special)
    result = privacy_of(strategy.half, session)
    if not result.private:
        return Account(private=False, reason=result.reason, accounts=[])
    printed = as_printed(strategy, config)
    worst = result.agents[result.worst]
    against = _against(worst)
    assumptions = assumptions_of(worst, result.agents.values())
    assumptions += result.not_covered
    with suppress(DataError):  # the file is gone since, which the summary says
        assumptions += of_description(read_schema(str(config.get("schema", ""))).described)
    accounts = [
        {
            "to": to,
            "epsilon": result.epsilon,
            "delta": result.delta,
            "drawn-delta": result.drawn,
            **_of_person(strategy, config, result),
            "method": worst.totals.method,
            "mu": worst.totals.mu if worst.totals.method == "gaussian" else None,
            "assumptions": assumptions,
            "as-printed": printed,
        }
        for to in OBSERVERS
    ]
    account = {
        "private": True,
        "reason": str(result) + (f", towards {against}" if against else ""),
        "accounts": accounts,
        "agents": {
            name: {
                "epsilon": ledger.spent(result.delta),
                "releases": [
                    {**release.to_dict(), "times": times} for release, times in ledger.entries
                ],
            }
            for name, ledger in result.agents.items()
        },
        **({"unbound": list(result.unbound)} if result.unbound else {}),
        **({"apart": list(result.apart)} if result.apart else {}),
    }
    return Account(account)


def of_description(spent: Mapping[str, float]) -> list[str]:
    """Return a line on the noised description that a run's schema is from, if it is from one."""
    return [DESCRIBED.format(**spent)] if spent else []


def _of_person(
    strategy: PrimalDualStrategy, config: Mapping[str, Any], result: Privacy
) -> dict[str, Any]:
    """Return the entry on a person of several records, empty where the config names none.

    The figure is exact where the account is: the totals of a change of so many records, and not k
    epsilon at a delta of k e^(k epsilon) times as much. It is infinite where none holds at a total
    delta below 1.
    """
    rows = int(config.get("rows-per-person", 1))
    if rows == 1 or result.relation == "replace-agent":
        return {}
    session = strategy.run.session
    epsilon, drawn = 0.0, 0.0
    try:
        for ledger in result.counted.values():
            epsilon = max(epsilon, ledger.totals.of_group(rows).epsilon(result.delta))
        for name, ledger in result.counted.items():
            length = draw_length(session.roster.agents[name], session)
            drawn = max(drawn, drawn_delta(ledger.entries, length, epsilon))
    except (ValueError, ArithmeticError):
        epsilon = math.inf
    if result.delta + drawn >= 1:
        epsilon = math.inf
    if math.isinf(epsilon):
        drawn = 0.0
    person = {"rows": rows, "epsilon": epsilon, "delta": result.delta, "drawn-delta": drawn}
    return {"person": person}


def as_printed(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> float | None:
    """Return the paper's own formula for the run, which is not a claim; None where it has none."""
    session = strategy.session
    if session is None:
        return None
    facts = first_facts(agent for agent in session.roster.agents.values() if agent.tag)
    if facts is None:
        return None
    try:
        half, rounds = strategy.half, max(1, session.round)
        return half.agent.as_printed(facts, rounds, half.terms.delta)
    except ValueError:  # outside the formula's conditions, such as no row-norm
        return None
