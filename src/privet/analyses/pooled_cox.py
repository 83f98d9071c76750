"""Cox's proportional hazards with one baseline for all sites: sums over the pooled risk sets.

The partial likelihood of the pooled rows is no sum over sites, since everybody who is at risk when
somebody dies stands in one denominator. It is a function of sums, though: of exp(x'b),
exp(x'b) x and exp(x'b) x x' over those at risk at each time of death and, for Efron's ties, over
those who die then. So each round of Newton's method asks for these at every time of death of a
public grid, which is exact where the recorded times are whole multiples of its unit.

**What it discloses.** The sums over those who die at a time are one person's columns where one
dies, and so are the last sums over those at risk; with secure sums this is so of the pooled rows.
Use `CoxAnalysis`, stratified by site, wherever sites may have baselines of their own. A node
refuses this one unless its operator lets baselines be pooled (``pooled-baseline``), and in the
clear with a ``min-cell`` above 1. Breslow's baseline hazard is made of the same sums, so the table
has it wherever there is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from privet.kernel import Told

from .analysis import Analysis, Arrays, Claim, Shapes
from .cox import CoxAnalysis, counts_of, no_first, rows_of
from .cox_state import EVALUATE, FINAL, LARGEST, SIZES, TREND
from .cox_step import CLOSE, FLOOR, from_sums, lacks_rows, listed
from .cox_table import cox_table
from .frame import AnalysisError, FloatArray, Frame, Levels
from .grid import DOUBLINGS, GridTimes
from .pooled_cox_site import PooledCoxSums
from .pooled_cox_state import MEANS, PooledCoxProgress, begun
from .pooled_cox_sums import (
    MOST_BYTES,
    MOST_CELLS,
    Pooled,
    baseline_hazard,
    moments,
    traffic,
    transforms_of,
)
from .possible import below_0, no_counts, no_grid, no_squares
from .sizes import UNITS, sizes
from .texts import unpacked


@dataclass(frozen=True)
class PooledCox(Analysis[PooledCoxProgress]):
    """A Cox model with one baseline for all sites.

    Attributes
    ----------
    time_column, event_column, entry_column, event_level, formula, ties, weight_column, id_column
        As of `CoxAnalysis`.
    time_unit : float
        The grid's step; times that are no whole multiples are moved up to the next one.
    """

    name: ClassVar[str] = "cox-pooled"
    progress: ClassVar[type[Any]] = PooledCoxProgress

    time_column: str = ""
    event_column: str = ""
    entry_column: str = ""
    event_level: str = ""
    formula: str = ""
    ties: str = "efron"
    weight_column: str = ""
    id_column: str = ""
    time_unit: float = 1.0

    @property
    def _like(self) -> CoxAnalysis:
        """The model stratified by site of the same columns."""
        return CoxAnalysis(
            self.time_column,
            self.event_column,
            self.entry_column,
            self.event_level,
            self.formula,
            self.ties,
            self.weight_column,
            id_column=self.id_column,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, as of `CoxAnalysis`."""
        if not (self.time_unit > 0.0 and np.isfinite(self.time_unit)):
            raise AnalysisError("time-unit must be above 0")
        return self._like.columns

    def over(self, names: Sequence[str]) -> Self:
        """Return the analysis with its formula written out, of a table with these columns."""
        return replace(self, formula=self._like.over(names).formula)

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns of texts, and those that the formula calls categories."""
        return self._like.factors(frame)

    def sums(self, frame: Frame, levels: Levels) -> PooledCoxSums:
        """Return what a site sums of its complete cases (raises ``AnalysisError``)."""
        if not self.formula:
            return self.over(frame.names).sums(frame, levels)
        matrix, weights, times, _, left_out = self._like.rows(frame, levels)
        on_grid = GridTimes.of(times, self.time_unit)
        return PooledCoxSums(matrix, weights, on_grid, self.ties == "efron", left_out)

    def guarded(self, sums: PooledCoxSums, least: int) -> PooledCoxSums:
        """Refuse: between two times of death few leave a site's risk set."""
        raise AnalysisError(
            f"min-cell = {least}: sums over those at risk at each time give single records: use "
            "baseline = site, or secure-sum",
            Told.SMALL_CELL,
        )

    def saturates(self, point: Arrays) -> bool:
        """Return whether coefficients of the coordinator's are in the point."""
        return int(point["phase"]) not in (SIZES, MEANS)

    def begin(self, levels: Levels) -> PooledCoxProgress:
        """Return the state before the first round (raises ``AnalysisError``)."""
        return begun(self._like.begin(levels))

    def point(self, state: PooledCoxProgress) -> dict[str, FloatArray]:
        """Return the phase and unit, and where there are any the grid, basis and coefficients."""
        point = {"phase": np.array(float(state.phase)), "unit": np.array(state.unit)}
        if state.phase == SIZES:
            return point
        point["heaviness"] = np.array(state.heaviness)
        if state.phase == MEANS:
            return point | {"cells": np.array(float(state.cells)), "units": state.units}
        point |= {"places": state.places, "centre": state.centre, "basis": state.basis}
        if state.phase == FINAL:
            size = np.array(state.time_size)
            transforms = transforms_of(state.dying, state.death_weights, state.null_at_risk)
            point |= {"gamma": state.held, "rates": state.rates, "time_size": size}
            return point | {"transforms": transforms}
        return point | {"gamma": state.gamma, "risk_units": state.risk_units}

    def shapes(self, state: PooledCoxProgress) -> Shapes:
        """Return the shapes of the sums of the state's phase, p columns and k times of death."""
        width, square = len(state.gamma), (len(state.gamma),) * 2
        if state.phase == SIZES:
            return {
                "counts": (4,),
                "present": (width,),
                "left_out": state.left_out.shape,
                "sizes": (2 * width + 2, len(UNITS)),
                "later": (DOUBLINGS,),
                "off_grid": (),
            }
        if state.phase == MEANS:
            grid = (state.cells + 1,)
            return {"rows": (), "means": (width,), "deaths": grid, "death_weights": grid}
        if state.phase == FINAL:
            return {"rows": (), "cluster": square, "meat": square, "trend": (4, TREND + width)}
        by_time = (len(state.places), moments(width))
        shapes: dict[str, tuple[int, ...]] = {"rows": (), "at_risk": by_time, "died": (width,)}
        return shapes | ({"dying": by_time} if self.ties == "efron" else {})

    def step(self, state: PooledCoxProgress, totals: Arrays) -> PooledCoxProgress:
        """Return the state after a round, as `Cox` does."""
        if state.phase == SIZES:
            return _sized(state, totals, self.ties == "efron")
        if lacks_rows(state, totals):
            return replace(state, rounds=state.rounds + 1)
        if state.phase == MEANS:
            return _with_means(state, totals, self.ties == "efron")
        if state.phase == FINAL:
            whole = state.whole
            return replace(
                state,
                rounds=state.rounds + 1,
                meat=totals["meat"] * whole * state.heaviness,
                cluster=totals["cluster"] * whole * state.heaviness,
                trend=totals["trend"] * whole,
                done=True,
            )
        return _with_risks(state, totals)

    def rows_said(self, state: PooledCoxProgress, sums: Arrays) -> float:
        """Return the complete cases."""
        return rows_of(state, sums)

    def impossible(self, state: PooledCoxProgress, claim: Claim) -> str:
        """Say what the counts, weights at risk and squares of a site cannot be."""
        sums = claim.sums
        if state.phase == SIZES:
            later = sums["later"] * state.unit
            alone = claim.sites == 1  # of all the analysis says what to set
            return no_first(state, claim) or (no_grid(later, MOST_CELLS) if alone else "")
        if state.phase == MEANS:
            deaths = sums["deaths"] * state.unit
            return (
                no_counts("deaths", deaths)
                or no_counts("deaths", deaths.sum(), claim.rows)
                or below_0("death_weights", sums["death_weights"])
            )
        if state.phase == FINAL:
            return no_squares("meat", sums["meat"]) or no_squares("cluster", sums["cluster"])
        found = [below_0(name, sums[name][:, 0]) for name in ("at_risk", "dying") if name in sums]
        return next(filter(None, found), "")

    def by_site(
        self, before: PooledCoxProgress, after: PooledCoxProgress, sites: Sequence[Arrays]
    ) -> PooledCoxProgress:
        """Keep each site's counts; the information is no sum over sites, so there is no test."""
        if before.phase == SIZES:
            return replace(after, site_counts=counts_of(before, sites))
        return after

    def said(self, before: PooledCoxProgress, after: PooledCoxProgress) -> str:
        """Return, before the first sums over those at risk, how long they are."""
        if before.phase != MEANS or after.phase == MEANS:
            return ""
        times, width = len(after.places), len(after.gamma)
        sent = traffic(times, width, self.ties == "efron")
        return (
            f"each site sends {sent:,} bytes in each of the next rounds: sums over those at risk "
            f"at {times} times of the event, of {width} columns"
        )

    def table(self, state: PooledCoxProgress) -> dict[str, Any]:
        """Return what `CoxAnalysis` has but for the concordance, whose pairs are over sites."""
        settings: dict[str, Any] = {
            "format": 1,
            "kind": self.name,
            "time": self.time_column,
            "event": self.event_column,
            "event_level": self._like.times.event_level(json.loads(state.levels.tobytes())),
            "entry": self.entry_column,
            "strata": "",
            "weights": self.weight_column,
            "formula": self.formula,
            "ties": self.ties,
            "firth": False,
        }
        table = settings | cox_table(state, self.columns, weighted=bool(self.weight_column))
        table["baseline"] = {
            "centre": state.centre.tolist(),
            "times": (state.places * self.time_unit).tolist(),
            "cumulative_hazard": baseline_hazard(state.death_weights, state.at_risk).tolist(),
        }
        if state.off_grid:
            table["notes"].append(
                f"{state.off_grid} rows have times that are not on the grid of "
                f"{self.time_unit:g}: they are moved up to it, entries down"
            )
        return table


def _sized(state: PooledCoxProgress, totals: Arrays, efron: bool) -> PooledCoxProgress:
    """Return the state with units of everything, and the grid's end."""
    counts = np.rint(totals["counts"] * state.unit)
    rows, deaths = float(counts[0]), float(counts[1])
    if not rows:
        raise AnalysisError("nobody is at risk: no site has a complete row")
    if not deaths:
        raise AnalysisError("event-column: the event occurs at no site")
    counts[2] = 1.0
    width = len(state.gamma)
    found = sizes(totals["sizes"] * state.unit, rows)
    raw, own = found[:width], found[width : 2 * width]
    cells = 1 << int((np.rint(totals["later"] * state.unit) > 0).sum())
    times = min(cells + 1, int(deaths))
    sent = traffic(times, width, efron)
    if cells > MOST_CELLS or sent > MOST_BYTES:
        raise AnalysisError(
            f"time-unit: a grid of {cells} times, {sent / 1e6:.1f} MB from a site in a round for "
            f"up to {times} times of death: set a larger one, or take strata by site"
        )
    scales = np.where(own > 0.0, own, raw)
    if not scales.all():
        names = np.array(unpacked(state.names))[scales == 0.0]
        raise AnalysisError(f"{listed(names)} is 0 in all rows: leave it out")
    return replace(
        state,
        phase=MEANS,
        rounds=state.rounds + 1,
        unit=2.0 ** round(np.log2(rows)),
        heaviness=float(found[-1]),
        time_size=float(found[-2]) or 1.0,
        units=raw,
        sizes=scales,
        basis=np.diag(1.0 / scales),
        counts=counts,
        present=np.rint(totals["present"] * state.unit),
        left_out=np.rint(totals["left_out"] * state.unit),
        cells=cells,
        off_grid=round(float(totals["off_grid"]) * state.unit),
    )


def _with_means(state: PooledCoxProgress, totals: Arrays, efron: bool) -> PooledCoxProgress:
    """Return the state with the columns' centre and the times of death."""
    deaths = np.rint(totals["deaths"] * state.unit)
    places = np.flatnonzero(deaths)
    heavy = totals["death_weights"][places] * state.unit
    return replace(
        state,
        phase=EVALUATE,
        rounds=state.rounds + 1,
        centre=totals["means"] * state.unit / state.counts[0] * state.units,
        places=places.astype(np.float64),
        deaths=deaths[places] if efron else np.ones(len(places)),
        dying=deaths[places],
        death_weights=heavy,
        risk_units=np.full(len(places), state.unit),
    )


def _with_risks(state: PooledCoxProgress, totals: Arrays) -> PooledCoxProgress:
    """Return the state after the pooled risk sets' sums at ``gamma``.

    The next sums of each time are asked for in units near these, so that late times, at which few
    are at risk, keep their digits on a fixed-point grid.
    """
    at_risk = totals["at_risk"]
    units = state.risk_units[:, None]
    dying = totals["dying"] * units if "dying" in totals else np.zeros_like(at_risk)
    unit = state.unit
    width = len(state.gamma)
    inside = np.abs(at_risk).max() < LARGEST / 2 and at_risk[:, 0].min() > 0.0
    if inside:
        deaths, weights = state.deaths, state.death_weights
        pooled = Pooled(at_risk * units, dying, deaths, weights, totals["died"] * unit)
        loglik, score, information = pooled.likelihood(state.gamma)
        sizes_of_risk = at_risk[:, 0] * state.risk_units
        if not state.gamma.any():
            state = replace(state, null_at_risk=sizes_of_risk)
        state = replace(
            state, rates=pooled.rates, at_risk=sizes_of_risk, risk_units=_powers(sizes_of_risk)
        )
        likelihood = {"loglik": np.array(loglik / unit), "score": score / unit}
        likelihood["information"] = information / unit
    else:
        bound = np.full(width, LARGEST)
        likelihood = {"loglik": -bound[0], "score": bound, "information": np.diag(bound)}
    last = state.gap
    following = from_sums(state, likelihood, firth=False)
    close = following.gap < CLOSE or (following.gap < FLOOR and following.gap > last / 2.0)
    evaluated = inside and following.halvings == 0 and bool(following.null_information.any())
    return replace(following, phase=FINAL if close and evaluated else EVALUATE)


def _powers(values: FloatArray) -> FloatArray:
    result: FloatArray = 2.0 ** np.rint(np.log2(values))
    return result
