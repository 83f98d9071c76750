"""What graph federated learning's noise gives against an observer of the messages between servers.

The stated adversary sees every message that servers exchange in all rounds, knows the graph and
the starting model, and sees nothing inside a unit: not its agents' models, not what its server
draws. With M_j = psi_j + g_j the message of round j, eq. (47) is w_j = psi_j + ((A - I) M_j)_p, so
given all earlier messages psi_j is a function of the unit's data alone and M_j a plain release of
it, of the sensitivity that `privet.privacy.gfl_sensitivity` proves. Nothing is claimed towards the
unit's own server, which sees its agents' models, or for the final models, which leave clean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from privet.client_apps.gfl import Agent, LinkNoise
from privet.privacy import Facts, Release, Totals

from .graph import Matrix, combination_matrix, neighbours
from .mixing import perturbation_kind


@dataclass(frozen=True, slots=True)
class Links:
    """The releases on its links of the unit that shows most, as far as they can be certified."""

    agent: Agent
    facts: Facts
    noise: LinkNoise

    @classmethod
    def of(cls, config: Mapping[str, Any], facts: Facts) -> Self | None:
        """Return the links of a run, None where nothing can be certified.

        That is where `Agent.link_release` says so, with seeded noise, and with closing exchanges,
        which show the last w_p clean.
        """
        kind = perturbation_kind(config)
        if kind == "none" or config["noise-seed"] >= 0 or config["closing-rounds"]:
            return None
        noise = LinkNoise(
            str(config["mechanism"]),
            math.sqrt(float(config["noise-variance"])),
            _most_neighbours(combination_matrix(config)) if kind == "random" else 1,
        )
        links = cls(Agent.from_settings(config), facts, noise)
        return links if links.release(1) is not None else None

    def release(self, round_: int) -> Release | None:
        """Return what leaves a unit in a round."""
        return self.agent.link_release(self.facts, round_, self.noise)

    def totals(self, rounds: int, after: int = 0, before: Totals | None = None) -> Totals:
        """Return what left a unit in rounds ``after`` + 1 ... ``rounds``, added to ``before``."""
        found = before or Totals()
        for number in range(after + 1, rounds + 1):
            release = self.release(number)
            assert release is not None
            found = found.add(release)
        return found


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
        self.totals = self.links.totals(round_, self.round, self.totals)
        self.round = round_
        return self.totals.epsilon(self.delta)


def _most_neighbours(weights: Matrix) -> int:
    return max(len(neighbours(weights, unit)) for unit in range(len(weights)))
