"""What a site sums for a Cox model: its own strata's partial likelihoods and their slopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .analysis import Arrays
from .concordance import pairs_of
from .cox_state import FINAL, LARGEST, PENALTY, SIZES, TREND
from .follow_up import FollowUp
from .frame import FloatArray
from .points import require_point
from .risk_sets import AtCoefficients, RiskSets
from .sizes import root_mean_squares, size_sums

Cells = tuple[tuple[str, NDArray[np.int32]], ...]


@dataclass(frozen=True, eq=False)
class CoxSums:
    """A site's rows, by strata.

    Attributes
    ----------
    columns : float64 array (n, p)
        Less their means in the row's stratum: the likelihood is the same, and nothing is lost.
    weights : float64 array (n,)
    strata : tuple of RiskSets
        Those in which somebody dies.
    coded : float64 array (n, p)
        The columns as they are.
    left_out : mapping of str to int
    times : FollowUp
    codes : int32 array (n,)
        The stratum of each row.
    cells : tuple of (str, int32 array (n,))
        The categories of each row, by products of factors: see `Design.cells`.
    dropped : tuple of int
        Rows that are left out though no value is missing: see `follow_up.late_rows`, those whose
        times or events cannot be used, and those without a weight above 0.
    least : int
        Rows that a cell has at least, or none at all, in what leaves the site.
    """

    columns: FloatArray
    weights: FloatArray
    strata: tuple[RiskSets, ...]
    coded: FloatArray
    left_out: Mapping[str, int]
    times: FollowUp
    codes: NDArray[np.int32]
    cells: Cells = ()
    dropped: tuple[int, ...] = ()
    least: int = 1

    @classmethod
    def of(
        cls,
        columns: FloatArray,
        weights: FloatArray,
        times: FollowUp,
        codes: NDArray[np.int32],
        efron: bool,
        left_out: Mapping[str, int],
        cells: Cells = (),
        dropped: tuple[int, ...] = (),
    ) -> CoxSums:
        """Return the sums of rows (n, p) with strata by codes (n,)."""
        coded, columns = columns, columns.copy()
        found = []
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            own = columns[rows]
            same = own.max(axis=0) == own.min(axis=0)
            own -= np.where(same, own[0], own.mean(axis=0))
            columns[rows] = own
            found.append(RiskSets.of(own, weights[rows], times.taken(rows), efron))
        return cls(
            columns,
            weights,
            tuple(one for one in found if one is not None),
            coded,
            left_out,
            times,
            codes,
            cells,
            dropped,
        )

    @property
    def num_examples(self) -> int:
        """The complete cases."""
        return len(self.weights)

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums that the point's phase asks for; see `Cox`."""
        width = self.columns.shape[1]
        square = (width, width)
        require_point(point, {"gamma": (width,), "basis": square, "inverse": square})
        phase, unit = int(point["phase"]), float(point["unit"])
        if phase == SIZES:
            return {name: total / unit for name, total in self._sized().items()}
        # Coefficients far out are not taken: see `_fitted`.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._at(point, phase, unit)

    def _at(self, point: Arrays, phase: int, unit: float) -> dict[str, FloatArray]:
        """Return the sums of a phase at the point's coefficients."""
        if phase == PENALTY:
            slope = np.zeros(self.columns.shape[1])
            for at in self._evaluated(point):
                slope += at.penalty_slope(point["inverse"])
            return _fitted({"rows": np.array(self.num_examples / unit), "slope": slope / unit})
        sums = self._likelihood(point)
        if phase == FINAL:
            cluster = np.outer(sums["score"], sums["score"])
            sums |= {"cluster": cluster, **self._final(point)}
        pairs = sums.pop("pairs", None)
        found = {name: total / unit for name, total in sums.items()}
        # There are up to n^2 pairs.
        return _fitted(found if pairs is None else found | {"pairs": pairs / unit / unit})

    def _sized(self) -> dict[str, FloatArray]:
        """Return counts, and sums that tell how large columns, times and weights are.

        What is larger than a public unit is counted by these, few rows as well. With a least cell
        every row therefore counts as being of the root mean square.
        """
        measured = np.column_stack([self.columns, self.times.time, self.weights])
        if self.least > 1:
            measured = np.broadcast_to(root_mean_squares(measured), measured.shape)
        rows, deaths = self.num_examples, int(self.times.event.sum())
        counts = (rows, deaths, len(np.unique(self.codes)), int(rows > 0))
        return {
            "counts": np.array(counts, np.float64),
            "present": (self.columns != 0.0).any(axis=0).astype(np.float64),
            "left_out": np.array(list(self.left_out.values()), np.float64),
            "sizes": size_sums(measured),
        }

    def _evaluated(self, point: Arrays) -> Iterator[AtCoefficients]:
        heaviness = float(point["heaviness"])
        for sets in self.strata:
            yield AtCoefficients.of(sets.seen_at(point["basis"], heaviness), point["gamma"])

    def _likelihood(self, point: Arrays) -> dict[str, FloatArray]:
        width = self.columns.shape[1]
        loglik, score, information = 0.0, np.zeros(width), np.zeros((width, width))
        for at in self._evaluated(point):
            loglik += at.loglik
            score += at.score
            information += at.information
        rows = np.array(float(self.num_examples))
        likelihood = {"loglik": np.array(loglik), "score": score, "information": information}
        return {"rows": rows, **likelihood}

    def _final(self, point: Arrays) -> dict[str, FloatArray]:
        """Return what the table needs: squares of residuals, trends in time and pairs."""
        width = self.columns.shape[1]
        meat, trend, pairs = np.zeros((width, width)), np.zeros((2, TREND + width)), np.zeros(3)
        for at in self._evaluated(point):
            weighted = at.sets.weights[:, None] * at.residuals
            meat += weighted.T @ weighted
            trend += trend_sums(at, float(point["time_size"]))
            own = pairs_of(at.sets, at.sets.columns @ point["gamma"])
            pairs += (own.concordant, own.tied, own.all)
        if self.least > 1 and trend[1, 3] > 0.0:  # there is no test then, however many these are
            trend[1, 1:3] = trend[1, TREND:] = 0.0
            trend[:, 3] = np.maximum(trend[:, 3], self.least)
        return {"meat": meat, "trend": trend, "pairs": pairs}


def trend_sums(at: AtCoefficients, time_size: float) -> FloatArray:
    """Return sums over deaths for the tests of proportional hazards (2, 4 + p).

    By row, for g the time and its logarithm, times in units of ``time_size``: those of w, w g,
    w g^2, of deaths at time 0 (which have no logarithm and count 0), and of w g times Schoenfeld's
    residuals.
    """
    sets = at.sets
    weights, deviations = sets.weights[sets.dead], at.deviations
    times = sets.time[sets.last[sets.dead] - 1] / time_size
    without = times <= 0.0
    found = []
    for values in (times, np.log(np.where(without, 1.0, times))):
        heavy = weights * values
        numbers = [weights.sum(), heavy.sum(), heavy @ values, without.sum()]
        found.append(np.concatenate([np.array(numbers, np.float64), heavy @ deviations]))
    return np.stack(found)


def _fitted(sums: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Bound the sums: coefficients at which one is at the bound are not taken."""
    return {
        name: np.clip(np.nan_to_num(total, nan=-LARGEST), -LARGEST, LARGEST)
        for name, total in sums.items()
    }
