"""Convergence theory of Fed-PLT as it must be used: the corrected 2x2 matrix S.

Proposition 1 of the paper bounds one round by S on (||x - x*||, ||z - z*||). Two of its constants
are wrong in print. Eq. (17) has 1/(lambda + 1/rho) where the Lipschitz constant of the exact local
update is 1/(1 + rho lambda); with the printed constant, matrices called stable diverge. Lemma 8
(accelerated gradient) lacks a square root: chi(N_e) = sqrt((1 + kappa) (1 - 1/sqrt(kappa))^N_e).
Tuning uses the corrected matrix; its spectral radius is nearly tight, its norm very conservative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.core.key import AUTO
from privet.kernel import Moduli, best_step
from privet.rounds.hooks import Predicted, Query
from privet.rounds.participation import All, Fraction, Probability, from_config

RHOS_A_PART = 9
"""Values of rho that one process searches at a time."""
MOST_STEPS = 40
"""The largest number of local steps that is tried by default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of the parameters: penalty, step size (unused by agd), local steps, solver."""

    rho: float
    step_size: float
    local_epochs: int
    solver: str = "gd"


def solver_factor(moduli: Moduli, setting: Setting) -> float:
    """Return chi^N_e, by how much the local solver shrinks its own error in a round.

    Gradient descent, Lemma 2: max(|1 - gamma (lambda + 1/rho)|, |1 - gamma (L + 1/rho)|)^N_e.
    Accelerated gradient, corrected Lemma 8: sqrt((1 + kappa) (1 - 1/sqrt(kappa))^N_e).
    Infinite where it is too large for a float.
    """
    low = moduli.strong_convexity + 1.0 / setting.rho
    high = moduli.smoothness + 1.0 / setting.rho
    if setting.solver == "agd":
        kappa = high / low
        return math.sqrt((1.0 + kappa) * (1.0 - 1.0 / math.sqrt(kappa)) ** setting.local_epochs)
    chi = max(abs(1.0 - setting.step_size * low), abs(1.0 - setting.step_size * high))
    try:
        return float(chi**setting.local_epochs)
    except OverflowError:
        return math.inf


def splitting_factor(moduli: Moduli, rho: float) -> float:
    """Return zeta of Lemma 3, the contraction of the exact Peaceman-Rachford splitting."""
    return max(
        abs((1.0 - rho * modulus) / (1.0 + rho * modulus))
        for modulus in (moduli.strong_convexity, moduli.smoothness)
    )


def convergence_matrix(moduli: Moduli, setting: Setting) -> NDArray[np.float64]:
    """Return S of Proposition 1, shape (2, 2)."""
    chi = solver_factor(moduli, setting)
    zeta = splitting_factor(moduli, setting.rho)
    lipschitz = 1.0 / (1.0 + setting.rho * moduli.strong_convexity)
    return np.array(
        [
            [chi, (1.0 + chi) * lipschitz],
            [2.0 * chi, zeta + 2.0 * chi * lipschitz],
        ]
    )


def delayed_factor(moduli: Moduli, rho: float, relaxation: float) -> float:
    """Return c(a): by how much an update with a model of any age contracts, solved exactly.

    With r_max = (1 - rho lam)/(1 + rho lam), r_min = (1 - rho L)/(1 + rho L),

        c(a) = max_{0<=p<=1} sqrt(p (1-a-a r_max)^2 + (1-p) (1-a-a r_min)^2)
                             + 2a sqrt(p r_max^2 + (1-p) r_min^2),

    a concave function of p. If c(a) < 1, then for any delays and any order of the uploads
    max_i |z_i - z_i*| <= c(a)^k max_i |z_i^0 - z_i*| after k stages, in each of which every agent
    has folded an upload of a model that it was sent within the stage (docs/async.md has the proof).
    """
    low, high = (
        (1 - rho * m) / (1 + rho * m) for m in (moduli.smoothness, moduli.strong_convexity)
    )
    kept = [(1 - relaxation - relaxation * r) ** 2 for r in (high, low)]
    moved = [r**2 for r in (high, low)]

    def bound(p: float) -> float:
        of_own = math.sqrt(p * kept[0] + (1 - p) * kept[1])
        return of_own + 2 * relaxation * math.sqrt(p * moved[0] + (1 - p) * moved[1])

    left, right = 0.0, 1.0
    for _ in range(200):  # ternary search
        third = (right - left) / 3
        if bound(left + third) < bound(right - third):
            left += third
        else:
            right -= third
    return max(bound(0.0), bound(1.0), bound((left + right) / 2))


def delayed_rate(moduli: Moduli, setting: Setting, relaxation: float) -> float:
    """Return the rate a stage with N_e local steps that contract by chi, started at x_i.

    The spectral radius of [[chi, 3 (1 + chi) p], [2a chi, c(a) + 6a chi p]] on
    (max |x_i - x_i*|, max |z_i - z_i*|), where p = 1/(1 + rho lam); below 1 the limit is exact.
    Infinite where the moduli are so large that it cannot be computed.
    """
    chi = solver_factor(moduli, setting)
    share = 1.0 / (1.0 + setting.rho * moduli.strong_convexity)
    factor = delayed_factor(moduli, setting.rho, relaxation)
    matrix = np.array(
        [
            [chi, 3 * (1 + chi) * share],
            [2 * relaxation * chi, factor + 6 * relaxation * chi * share],
        ]
    )
    return spectral_radius(matrix)


def spectral_radius(matrix: NDArray[np.float64]) -> float:
    """Return the largest magnitude of an eigenvalue, infinite where an entry is not finite."""
    if not np.isfinite(matrix).all():
        return math.inf
    return float(np.max(np.abs(np.linalg.eigvals(matrix))))


def predict(query: Query, setting: Setting, participation: float = 1.0) -> Predicted:
    """Return the prediction of S for a setting: it converges if the spectral radius is below 1.

    ``participation`` is the probability p of an agent's taking part. ``rounds`` give the requested
    reduction at the rate sqrt(1 - p + p radius^2) (Proposition 2 with the radius for the norm), and
    ``cost`` is rounds * (N_e * gradient cost + communication cost), per agent.
    """
    matrix = convergence_matrix(query.moduli, setting)
    radius = spectral_radius(matrix)
    rate = math.sqrt(1.0 - participation + participation * radius**2)
    rounds = math.log(query.reduction) / math.log(rate) if 0 < rate < 1 else math.inf
    if rate == 0:
        rounds = 1.0
    cost = rounds * (setting.local_epochs * query.gradient_cost + query.communication_cost)
    settings = {
        "rho": setting.rho,
        "step-size": setting.step_size,
        "local-epochs": setting.local_epochs,
        "local-solver": setting.solver,
    }
    figures = {
        "spectral-radius": radius,
        "norm": float(np.linalg.norm(matrix, 2)),
        "rounds": rounds,
        "cost": cost,
    }
    return Predicted(settings, figures, rank=(cost, radius), converges=radius < 1)


@dataclass(frozen=True, slots=True)
class FedPLTTheory:
    """The theory as ``privet tune`` asks it: a grid over rho, step size and local steps.

    rho is tried over four decades around 1/sqrt(lambda L); values that the run config gives are not
    searched.

    Raises
    ------
    ConfigError
        If f is not strongly convex, or the theory does not cover local solver or participation.
    """

    query: Query

    def __post_init__(self) -> None:
        convexity = self.query.moduli.strong_convexity
        if convexity <= 0:
            raise ConfigError(
                f"strong convexity is {convexity:g}: the theory needs it above 0 "
                "(add an l2 regulariser)"
            )
        for key, papers in (("relaxation", 1.0), ("local-start", "own")):
            value = self.query.config[key]
            if value not in (papers, 0.0, "auto"):
                raise ConfigError(f"{key} = {value}: the theory is that of the paper, {papers}")
        self._solver()
        self._probability()

    @property
    def note(self) -> str:
        """That a run without these settings is another method, which takes fewer rounds."""
        if {"rho", "local-solver", "local-epochs", "step-size"} & self.query.given:
            return ""
        return (
            "these are settings of the paper's method, with gradient steps; with none of them set "
            "a run that is not private solves its subproblems and learns rho and the curvature, "
            "which takes far fewer rounds"
        )

    def parts(self) -> list[list[float]]:
        """Return the values of rho, a few to a part."""
        query = self.query
        if "rho" in query.given:
            return [[float(query.config["rho"])]]
        product = query.moduli.strong_convexity * query.moduli.smoothness
        scale = 1.0 / np.sqrt(product or 1.0)
        rhos = [float(rho) for rho in scale * np.logspace(-2, 2, 81)]
        return [rhos[begin : begin + RHOS_A_PART] for begin in range(0, len(rhos), RHOS_A_PART)]

    def search(self, part: list[float]) -> list[Predicted]:
        """Return the settings with these rho, the cheapest first.

        Step sizes are the one given, or factors of the best fixed one, 2/(L + lambda + 2/rho).
        """
        query, solver, probability = self.query, self._solver(), self._probability()
        epochs: Iterable[int] = range(1, (query.most_steps or MOST_STEPS) + 1)
        if "local-epochs" in query.given and not query.most_steps:
            epochs = [int(query.config["local-epochs"])]
        given = float(query.config["step-size"])
        factors = np.linspace(0.5, 1.0, 6).tolist() if solver == "gd" and not given else [1.0]
        predictions = [
            predict(
                query,
                Setting(rho, factor * (given or best_step(query.moduli, rho)), steps, solver),
                probability,
            )
            for rho in part
            for steps in epochs
            for factor in factors
        ]
        return sorted(predictions, key=lambda one: one.rank)

    def _solver(self) -> str:
        solver = str(self.query.config["local-solver"])
        solver = "gd" if solver == AUTO else solver
        if solver not in ("gd", "agd"):
            raise ConfigError(f"local-solver = {solver!r}: the theory covers gd and agd")
        return solver

    def _probability(self) -> float:
        """Return the probability with which an agent takes part, the same for all agents."""
        config = self.query.config
        who = from_config(config)
        if isinstance(who, All):
            return 1.0
        if isinstance(who, Fraction):
            return who.fraction
        if isinstance(who, Probability) and not who.own and who.common > 0:
            return who.common
        raise ConfigError(
            f"participation = {config['participation']!r}: the theory covers one probability "
            "for all agents"
        )
