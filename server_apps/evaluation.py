"""The server's evaluation of models, and the centralised optimum they are compared with.

The server evaluates on data it holds itself: the held-out set, and in a simulation all agents'
training data. It sends the agents no message.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.errors import one_line
from privet.data import Federation
from privet.data.agreement import Agreement
from privet.data.meaning import Meaning
from privet.kernel import Zero
from privet.problems import L2, BinaryLogistic, ProximalFunction, minimize
from privet.problems.reference import NEWTON_UP_TO
from privet.rounds.hooks import Monitor

log = logging.getLogger("flwr.privet")

_LOCATED_WITHIN = 0.01
"""Largest error at which the optimum is used, relative to 1 + its norm."""

_LARGEST_DIM = 5000
"""Most parameters for which scikit-learn's solver is used; its Hessian is then 200 MB."""

_LARGEST_WORK, _LONG_WORK = 5e9, 2e8
"""Agents x d^2 up to which the optimum is computed, and from which the computation is logged.

A Hessian costs that times the examples of an agent.
"""

Vector = NDArray[Any]


@dataclass(slots=True)
class Evaluation:
    """Evaluates models on a federation whose data the server can see.

    ``measures`` are the monitors that an algorithm adds to the numbers common to all, and
    ``encoded`` returns the evaluation with the data encoded as the agents of a run have agreed.
    """

    federation: Federation
    h: ProximalFunction
    measures: tuple[Monitor, ...] = ()
    encoded: Callable[[str], Evaluation] | None = None
    _found: list[Vector | None] = field(default_factory=list, repr=False, compare=False)

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

    @property
    def encoding(self) -> str:
        """What the columns of the data mean, as agents state theirs; empty where nothing says."""
        meaning = self.federation.held_out.meaning
        return meaning.text if isinstance(meaning, Meaning) else ""

    def adopt(self, encoding: Agreement) -> None:
        """Encode the data as the agents of the run have agreed, with means of all their rows."""
        if self.encoded is None or encoding.meaning is None or encoding.has(self.encoding):
            return
        if encoding.unfit(self.encoding, ""):  # there are no agents with data as these
            return
        other = self.encoded(encoding.text)
        self.federation, self.measures, self._found = (
            other.federation,
            other.measures,
            other._found,
        )

    def optimum(self) -> Vector | None:
        """Return the centralised optimum, or None, with the reason logged, if there is none.

        It is computed once, by scikit-learn's LogisticRegression where that solves the same problem
        (binary logistic loss, l2 of positive weight, no h, labels of both classes, rows of up to
        512 MB, as it copies them) and converges, and by this library's centralised solver
        otherwise. There is none where the objective is not convex, has more parameters, or
        agents x parameters^2, than is affordable, or is so flat that no minimiser stands out, as
        that of separable examples without a regulariser.
        """
        if not self._found:
            self._found.append(self._located())
        return self._found[0]

    def _located(self) -> Vector | None:
        with np.errstate(all="ignore"):
            try:
                self._check_size()
                optimum = self._by_scikit_learn()
                if optimum is None or not self._is_located(optimum):
                    optimum = self._by_minimize()
            except Exception as error:  # the run does not depend on it
                reason = str(error) if isinstance(error, _NoOptimumError) else repr(error)
                log.info("no centralised optimum to compare with: %s", one_line(reason))
                return None
        return optimum

    def _check_size(self) -> None:
        """Log a long computation before it begins; raise if it would be too long."""
        agents, dim = len(self.federation.problems), self.federation.dim
        size = f"{agents:,} agents and {dim:,} parameters"
        if agents * dim**2 > _LARGEST_WORK:
            raise _NoOptimumError(
                f"{size}, computed up to agents x parameters^2 = {_LARGEST_WORK:g}"
            )
        if agents * dim**2 >= _LONG_WORK:
            log.info("computing the centralised optimum of %s; this can take minutes", size)

    def distance(self, model: Vector) -> float:
        """Return ||x - x*||, NaN where there is no unique optimum."""
        best = self.optimum()
        return math.nan if best is None else float(np.linalg.norm(model - best))

    def excess(self, model: Vector) -> float:
        """Return how far sum_i f_i + h is above its least over the agents, NaN as ``distance``."""
        best = self.optimum()
        if best is None:
            return math.nan

        def objective(x: Vector) -> float:
            return math.fsum(problem.value(x) for problem in self.federation.problems)

        with np.errstate(all="ignore"):
            gap = objective(model) + self.h.value(model) - objective(best) - self.h.value(best)
        return max(0.0, gap / len(self.federation.problems))

    def _by_scikit_learn(self) -> Vector | None:
        problems = self.federation.problems
        regularizer = problems[0].regularizer
        if not (
            isinstance(problems[0], BinaryLogistic)
            and not is_large(problems)
            and isinstance(regularizer, L2)
            and isinstance(self.h, Zero)
            and self.federation.dim <= _LARGEST_DIM
        ):
            return None
        total = len(problems) * regularizer.weight
        strength = 1.0 / total if total > 0 else math.inf
        if not 0 < strength < math.inf or len(set(map(float, _labels(problems)))) < 2:
            return None
        return _scikit_learn_optimum(problems, strength)

    def _by_minimize(self) -> Vector:
        problems, dim = self.federation.problems, self.federation.dim
        if problems[0].regularizer.moduli.strong_convexity < 0:
            raise _NoOptimumError("the objective is not convex")
        if dim > NEWTON_UP_TO:
            raise _NoOptimumError(f"{dim} parameters, computed for {NEWTON_UP_TO} at most")
        optimum: Vector = minimize(problems, self.h).x
        if not np.isfinite(optimum).all():
            raise _NoOptimumError("the solver's numbers are not finite")
        if isinstance(self.h, Zero) and not self._is_located(optimum):
            raise _NoOptimumError("no unique minimiser could be located")
        return optimum

    def _is_located(self, candidate: Vector) -> bool:
        """Return whether the minimiser without h is certified to be near a candidate.

        Where the curvature is at least m > 0, it is within the norm of the gradient / m.
        """
        problems: Sequence[Any] = self.federation.problems
        point = candidate.astype(problems[0].dtype)
        slope = float(np.linalg.norm(self.federation.gradient(point)))
        near = _LOCATED_WITHIN * (1.0 + float(np.linalg.norm(point)))
        curvature = float(sum(problem.moduli.strong_convexity for problem in problems))
        if not slope <= near * curvature and point.size <= NEWTON_UP_TO:
            values = np.linalg.eigvalsh(sum(problem.hessian(point) for problem in problems))
            rounding = values.size * np.finfo(values.dtype).eps * values[-1]
            curvature = float(values[0]) if values[0] > rounding else 0.0
        return 0.0 < curvature < math.inf and slope <= near * curvature


def is_large(problems: Sequence[Any]) -> bool:
    """Return whether the rows of all agents are too large to be copied, as scikit-learn does."""
    size: int = sum(problem.features.nbytes for problem in problems)
    return size > mapped.LIMIT


class _NoOptimumError(Exception):
    """There is no optimum to compare with; the text is the reason."""


def _labels(problems: Sequence[Any]) -> Vector:
    return np.concatenate([problem.labels for problem in problems])


def _scikit_learn_optimum(problems: Sequence[Any], strength: float) -> Vector | None:
    """Return the minimiser for C = ``strength``, None where scikit-learn does not converge."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    features = np.concatenate([problem.features for problem in problems]).astype(float)
    shares = np.concatenate(
        [np.full(problem.num_examples, 1.0 / problem.divisor) for problem in problems]
    )
    model = LogisticRegression(
        C=strength,
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-13,
        max_iter=1000,
    )
    with warnings.catch_warnings():
        # Without convergence scikit-learn warns and returns its last iterate.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(features, _labels(problems), sample_weight=shares)
        except (ConvergenceWarning, ArithmeticError, ValueError):
            return None
    optimum: Vector = model.coef_[0]
    return optimum if np.isfinite(optimum).all() else None
