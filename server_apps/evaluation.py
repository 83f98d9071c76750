"""What the server measures after a round, and the centralised optimum it is compared with.

The server evaluates on data it holds itself: the held-out set, and in a simulation everybody's
training data. Nothing is asked of the agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.datasets import Federation
from privet.problems import L2, BinaryLogistic, ProximalFunction, Zero, minimize
from privet.problems.reference import NEWTON_UP_TO

Vector = NDArray[Any]
Measure = Callable[[int, Mapping[str, Vector]], Mapping[str, float]]
"""``(round, models) -> numbers by name``."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measures models against a federation whose data the server can see.

    ``measures`` are what an algorithm has measured beside the numbers common to all.
    """

    federation: Federation
    h: ProximalFunction
    measures: tuple[Measure, ...] = ()

    def __call__(self, round_: int, models: Mapping[str, Vector]) -> dict[str, float]:
        """Return held-out ``loss`` and ``accuracy`` of the last model, and ``stationarity``.

        Stationarity is ||sum_i grad f_i||^2 at the mean model, the Fed-PLT paper's criterion
        (Section VII); with h it is the squared distance of -sum_i grad f_i to the
        subdifferential of h, which is 0 exactly at a solution, at the last model, or at the mean
        model where the last one is outside the domain of h.
        """
        numbers = dict(self.federation.evaluate(models["last"]))
        if isinstance(self.h, Zero):
            slope = self.federation.gradient(models.get("mean", models["last"]))
            numbers["stationarity"] = float(slope @ slope)
        else:
            point = models["last"]
            if not math.isfinite(self.h.value(point)):
                point = models.get("mean", point)
            slope = self.federation.gradient(point)
            numbers["stationarity"] = self.h.subgradient_residual(point, slope) ** 2
        for measure in self.measures:
            numbers |= measure(round_, models)
        return numbers

    def optimum(self) -> Vector | None:
        """Return the centralised optimum, None where it is not convex or would take too long.

        scikit-learn's LogisticRegression where it solves the same problem (binary logistic loss,
        l2, no h); otherwise this library's own centralised solver.
        """
        first = self.federation.problems[0]
        if (
            isinstance(first, BinaryLogistic)
            and isinstance(first.regularizer, L2)
            and isinstance(self.h, Zero)
        ):
            return _scikit_learn_optimum(self.federation, first.regularizer.weight)
        if first.regularizer.moduli.strong_convexity < 0 or self.federation.dim > NEWTON_UP_TO:
            return None
        found = minimize(self.federation.problems, self.h)
        return found.x

    def distance(self, model: Vector) -> float:
        """Return ||x - x*||, NaN where there is no unique optimum."""
        best = self.optimum()
        return math.nan if best is None else float(np.linalg.norm(model - best))


def _scikit_learn_optimum(federation: Federation, weight: float) -> Vector:
    from sklearn.linear_model import LogisticRegression

    problems: list[Any] = list(federation.problems)
    features = np.concatenate([problem.features for problem in problems]).astype(float)
    labels = np.concatenate([problem.labels for problem in problems])
    shares = np.concatenate(
        [np.full(problem.num_examples, 1.0 / problem.divisor) for problem in problems]
    )
    model = LogisticRegression(
        C=1.0 / (len(problems) * weight),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-13,
        max_iter=1000,
    )
    model.fit(features, labels, sample_weight=shares)
    optimum: Vector = model.coef_[0]
    return optimum
