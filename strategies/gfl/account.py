"""The account of a run of graph federated learning: what is claimed towards whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privet.privacy import UNITS, Facts
from privet.privacy.as_printed import gfl_theorem_2

from .links import Links
from .server import Server

OWN_SERVER = (
    "the unit's own server sees its agents' models as they are: no noise protects them there"
)
OWN_SERVER_SUMS = (
    "the unit's own server sees sums of its agents' models: the masks hide one agent's among "
    "them, and no noise does"
)
SIMULATED = "one process hosted all units and saw everything: a simulation of the privacy scheme"
WORLD = "the final models are not noised, and the noise cancels in their mean"
LINKS = (
    "observer: anybody who reads every message between servers and nothing inside a unit",
    "unit: {} of the unit; the account is that of the most exposed unit",
    "every agent clips its gradients to B and takes steps of mu/E_k",
    "a record's influence stays in the unit's own model, so the sensitivity grows with the round",
    "no amplification by sampling",
    "real-valued noise (floating-point attacks are not covered)",
)


def gfl_account(
    half: Server, config: Mapping[str, Any], rounds: int, facts: Facts | None
) -> dict[str, Any]:
    """Return what goes into ``privacy.json``: never private as a whole, and why.

    ``accounts`` say it towards the coordinator (the own server) and the world, both without a
    bound, and towards an observer of the links, who is the adversary that the noise is for.
    """
    hosts_all = len(half.mixer.units) == len(half.mixer.weights)
    own_server = OWN_SERVER_SUMS if config["secure-sum"] else OWN_SERVER
    reasons = [own_server] + ([SIMULATED] if hosts_all else [])
    delta = float(config["delta"])
    accounts = [
        _entry("coordinator", math.inf, delta, [own_server]),
        _entry("world", math.inf, delta, [WORLD]),
    ]
    noise = half.perturbation.noise
    given = noise is not None and not getattr(noise, "private", False)
    links = None if facts is None or given else Links.of(config, facts)
    if links is None or not rounds:
        accounts.append(_entry("links", math.inf, delta, [_why(config, given=given)]))
    else:
        printed = gfl_theorem_2(
            step_size=links.agent.step_size,
            clip=links.agent.clip,
            rounds=rounds,
            noise_deviation=links.noise.deviation,
        )
        totals = links.totals(rounds)
        said = [line.format(UNITS[links.agent.relation]) for line in LINKS]
        assumptions = [*said, *([SIMULATED] if hosts_all else [])]
        entry = _entry("links", totals.epsilon(delta), delta, assumptions)
        accounts.append({**entry, "method": totals.method, "as-printed": printed})
    return {"private": False, "reason": f"not private: {'; '.join(reasons)}", "accounts": accounts}


def _entry(to: str, epsilon: float, delta: float, assumptions: list[str]) -> dict[str, Any]:
    return {
        "to": to,
        "epsilon": epsilon,
        "delta": delta,
        "method": "none",
        "assumptions": assumptions,
        "as-printed": None,
    }


def _why(config: Mapping[str, Any], *, given: bool) -> str:
    """Return why there is no bound towards an observer of the links."""
    if config["noise-seed"] >= 0:
        return "the noise is seeded (noise-seed)"
    if given:
        return "the noise is supplied from outside, and whoever supplied it can predict it"
    if config["noise-variance"] <= 0 or config["perturbation"] == "none":
        return "messages between servers carry no noise"
    if config["clip"] <= 0:
        return "gradients are not clipped (clip = 0), so no sensitivity is known"
    if config["closing-rounds"]:
        return "closing exchanges show the last models without noise (closing-rounds)"
    return "no bound is proven for this regulariser and step"
