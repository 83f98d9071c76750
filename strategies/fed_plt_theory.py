"""Convergence theory of Fed-PLT as it must be used: the corrected 2x2 matrix S.

Proposition 1 of the paper bounds one round by S on (||x - x*||, ||z - z*||). Two of its constants
are wrong in print. Eq. (17) has 1/(lambda + 1/rho) where the Lipschitz constant of the exact local
update is 1/(1 + rho lambda); with the printed constant, matrices called stable diverge. Lemma 8
(accelerated gradient) lacks a square root: chi(N_e) = sqrt((1 + kappa) (1 - 1/sqrt(kappa))^N_e).
Tuning uses the corrected matrix; its spectral radius is nearly tight, its norm very conservative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.problems import Moduli, best_step
from privet.wire import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of the parameters: penalty, step size (unused by agd), local steps, solver."""

    rho: float
    step_size: float
    local_epochs: int
    solver: str = "gd"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the theory says of a setting.

    Attributes
    ----------
    radius, norm : float
        Spectral radius and spectral norm of S; below 1 the bound contracts.
    rounds : float
        Rounds to shrink the error by the asked factor at the rate of the spectral radius,
        infinite where it does not contract.
    cost : float
        rounds * (N_e * gradient cost + communication cost), per agent.
    """

    setting: Setting
    radius: float
    norm: float
    rounds: float
    cost: float


def solver_factor(moduli: Moduli, setting: Setting) -> float:
    """Return chi^N_e, by how much the local solver shrinks its own error in a round.

    Gradient descent, Lemma 2: max(|1 - gamma (lambda + 1/rho)|, |1 - gamma (L + 1/rho)|)^N_e.
    Accelerated gradient, corrected Lemma 8: sqrt((1 + kappa) (1 - 1/sqrt(kappa))^N_e).
    """
    low = moduli.strong_convexity + 1.0 / setting.rho
    high = moduli.smoothness + 1.0 / setting.rho
    if setting.solver == "agd":
        kappa = high / low
        return math.sqrt((1.0 + kappa) * (1.0 - 1.0 / math.sqrt(kappa)) ** setting.local_epochs)
    chi = max(abs(1.0 - setting.step_size * low), abs(1.0 - setting.step_size * high))
    return float(chi**setting.local_epochs)


def splitting_factor(moduli: Moduli, rho: float) -> float:
    """Return zeta of Lemma 3, the contraction of the exact Peaceman-Rachford splitting."""
    return max(
        abs((1.0 - rho * modulus) / (1.0 + rho * modulus))
        for modulus in (moduli.strong_convexity, moduli.smoothness)
    )


def convergence_matrix(
    moduli: Moduli, setting: Setting, *, printed: bool = False
) -> NDArray[np.float64]:
    """Return S of Proposition 1, shape (2, 2).

    ``printed`` uses the paper's constant of (17); it is there to show what goes wrong.
    """
    chi = solver_factor(moduli, setting)
    zeta = splitting_factor(moduli, setting.rho)
    if printed:
        lipschitz = 1.0 / (moduli.strong_convexity + 1.0 / setting.rho)
    else:
        lipschitz = 1.0 / (1.0 + setting.rho * moduli.strong_convexity)
    return np.array(
        [
            [chi, (1.0 + chi) * lipschitz],
            [2.0 * chi, zeta + 2.0 * chi * lipschitz],
        ]
    )


def predict(
    moduli: Moduli,
    setting: Setting,
    *,
    reduction: float = 1e-3,
    participation: float = 1.0,
    gradient_cost: float = 1.0,
    communication_cost: float = 10.0,
) -> Prediction:
    """Return what S says of a setting.

    Parameters
    ----------
    moduli : Moduli
        Smallest strong convexity and largest smoothness over the agents.
    reduction : float
        Factor by which the error ||x - x*|| is to shrink.
    participation : float
        Probability p of an agent's taking part; the rate is sqrt(1 - p + p radius^2)
        (Proposition 2 with the radius for the norm).
    gradient_cost, communication_cost : float
        t_G and t_C of the paper's Section VII.
    """
    matrix = convergence_matrix(moduli, setting)
    radius = float(np.max(np.abs(np.linalg.eigvals(matrix))))
    norm = float(np.linalg.norm(matrix, 2))
    rate = math.sqrt(1.0 - participation + participation * radius**2)
    rounds = math.log(reduction) / math.log(rate) if 0 < rate < 1 else math.inf
    if rate == 0:
        rounds = 1.0
    price = setting.local_epochs * gradient_cost + communication_cost
    return Prediction(setting, radius, norm, rounds, rounds * price)


def settings(
    moduli: Moduli,
    rhos: Iterable[float],
    local_epochs: Iterable[int],
    *,
    solver: str = "gd",
    step_factors: Sequence[float] = (1.0,),
) -> Iterator[Setting]:
    """Yield the grid; step sizes are factors of the best fixed one, 2/(L + lambda + 2/rho)."""
    for rho in rhos:
        best = best_step(moduli, rho)
        for epochs in local_epochs:
            for factor in step_factors if solver == "gd" else (1.0,):
                yield Setting(rho, factor * best, epochs, solver)


def search(
    moduli: Moduli,
    rhos: Iterable[float],
    local_epochs: Iterable[int],
    *,
    solver: str = "gd",
    step_factors: Sequence[float] = (1.0,),
    reduction: float = 1e-3,
    participation: float = 1.0,
    gradient_cost: float = 1.0,
    communication_cost: float = 10.0,
) -> list[Prediction]:
    """Return all settings of the grid with their predictions, the cheapest first.

    Raises
    ------
    ConfigError
        If f is not strongly convex: the theory says nothing then.
    """
    require_strong_convexity(moduli)
    return cheapest_first(
        predict(
            moduli,
            setting,
            reduction=reduction,
            participation=participation,
            gradient_cost=gradient_cost,
            communication_cost=communication_cost,
        )
        for setting in settings(
            moduli, rhos, local_epochs, solver=solver, step_factors=step_factors
        )
    )


def require_strong_convexity(moduli: Moduli) -> None:
    """Raise ``ConfigError`` if f is not strongly convex: the theory says nothing then."""
    if moduli.strong_convexity <= 0:
        raise ConfigError(
            f"strong convexity is {moduli.strong_convexity:g}: the theory needs it above 0 "
            "(add an l2 regulariser)"
        )


def cheapest_first(found: Iterable[Prediction]) -> list[Prediction]:
    """Return predictions in the order of their cost, and of their radius where that is the same."""
    return sorted(found, key=lambda one: (one.cost, one.radius))
