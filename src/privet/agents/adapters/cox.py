"""Cox's partial likelihood of an agent's rows as a Problem, for methods that are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from privet.analyses.cox_site import CoxSums
from privet.analyses.follow_up import FollowUp
from privet.analyses.risk_sets import AtCoefficients, RiskSets
from privet.core import ConfigError
from privet.kernel import Moduli, RowIndex
from privet.problems import Regularizer

from ..inputs import Vector
from .finite_sum import FiniteSum


class CoxProblem(FiniteSum):
    """f(x) = -l(x) / D + r(x), with l Cox's partial log-likelihood of the agent's rows.

        l(x) = sum_dead w_i a_i' x - sum_parts v log sum_at_risk c_i w_i exp(a_i' x), by strata

    as `privet.analyses.risk_sets` has it (Cox, Journal of the Royal Statistical Society B 34, 1972,
    187-220). Each agent's strata are its own, so sum_i f_i with D the same for all has its minimum
    where the pooled rows' estimate stratified by agent is: without a regulariser any exact method,
    such as Fed-PLT, ends at the coefficients of the analysis ``cox``.

    Parameters
    ----------
    features : (n, p) array
        The rows a_i; there is no intercept, as the baseline hazards hold it. Columns of the same
        scale at all agents make a method converge fast.
    time : (n,) array
        Of the event, or of censoring; from 0 on.
    event : (n,) array
        1 where the event occurred at ``time``, 0 where it is censored.
    entry : (n,) array, optional
        Left truncation: row i is at risk in (entry_i, time_i].
    strata : (n,) array, optional
        Each stratum has a baseline hazard of its own.
    weights : (n,) array, optional
        Of rows, above 0, as of so many equal ones.
    ties : {"efron", "breslow"}
        How deaths at one time are counted.
    regularizer : Regularizer, optional
        r(x).
    divisor : float, optional
        D; n unless given. Agents of different n want the same one, such as the examples of all
        over the number of agents.

    Raises
    ------
    ConfigError
        For arrays of other lengths, and numbers that are none of these.

    Notes
    -----
    f is convex. Its Hessian is the sum over the parts of v / D times a covariance of rows at risk,
    so it is at most sum_parts v R^2 / D, with R the largest distance from the stratum's mean of a
    row that leaves no earlier: ``moduli``. An agent where nobody has the event has f = r.

    Privacy: l is no sum over rows. A row stands in the sum over those at risk at every earlier
    event, so that no bound of what one row moves is known: a run that clips examples refuses this
    problem, and so does one that takes mini-batches, whose rows say nothing of who is at risk.
    A method that clips a whole gradient or update (``clipping = "batch"``, dp-fedavg) bounds that
    whatever it is computed from.
    """

    def __init__(
        self,
        features: npt.ArrayLike,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        *,
        entry: npt.ArrayLike | None = None,
        strata: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        ties: str = "efron",
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
    ) -> None:
        rows = np.asarray(features)
        if rows.ndim != 2 or not np.isfinite(rows := rows.astype(np.float64)).all():
            raise ConfigError("features must be an array of finite numbers, a row an example")
        if ties not in ("efron", "breslow"):
            raise ConfigError(f"ties is {ties!r}: efron or breslow")
        count, width = rows.shape
        times = _times(count, time, event, entry)
        heavy = np.ones(count) if weights is None else _column("weights", weights, count)
        if not (heavy > 0.0).all():
            raise ConfigError("weights must be above 0: leave out the rows of weight 0")
        codes = np.zeros(count, np.int32)
        if strata is not None:
            named = np.asarray(strata)
            if named.shape != (count,):
                raise ConfigError(f"strata has shape {named.shape}, expected ({count},)")
            codes = np.unique(named, return_inverse=True)[1].astype(np.int32)
        sums = CoxSums.of(rows, heavy, times, codes, ties == "efron", {})
        super().__init__(width, count, np.float64, regularizer=regularizer, divisor=divisor)
        self._strata = sums.strata
        largest = sum(map(_curvature, self._strata)) / self.divisor
        self.moduli = Moduli(0.0, largest) + self.regularizer.moduli

    def _evaluated(self, x: Vector) -> Iterator[AtCoefficients]:
        coefficients = np.asarray(x, np.float64)
        return (AtCoefficients.of(sets, coefficients) for sets in self._strata)

    def _mean_loss(self, x: Vector) -> float:
        return -sum(at.loglik for at in self._evaluated(x)) / self.num_examples

    def _mean_gradient(self, x: Vector, rows: RowIndex) -> Vector:
        if rows is not None:
            raise ConfigError(
                "a Cox model takes no mini-batches: a row is at risk at every earlier event, and a "
                "batch says nothing of the others; use full batches"
            )
        slope = np.zeros(self.dim)
        for at in self._evaluated(x):
            slope -= at.score
        return slope / self.num_examples

    def _example_gradients(self, x: Vector, rows: RowIndex) -> NoReturn:
        raise ConfigError(
            "a Cox model has no gradient of one row, which is at risk at every earlier event: it "
            "cannot clip per example"
        )


def _curvature(sets: RiskSets) -> float:
    """Return sum_parts v R^2, with R of the rows that leave at the part's time or later."""
    squares = (sets.columns**2).sum(axis=1)
    later = np.zeros(len(sets.time))
    np.maximum.at(later, sets.last - 1, squares)
    radii = np.maximum.accumulate(later[::-1])[::-1]
    return float(sets.part_weight @ radii[sets.part_time])


def _times(count: int, time: Any, event: Any, entry: Any) -> FollowUp:
    """Return the times of rows (raises ``ConfigError``)."""
    ends = _column("time", time, count)
    if (ends < 0.0).any():
        raise ConfigError("time must be from 0 on: dates in the wrong order?")
    seen = _column("event", event, count)
    if not np.isin(seen, (0.0, 1.0)).all():
        raise ConfigError("event must be 0 (censored) or 1 (the event)")
    begins = np.full(count, -np.inf)
    if entry is not None:
        begins = _column("entry", entry, count)
        if (begins >= ends).any():
            raise ConfigError("entry must be before time: nobody is at risk in between")
    return FollowUp(ends, seen == 1.0, begins)


def _column(name: str, values: Any, count: int) -> npt.NDArray[np.float64]:
    """Return finite numbers (n,) (raises ``ConfigError``)."""
    column = np.asarray(values, np.float64)
    if column.shape != (count,):
        raise ConfigError(f"{name} has shape {column.shape}, expected ({count},)")
    if not np.isfinite(column).all():
        raise ConfigError(f"{name} must be finite")
    return column
