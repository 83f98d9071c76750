"""What a site sums for a generalised linear model.

The design matrix X (n, p) is taken about public centres and in a public basis, Z = (X - 1 c') B, in
which the information is near the identity: then every sum is near 1 when it is divided by the
number of rows, whatever the units of the columns are, and nothing is lost on a fixed-point grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from privet.core import mapped
from privet.kernel import Told

from .analysis import Arrays, Shapes
from .family import FAMILIES, Family
from .frame import AnalysisError, Codes, FloatArray
from .glm_state import EVALUATE, FIRTH, LARGEST, MEAT, SIZES, START
from .points import require_point

_ROWS = 1 << 15
"""Rows at a time: what is held beside the table."""


def point_shapes(width: int) -> Shapes:
    """Return the shapes of a point's vectors and matrices, of so many columns."""
    vectors: Shapes = dict.fromkeys(("centre", "gamma", "direction"), (width,))
    return {**vectors, "basis": (width, width), "inverse": (width, width)}


@dataclass(frozen=True, eq=False)
class GlmSums:
    """The rows of a site.

    Attributes
    ----------
    matrix : float64 array (n, p)
    outcome, offset, weights : float64 array (n,)
        The weights are above 0.
    family : str
    left_out : mapping of str to int
    cells : tuple of (str, int32 array (n,))
        The categories of each row, by products of factors: see `Design.cells`.
    dropped : tuple of int
        Rows that are left out though no value is missing, by column.
    least : int
        Rows that a cell has at least, or none at all, in what leaves the site.
    """

    matrix: FloatArray
    outcome: FloatArray
    offset: FloatArray
    weights: FloatArray
    family: str
    left_out: Mapping[str, int]
    cells: tuple[tuple[str, Codes], ...] = ()
    dropped: tuple[int, ...] = ()
    least: int = 1

    @property
    def num_examples(self) -> int:
        """The complete cases."""
        return len(self.outcome)

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums that the point's phase asks for; see `Glm`."""
        width = self.matrix.shape[1]
        require_point(point, point_shapes(width))
        phase = int(point["phase"])
        if phase == SIZES:
            return _sized(self, float(point["unit"]))
        phases = {START: _started, EVALUATE: _evaluated, MEAT: _evaluated, FIRTH: _corrected}
        if (make := phases.get(phase)) is None:
            raise AnalysisError(f"the point's phase {phase} is none of a regression", Told.MESSAGE)
        totals: dict[str, FloatArray] = {}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for part in self.parts(point):
                for name, value in make(part, point, width).items():
                    totals[name] = totals.get(name, 0.0) + value
        totals["rows"] = np.array(float(len(self.outcome)))
        if 0 < totals.get("violations", 0.0) < self.least:  # what matters is that there are some
            totals["violations"] = np.array(float(self.least))
        return _fitted(totals, point)

    def parts(self, point: Arrays) -> Iterator[_Part]:
        """Yield the rows, some at a time, in the point's coordinates."""
        centre, basis = point["centre"], point["basis"]
        spread, heaviness = float(point["spread"]), float(point["heaviness"])
        shift = float(point["shift"])
        for start in range(0, max(len(self.outcome), 1), _ROWS):
            rows = slice(start, start + _ROWS)
            yield _Part(
                (self.matrix[rows] - centre) @ basis,
                self.outcome[rows] - shift,
                self.offset[rows],
                self.weights[rows] / heaviness,
                np.log(self.weights[rows]),
                spread,
                float(point["null_spread"]),
                FAMILIES[self.family],
            )
            mapped.release()


@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows, in the point's coordinates."""

    columns: FloatArray
    outcome: FloatArray
    offset: FloatArray
    weights: FloatArray
    log_weights: FloatArray
    spread: float
    null_spread: float
    family: Family

    def products(self, weights: FloatArray) -> FloatArray:
        products: FloatArray = (self.columns * weights[:, None]).T @ self.columns
        return products


def _sized(site: GlmSums, unit: float) -> dict[str, FloatArray]:
    """Count rows and columns that are not 0, and sum the binary logarithms of their sizes.

    They give units for all columns. The logarithm lets any unit pass the fixed-point grid.
    """
    width = site.matrix.shape[1]
    nonzero, sizes = np.zeros(width + 2), np.zeros(width + 2)
    columns = [*site.matrix.T, site.outcome, site.weights]
    for place, of_table in enumerate(columns):
        # A column of a table by rows lies on all of its pages.
        values = np.empty(len(of_table))
        for rows in mapped.blocks(site.matrix):
            values[rows] = of_table[rows]
        there = values[values != 0]
        zeros = len(values) - len(there)
        del values
        np.log2(np.abs(there, out=there), out=there)
        nonzero[place], sizes[place] = len(there), there.sum()
        if 0 < zeros < min(site.least, len(of_table)):
            # Few zeros would be a cell: they count as being of the size of the others.
            nonzero[place] = len(of_table)
            sizes[place] *= len(of_table) / len(there)
    totals = {
        "rows": np.array(float(len(site.outcome))),
        "sites": np.array(float(len(site.outcome) > 0)),
        "present": (nonzero[:width] > 0).astype(np.float64),
        "nonzero": nonzero,
        "sizes": sizes,
        "left_out": np.array([float(count) for count in site.left_out.values()]),
    }
    return {name: total / unit for name, total in totals.items()}


def _started(part: _Part, point: Arrays, width: int) -> dict[str, FloatArray]:
    """Return the sums of the first weighted least squares.

    They are of the working outcome eta + (y - mu) / V(mu) at means mu made of the outcomes alone:
    McCullagh and Nelder, section 2.5. A count's is the posterior mean of a rate whose prior is one
    event at the mean rate: near the count where it is large, near the mean where all are small.
    """
    mean = float(point["mean"])
    offset = part.offset / part.spread
    if part.family.name == "gaussian":
        weights, working = part.weights, part.outcome / part.spread - offset
    else:
        poisson = part.family.name == "poisson"
        counts = (part.outcome + 1.0) / (1.0 + 1.0 / mean)
        start = counts if poisson else np.full_like(part.outcome, mean)
        variance = part.family.variance(start)
        eta = np.log(start) if poisson else np.log(start / (1.0 - start))
        working = eta + (part.outcome - start) / variance - offset
        weights = part.weights * variance
    working_null = working * (part.spread / part.null_spread)
    return {
        "information": part.products(weights),
        "score": part.columns.T @ (weights * working),
        "null_information": weights.sum(),
        "null_score": weights @ working_null,
    }


def _evaluated(part: _Part, point: Arrays, width: int) -> dict[str, FloatArray]:
    """Return score, information and likelihood at coefficients, and of the null model."""
    eta = part.columns @ point["gamma"]
    totals = _of_model(part, eta, part.spread)
    mean = part.family.mean(eta + part.offset / part.spread)
    residual = part.weights * (part.outcome / part.spread - mean)
    variance = part.family.variance(mean)
    totals["information"] = part.products(part.weights * variance)
    totals["score"] = part.columns.T @ residual
    totals["pearson"] = _ratios(residual**2, part.weights * variance).sum()
    totals["outcomes"] = part.outcome.sum()
    totals["log_weights"] = part.log_weights.sum()
    totals["violations"] = _violations(part, part.columns @ point["direction"])
    if int(point["phase"]) == MEAT:
        totals["meat"] = part.products(residual**2)
    null = _of_model(part, np.full_like(eta, float(point["alpha"])), part.null_spread)
    mean = part.family.mean(point["alpha"] + part.offset / part.null_spread)
    totals["null_score"] = part.weights @ (part.outcome / part.null_spread - mean)
    totals["null_information"] = part.weights @ part.family.variance(mean)
    return totals | {f"null_{name}": total for name, total in null.items()}


def _of_model(part: _Part, eta: FloatArray, spread: float) -> dict[str, FloatArray]:
    eta, outcome = eta + part.offset / spread, part.outcome / spread
    mean = part.family.mean(eta)
    return {
        "loglik": part.weights @ part.family.loglik(outcome, eta),
        "deviance": part.weights @ part.family.deviance(outcome, mean),
    }


def _ratios(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return quotients, 0 where the lower is 0: a fitted probability of 1, to the last digit."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _violations(part: _Part, along: FloatArray) -> FloatArray:
    """Count the rows that a step of the linear predictor takes away from their outcome.

    With none, and a likelihood that rises along it for ever, it is a direction of separation:
    Albert and Anderson, Biometrika 71, 1984, 1-10. The size of a step there is 1 in every row that
    it moves, since exp(-eta) falls by e.
    """
    if part.family.name == "gaussian":
        return np.zeros(())
    low = (part.outcome == 0) & (along > 0.1)
    if part.family.name == "binomial":
        return np.asarray((low | ((part.outcome > 0) & (along < -0.1))).sum(), np.float64)
    return np.asarray((low | ((part.outcome > 0) & (np.abs(along) > 0.1))).sum(), np.float64)


def _corrected(part: _Part, point: Arrays, width: int) -> dict[str, FloatArray]:
    """Return what Firth's penalty log det I / 2 adds to the score, sum_i h_i r_i z_i.

    r is 1/2 - mu (binomial) or 1/2 (Poisson), h_i = w_i V_i z_i' I^-1 z_i at the pooled I:
    Firth, Biometrika 80, 1993, 27-38.
    """
    mean = part.family.mean(part.columns @ point["gamma"] + part.offset)
    inside = ((part.columns @ point["inverse"]) * part.columns).sum(axis=1)
    hats = part.weights * part.family.variance(mean) * inside
    slope = 0.5 - mean if part.family.name == "binomial" else np.full_like(mean, 0.5)
    return {"correction": part.columns.T @ (hats * slope)}


_BY_ROOT = ("score", "null_score", "correction")
_BY_ROWS = ("rows", "violations", "log_weights")


def _fitted(totals: dict[str, FloatArray], point: Arrays) -> dict[str, FloatArray]:
    """Divide the sums, and bound them: a sum at the bound is asked for again in other units."""
    unit, level = float(point["unit"]), float(point["level"])
    root = float(np.sqrt(unit * level))
    if "meat" in totals:
        totals["cluster"] = np.outer(totals["score"], totals["score"])
    found: dict[str, FloatArray] = {}
    for name, total in totals.items():
        divisor = unit if name in _BY_ROWS else unit * level
        if name in _BY_ROOT and int(point["phase"]) != START:
            divisor = root
        value = np.nan_to_num(np.asarray(total, np.float64) / divisor, nan=-LARGEST)
        found[name] = np.clip(value, -LARGEST, LARGEST)
    return found
