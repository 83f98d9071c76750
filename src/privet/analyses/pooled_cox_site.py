"""What a site sums for a Cox model with one baseline: its part of every risk set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privet.kernel import Told

from .analysis import Arrays, Shapes
from .cox_state import FINAL, LARGEST, SIZES, TREND
from .follow_up import Mask
from .frame import AnalysisError, FloatArray
from .grid import DOUBLINGS, GridTimes
from .points import require_grid, require_point
from .pooled_cox_state import MEANS
from .pooled_cox_sums import MOST_BYTES, MOST_CELLS, moments, traffic
from .sizes import size_sums
from .spans import Spans


@dataclass(frozen=True, eq=False)
class PooledCoxSums:
    """A site's rows on the grid of times.

    Attributes
    ----------
    columns : float64 array (n, p)
    weights : float64 array (n,)
    times : GridTimes
    efron : bool
    left_out : mapping of str to int
    """

    columns: FloatArray
    weights: FloatArray
    times: GridTimes
    efron: bool
    left_out: Mapping[str, int]

    @property
    def num_examples(self) -> int:
        """The complete cases."""
        return len(self.weights)

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums that the point's phase asks for; see `PooledCox`."""
        width, times = self.columns.shape[1], np.size(point.get("places", ()))
        vectors: Shapes = dict.fromkeys(("units", "centre", "gamma"), (width,))
        grids: Shapes = dict.fromkeys(("places", "risk_units"), (times,))
        matrices = {"basis": (width, width), "rates": (times, 2 + 3 * width)}
        matrices["transforms"] = (2, times)
        require_point(point, {**vectors, **grids, **matrices})
        if (sent := traffic(times, width, self.efron)) > MOST_BYTES:
            raise AnalysisError(f"the point's grid asks for {sent} bytes", Told.MESSAGE)
        phase, unit = int(point["phase"]), float(point["unit"])
        if phase == SIZES:
            return {name: total / unit for name, total in self._sized().items()}
        of_rows = np.array(self.num_examples / unit)
        if phase == MEANS:
            means = {name: total / unit for name, total in self._means(point).items()}
            return {"rows": of_rows, **means}
        rows = _Rows.of(self, point)
        sums = rows.residual_sums(point) if phase == FINAL else rows.risk_sums(point, self.efron)
        return {"rows": of_rows} | {
            name: np.clip(np.nan_to_num(total, nan=LARGEST), -LARGEST, LARGEST)
            for name, total in sums.items()
        }

    def _sized(self) -> dict[str, FloatArray]:
        rows = self.num_examples
        own = self.columns - self.columns.mean(axis=0) if rows else self.columns
        measured = np.column_stack([self.columns, own, self.times.cell, self.weights])
        edges = 1 << np.arange(DOUBLINGS, dtype=np.int64)
        varies = self.columns.max(axis=0, initial=-np.inf) > self.columns.min(
            axis=0, initial=np.inf
        )
        counts = (rows, int(self.times.event.sum()), 0, int(rows > 0))
        return {
            "counts": np.array(counts, np.float64),
            "present": varies.astype(np.float64),
            "left_out": np.array(list(self.left_out.values()), np.float64),
            "sizes": size_sums(measured.astype(np.float64)),
            "later": (self.times.cell[:, None] > edges).sum(axis=0).astype(np.float64),
            "off_grid": np.array(float(self.times.off_grid)),
        }

    def _means(self, point: Arrays) -> dict[str, FloatArray]:
        cells = require_grid(float(point["cells"]), 1, MOST_CELLS)
        heaviness = float(point["heaviness"])
        died = np.minimum(self.times.cell[self.times.event], cells)
        weights = self.weights[self.times.event] / heaviness
        return {
            "means": (self.columns / point["units"]).sum(axis=0),
            "deaths": np.bincount(died, minlength=cells + 1).astype(np.float64),
            "death_weights": np.bincount(died, weights, minlength=cells + 1),
        }


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows at a point, sorted by time."""

    columns: FloatArray
    weights: FloatArray
    risk: FloatArray
    dead: Mask
    spans: Spans

    @classmethod
    def of(cls, site: PooledCoxSums, point: Arrays) -> _Rows:
        places = point["places"]
        first = np.searchsorted(places, site.times.entry, side="right")
        last = np.searchsorted(places, site.times.cell, side="right")
        used = np.flatnonzero(first < last)
        order = used[np.argsort(last[used], kind="stable")]
        columns = (site.columns[order] - point["centre"]) @ point["basis"]
        with np.errstate(over="ignore"):
            risk = np.exp(columns @ point["gamma"])
        weights = site.weights[order] / float(point["heaviness"])
        spans = Spans.of(first[order], last[order], len(places))
        return cls(columns, weights, risk, site.times.event[order], spans)

    def risk_sums(self, point: Arrays, efron: bool) -> dict[str, FloatArray]:
        """Return the moments by time, in the point's units, and the sum over the dead."""
        width, units = self.columns.shape[1], point["risk_units"]
        at_risk = np.zeros((len(units), moments(width)))
        dying = np.zeros_like(at_risk)
        heavy = self.weights * self.risk
        ones = np.ones((len(heavy), 1))
        whole = np.concatenate([ones, self.columns], axis=1)
        pairs = [(0, place) for place in range(width + 1)]
        pairs += [(j, k) for j in range(1, width + 1) for k in range(j, width + 1)]
        died = self.spans.last[self.dead] - 1
        for place, (j, k) in enumerate(pairs):
            values = heavy * whole[:, j] * whole[:, k]
            at_risk[:, place] = self.spans.over_rows(values)
            dying[:, place] = np.bincount(died, values[self.dead], minlength=len(units))
        total = self.weights[self.dead] @ self.columns[self.dead]
        sums = {"at_risk": at_risk / units[:, None], "died": total / float(point["unit"])}
        if efron:
            sums["dying"] = dying / units[:, None]
        return sums

    def residual_sums(self, point: Arrays) -> dict[str, FloatArray]:
        """Return squares of residuals and trends in time, as of `CoxSums`, at the pooled rates."""
        width, unit = self.columns.shape[1], float(point["unit"])
        rates, died = point["rates"], self.spans.last[self.dead] - 1
        whole = np.concatenate([rates[:, :1], rates[:, 2 : 2 + width]], axis=1)
        by_row = self.spans.over_times(whole)
        less = np.concatenate([rates[:, 1:2], rates[:, 2 + width : 2 + 2 * width]], axis=1)
        by_row[self.dead] -= less[died]
        drift = self.columns * by_row[:, :1] - by_row[:, 1:]
        residuals = -self.risk[:, None] * drift
        deviations = self.columns[self.dead] - rates[died, 2 + 2 * width :]
        residuals[self.dead] += deviations
        weighted = self.weights[:, None] * residuals
        score = weighted.sum(axis=0)
        times = point["places"][died] / float(point["time_size"])
        weights, without = self.weights[self.dead], times <= 0.0
        values_of = (times, np.log(np.where(without, 1.0, times)), *point["transforms"][:, died])
        trend = np.zeros((len(values_of), TREND + width))
        for place, values in enumerate(values_of):
            heavy = weights * values
            trend[place, :TREND] = weights.sum(), heavy.sum(), heavy @ values, without.sum()
            trend[place, TREND:] = heavy @ deviations
        sums = {"cluster": np.outer(score, score), "meat": weighted.T @ weighted, "trend": trend}
        return {name: total / unit for name, total in sums.items()}
