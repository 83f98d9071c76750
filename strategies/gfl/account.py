"""The account of a run of graph federated learning: its guarantee, and against which adversary.

The stated adversary sees every message that servers exchange in all rounds, knows the graph and
the starting model, and sees nothing inside a unit: not its agents' models, not what its server
draws. With M_j = psi_j + g_j the message of round j, eq. (47) is w_j = psi_j + ((A - I) M_j)_p, so
given all earlier messages psi_j is a function of the unit's data alone and M_j a plain release of
it, of the sensitivity that `privet.kernel.gfl_sensitivity` proves. Nothing is claimed towards the
unit's own server, which sees its agents' models, or for the final models, which leave clean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from privet.client_apps.as_printed import gfl_theorem_2
from privet.client_apps.gfl import Agent, LinkRelease
from privet.kernel import UNITS, Facts, Release, Totals
from privet.rounds.hooks import Stated

from .graph import Matrix, combination_matrix, neighbours
from .mixing import perturbation_kind
from .server import Server


@dataclass(frozen=True, slots=True)
class Links:
    """The releases on its links of the unit that shows most, as far as they can be certified."""

    agent: Agent
    facts: Facts
    noise: LinkRelease

    @classmethod
    def of(cls, config: Mapping[str, Any], facts: Facts) -> Self | None:
        """Return the links of a run; None if nothing can be certified.

        That is so if `Agent.link_release` returns None, with seeded noise, and with closing
        exchanges, which show the last w_p clean.
        """
        kind = perturbation_kind(config)
        if kind == "none" or config["noise-seed"] >= 0 or config["closing-rounds"]:
            return None
        noise = LinkRelease(
            str(config["mechanism"]),
            math.sqrt(float(config["noise-variance"])),
            _most_neighbours(combination_matrix(config)) if kind == "random" else 1,
        )
        links = cls(Agent.from_settings(config), facts, noise)
        return links if links.release(1) is not None else None

    @classmethod
    def dearest(cls, config: Mapping[str, Any], stated: Stated) -> Self | None:
        """Return the links of the agent whose releases cost most; None if any has no certificate.

        ``stated`` are agents' public numbers, and their settings in place of the run's. A record's
        influence stays in its unit's model, so that one agent's steps count for all of its unit.
        """
        found: dict[float, Self] = {}
        for facts, own in stated:
            try:
                links = cls.of({**config, **own}, facts)
            except (ValueError, ArithmeticError):  # the numbers are the agent's
                links = None
            release = None if links is None else links.release(1)
            if links is None or release is None:
                return None
            found[release.loss] = links
        return found[max(found)] if found else None

    def release(self, round_: int) -> Release | None:
        """Return the release of a unit in a round."""
        return self.agent.link_release(self.facts, round_, self.noise)

    def totals(self, rounds: Iterable[int], before: Totals | None = None) -> Totals:
        """Return the releases of these rounds, added to ``before``."""
        totals = before or Totals()
        for number in rounds:
            release = self.release(number)
            assert release is not None
            totals = totals.add(release)
        return totals


@dataclass
class Spending:
    """eps(i) of the stated adversary after every round."""

    links: Links
    delta: float
    round: int = 0
    totals: Totals = field(default_factory=Totals)

    def after(self, round_: int) -> float:
        """Return the epsilon of rounds 1 ... ``round_``."""
        if round_ < self.round:
            self.round, self.totals = 0, Totals()
        self.totals = self.links.totals(range(self.round + 1, round_ + 1), self.totals)
        self.round = round_
        return self.totals.epsilon(self.delta)


def _most_neighbours(weights: Matrix) -> int:
    return max(len(neighbours(weights, unit)) for unit in range(len(weights)))


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
    half: Server,
    config: Mapping[str, Any],
    rounds: int,
    stated: Stated | None,
    repeated: Iterable[int] = (),
) -> dict[str, Any]:
    """Return what goes into ``privacy.json``: never private as a whole, and why.

    ``stated`` is what all agents computed by; None where that is not known of each. ``repeated``
    are rounds of which the links may have carried one release more, see `State`.

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
    links = None if stated is None or given else Links.dearest(config, stated)
    if links is None or not rounds:
        accounts.append(_entry("links", math.inf, delta, [_why(config, given=given)]))
    else:
        printed = gfl_theorem_2(
            step_size=links.agent.step_size,
            clip=links.agent.clip,
            rounds=rounds,
            noise_deviation=links.noise.deviation,
        )
        totals = links.totals([*range(1, rounds + 1), *repeated])
        promised = [line.format(UNITS[links.agent.relation]) for line in LINKS]
        assumptions = [*promised, *([SIMULATED] if hosts_all else [])]
        entry = _entry("links", totals.epsilon(delta), delta, assumptions)
        method = totals.method
        mu = totals.mu if method == "gaussian" else None
        accounts.append({**entry, "method": method, "mu": mu, "as-printed": printed})
    return {"private": False, "reason": f"not private: {'; '.join(reasons)}", "accounts": accounts}


def _entry(to: str, epsilon: float, delta: float, assumptions: list[str]) -> dict[str, Any]:
    return {
        "to": to,
        "epsilon": epsilon,
        "delta": delta,
        "method": "none",
        "mu": None,
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
    return "no bound is proven for the regulariser and step of every agent"
