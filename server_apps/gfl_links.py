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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.privacy import Release, gfl_release, rdp_curve
from privet.privacy.accountant import ORDERS, epsilon_of_curve
from privet.strategies.gfl import combination_matrix, perturbation_kind
from privet.strategies.gfl_graph import Matrix, neighbours


@dataclass(frozen=True, slots=True)
class Links:
    """The releases of one unit on its links, as far as they can be certified.

    Attributes
    ----------
    clip, step_size : float
        B, in the norm of the mechanism's sensitivity, and mu.
    mechanism : str
    deviation : float
        Standard deviation of the noise on one coordinate.
    copies : int
        Independent noisy copies of psi_p that leave in a round: 1 with homomorphic noise, the
        unit's number of neighbours with random noise.
    relation : str
    """

    clip: float
    step_size: float
    mechanism: str
    deviation: float
    copies: int
    relation: str

    @classmethod
    def of(cls, config: Mapping[str, Any], dim: int) -> Links | None:
        """Return the releases of the unit that shows most, None where nothing can be certified.

        That is without noise or with seeded noise, without a clip, with a regulariser whose step
        could spread two models, or with closing exchanges, which show the last w_p clean.
        """
        kind, mechanism = perturbation_kind(config), str(config["mechanism"])
        clip, mu = float(config["clip"]), float(config["step-size"])
        if kind == "none" or config["noise-seed"] >= 0 or config["noise-variance"] <= 0:
            return None
        if clip <= 0 or config["closing-rounds"] or not _steady(config, mu):
            return None
        return cls(
            # Agents clip in L2, and a vector of L2 norm B has an L1 norm of at most sqrt(d) B.
            clip * math.sqrt(dim) if mechanism == "laplace" else clip,
            mu,
            mechanism,
            math.sqrt(float(config["noise-variance"])),
            _most_neighbours(combination_matrix(config)) if kind == "random" else 1,
            str(config["relation"]),
        )

    def release(self, round_: int) -> Release:
        """Return what leaves a unit in a round."""
        laplace = self.mechanism == "laplace"
        found = gfl_release(
            clip=self.clip,
            step_size=self.step_size,
            round_number=round_,
            noise_scale=self.deviation / math.sqrt(2.0) if laplace else self.deviation,
            mechanism=self.mechanism,  # type: ignore[arg-type]
            relation=self.relation,  # type: ignore[arg-type]
        )
        return replace(found, count=self.copies)

    def releases(self, rounds: int) -> list[Release]:
        """Return what left a unit in rounds 1 ... ``rounds``."""
        return [self.release(number) for number in range(1, rounds + 1)]


@dataclass
class Spending:
    """eps(i) of the stated adversary after every round, by Renyi differential privacy."""

    links: Links
    delta: float
    round: int = 0
    curve: NDArray[np.float64] = field(default_factory=lambda: np.zeros_like(ORDERS))

    def after(self, round_: int) -> float:
        """Return the epsilon of rounds 1 ... ``round_``."""
        if round_ < self.round:
            self.round, self.curve = 0, np.zeros_like(ORDERS)
        new = [self.links.release(number) for number in range(self.round + 1, round_ + 1)]
        for one in new:
            self.curve = self.curve + rdp_curve([one], ORDERS)
        self.round = round_
        return epsilon_of_curve(self.curve, ORDERS, self.delta)


def _steady(config: Mapping[str, Any], mu: float) -> bool:
    """Whether a step on the regulariser alone cannot spread two models."""
    if config["regularizer"] == "none":
        return True
    return config["regularizer"] == "l2" and mu * float(config["regularizer-weight"]) <= 2.0


def _most_neighbours(weights: Matrix) -> int:
    return max(len(neighbours(weights, unit)) for unit in range(len(weights)))
