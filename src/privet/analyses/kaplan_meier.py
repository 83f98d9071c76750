"""Kaplan-Meier curves by group and log-rank tests, of sums of counts on a public grid of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .analysis import Analysis, Arrays, Claim, Progress, Shapes
from .design import codes_of, complete_cases
from .follow_up import (
    UNUSABLE,
    FollowUpColumns,
    add_left_out,
    counts_by_column,
    late_rows,
    left_out_notes,
    own_strata,
)
from .frame import AnalysisError, FloatArray, Frame, Levels
from .grid import DOUBLINGS, GridTimes
from .kaplan_meier_site import MOST_CELLS, CurveSums, require_cells
from .kaplan_meier_table import SurvivalCurves, curves_table
from .log_rank import LogRankSums
from .noised_curves import NoisedCurves
from .possible import no_counts, no_grid, no_later, no_left_out, no_squares
from .sizes import FIRST_UNIT
from .texts import packed, unpacked


@dataclass(slots=True)
class CurvesState(Progress):
    """The sums so far.

    Attributes
    ----------
    groups, event_level : uint8 arrays
        Packed texts: the agreed groups, and the category that is the event.
    left_out : float64 array
        Rows that are left out: of all, and by column.
    rows : int
        All that are used, as the first round counts them.
    unit : float
        What the next sums are divided by.
    cells : int
        The grid ends at so many units; 0 while unknown.
    counts : float64 array (3, g, cells + 1)
        Events, censored rows and entries by group and time.
    excess, variance : float64 arrays (g,), (g, g)
        The log-rank sums of the sites' own strata.
    off_grid : int
    """

    groups: NDArray[np.uint8]
    event_level: NDArray[np.uint8]
    left_out: FloatArray
    rows: int
    unit: float
    cells: int
    counts: FloatArray
    excess: FloatArray
    variance: FloatArray
    off_grid: int


@dataclass(frozen=True)
class KaplanMeierAnalysis(Analysis[CurvesState]):
    """Curves of survival by group, and whether they differ.

    The sites send d (events), c (censored) and, with times of entry, those who enter, by group at
    each whole multiple of ``time_unit``; n (at risk) follows from these. The curves are exactly
    those of the pooled rows where the recorded times are whole multiples; others are moved up to
    the next one, entries down, and the table says how many. A first round counts the rows and,
    without a public ``horizon``, those who leave after 2^k units for each k: the next power of two
    bounds the grid. These counts say nothing that the curves do not say anyway, and one round of
    them replaces a search. With a horizon, later times are censored there.

    Attributes
    ----------
    time_column, event_column, entry_column, event_level : str
        See `FollowUpColumns`.
    group_column : str
        Curves by its categories; "" is one curve.
    strata_column : str
        Strata within sites for the stratified log-rank test, whose strata are the sites' own.
    time_unit : float
        The grid's step, in the units of the time column.
    horizon : float
        The largest time, public; 0 finds it.
    restriction : float
        Until when mean survival is taken; 0 is the smallest over groups of the largest time.
    """

    name: ClassVar[str] = "kaplan-meier"
    progress: ClassVar[type[Any]] = CurvesState

    time_column: str = ""
    event_column: str = ""
    entry_column: str = ""
    event_level: str = ""
    group_column: str = ""
    strata_column: str = ""
    time_unit: float = 1.0
    horizon: float = 0.0
    restriction: float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        if not (self.time_unit > 0.0 and np.isfinite(self.time_unit)):
            raise AnalysisError("time-unit must be above 0")
        units = self.horizon / self.time_unit
        if np.isnan(units) or units > MOST_CELLS:
            raise AnalysisError(f"time-unit: the horizon is over {MOST_CELLS} of it")
        if self.horizon and self.last < 1:
            raise AnalysisError("horizon must be at least one time-unit, or 0 to find it")
        extra = tuple(name for name in (self.group_column, self.strata_column) if name)
        return tuple(dict.fromkeys((*self.times.names, *extra)))

    @property
    def times(self) -> FollowUpColumns:
        """The columns of the times."""
        return FollowUpColumns(
            self.time_column, self.event_column, self.entry_column, self.event_level
        )

    @property
    def last(self) -> int:
        """The cell of the horizon; 0 where it is unknown."""
        return int(np.floor(self.horizon / self.time_unit * (1.0 + 1e-12)))

    def factors(self, frame: Frame) -> tuple[str, ...]:
        event = (self.event_column,) if self.event_column in frame.factors else ()
        return (*event, self.group_column) if self.group_column else event

    def sums(self, frame: Frame, levels: Levels) -> CurveSums:
        complete, left_out = complete_cases(frame, self.columns)
        whole = frame.taken(complete)
        times, used, unusable = self.times.read(whole, levels)
        add_left_out(left_out, unusable)
        whole = whole.taken(used)
        groups = np.zeros(whole.rows, np.int32)
        if self.group_column:
            groups = codes_of(whole, self.group_column, levels)
        strata = own_strata(whole, self.strata_column, "strata-column")
        count = max(len(levels.get(self.group_column, ())), 1)
        require_cells(self.last, count)
        on_grid = GridTimes.of(times, self.time_unit, self.last)
        followed = on_grid.entry < on_grid.cell
        after = {}
        if self.entry_column:  # who enter after the horizon
            after = {self.entry_column: int((~followed).sum())}
        add_left_out(left_out, after)
        return CurveSums(
            on_grid.taken(followed),
            groups[followed],
            strata[followed],
            count,
            self.last,
            bool(self.entry_column),
            left_out,
            (
                *(*after.values(), *unusable.values()),
                *late_rows(frame, self.columns, self.time_column),
            ),
        )

    def guarded(self, sums: CurveSums, least: int) -> CurveSums:
        """Merge intervals of the grid; see `CurveSums.merged`."""
        return sums.merged(least)

    def noised(self, levels: Levels, ranges: Mapping[str, tuple[float, float]]) -> NoisedCurves:
        """Return the curves by one noised sum (raises ``AnalysisError``)."""
        if self.group_column and self.group_column not in levels:
            raise AnalysisError(
                f"group-column: noised curves need the categories of {self.group_column!r} in a "
                "public schema"
            )
        if self.strata_column:
            raise AnalysisError("strata-column: noised curves have no log-rank test to stratify")
        return NoisedCurves(
            *(self.times, levels, self.group_column, self.time_unit, self.last, self.restriction)
        )

    def begin(self, levels: Levels) -> CurvesState:
        groups = tuple(levels[self.group_column]) if self.group_column else ()
        named = self.times.event_level(levels)
        count = max(len(groups), 1)
        return CurvesState(
            gap=float("nan"),
            done=False,
            groups=packed(groups),
            event_level=packed([named]),
            left_out=np.zeros(1 + len(self.columns)),
            rows=0,
            unit=FIRST_UNIT,
            cells=0,
            counts=np.zeros((3, count, 0)),
            excess=np.zeros(count),
            variance=np.zeros((count, count)),
            off_grid=0,
        )

    def point(self, state: CurvesState) -> dict[str, FloatArray]:
        unit = {"unit": np.array(state.unit)}
        return unit | {"cells": np.array(float(state.cells))} if state.cells else unit

    def shapes(self, state: CurvesState) -> Shapes:
        if not state.cells:
            later = 0 if self.horizon else DOUBLINGS
            return {"rows": (), "later": (later,), "left_out": (1 + len(self.columns),)}
        groups = len(state.excess)
        grid = (groups, state.cells + 1)
        entries = grid if self.entry_column else (0, 0)
        return {
            "events": grid,
            "censored": grid,
            "entries": entries,
            "off_grid": (),
            "excess": (groups,),
            "variance": (groups, groups),
        }

    def step(self, state: CurvesState, totals: Arrays) -> CurvesState:
        if not state.cells:
            return self._bounded(state, totals)
        leave = (totals["events"].sum() + totals["censored"].sum()) * state.unit
        if round(float(leave)) != state.rows:  # a site was away
            return state
        counts = np.zeros((3, *totals["events"].shape))
        for place, kind in enumerate(("events", "censored", "entries")):
            if totals[kind].size:
                counts[place] = np.rint(totals[kind] * state.unit)
        return replace(
            state,
            gap=0.0,
            done=True,
            counts=counts,
            excess=totals["excess"] * state.unit,
            variance=totals["variance"] * state.unit,
            off_grid=round(float(totals["off_grid"]) * state.unit),
        )

    def rows_said(self, state: CurvesState, sums: Arrays) -> float:
        """Return the complete cases, all of whom leave at some time."""
        said = sums["events"].sum() + sums["censored"].sum() if state.cells else sums["rows"]
        return float(said) * state.unit

    def impossible(self, state: CurvesState, claim: Claim) -> str:
        """Say what the counts of a site cannot be."""
        sums = {name: array * state.unit for name, array in claim.sums.items()}
        alone = claim.sites == 1  # of all the analysis says what to set
        if not state.cells:
            return (
                no_counts("rows", sums["rows"])
                or no_later(sums["later"], claim.rows)
                or no_left_out(sums["left_out"])
                or (no_grid(sums["later"], MOST_CELLS // len(state.excess)) if alone else "")
            )
        return (
            no_counts("events", sums["events"])
            or no_counts("censored", sums["censored"])
            or no_counts("entries", sums["entries"])
            or no_counts("entries", sums["entries"].sum(), claim.rows)
            or no_counts("off_grid", sums["off_grid"])
            or no_squares("variance", claim.sums["variance"])
        )

    def _bounded(self, state: CurvesState, totals: Arrays) -> CurvesState:
        """Return the state with the grid's end and the unit of its sums."""
        rows = round(float(totals["rows"]) * state.unit)
        if not rows:
            raise AnalysisError("nobody is at risk: no site has a complete row")
        later = np.rint(totals["later"] * state.unit)
        cells = self.last or 1 << int((later > 0).sum())
        require_cells(cells, len(state.excess))
        left_out = np.rint(totals["left_out"] * state.unit)
        unit = 2.0 ** round(np.log2(rows))
        return replace(state, rows=rows, unit=unit, cells=cells, left_out=left_out)

    def table(self, state: CurvesState) -> dict[str, Any]:
        curves = SurvivalCurves(
            groups=tuple(unpacked(state.groups)),
            times=np.arange(state.cells + 1.0) * float(self.time_unit),
            counts=state.counts,
            own=LogRankSums(state.excess, state.variance),
            off_grid=state.off_grid,
            time_unit=self.time_unit,
            restriction=self.restriction,
        )
        left_out = counts_by_column(self.columns, state.left_out)
        values = f"{UNUSABLE} or an entry after the last" if self.entry_column else UNUSABLE
        table = curves_table(curves)
        table["notes"] = [*left_out_notes(left_out, values), *table["notes"]]
        return {
            "format": 1,
            "kind": self.name,
            "time": self.time_column,
            "event": self.event_column,
            "event_level": unpacked(state.event_level)[0],
            "entry": self.entry_column,
            "group": self.group_column,
            "left_out": left_out,
            **table,
        }
