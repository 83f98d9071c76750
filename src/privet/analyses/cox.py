"""Cox's proportional hazards, stratified by site: sums over the sites' own partial likelihoods.

    l(b) = sum_sites sum_strata l_stratum(b),   hazard_i(t) = h_stratum(t) exp(x_i' b)

Each site's baseline hazard is its own, so the likelihood is exactly that of the pooled rows with
strata = site (Cox, Journal of the Royal Statistical Society B 34, 1972, 187-220; Kalbfleisch and
Prentice, The Statistical Analysis of Failure Time Data, section 4.4), and Newton's method on the
sums ends where the pooled rows' estimate is. No baseline hazard leaves a site.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from .analysis import Analysis, Arrays, Claim, Shapes
from .column_cells import Cells
from .cox_site import CoxSums
from .cox_state import FINAL, PENALTY, SIZES, TREND, CoxProgress, fresh
from .cox_step import from_sizes, from_slope, from_sums, lacks_rows
from .cox_table import cox_table
from .design import Design, column_of, complete_cases, undefined
from .disclosure import (
    require_few_terms,
    require_large_cells,
    require_large_left_out,
    require_large_pairs,
    require_large_patterns,
    require_large_risk_sets,
    require_large_strata,
)
from .follow_up import (
    LATE,
    FollowUp,
    FollowUpColumns,
    add_left_out,
    are_many,
    late_rows,
    own_strata,
)
from .formula import Formula, quoted, read_formula
from .frame import AnalysisError, Codes, FloatArray, Frame, Levels
from .possible import below_0, no_counts, no_later, no_left_out, no_product, no_squares
from .site_tests import against_pooled
from .sizes import UNITS
from .small_cells import MOST_CODES


@dataclass(frozen=True)
class CoxAnalysis(Analysis[CoxProgress]):
    """A Cox model, stratified by site.

    Attributes
    ----------
    time_column, event_column, entry_column, event_level : str
        See `FollowUpColumns`.
    formula : str
        The terms: ``age + sex``, also ``died ~ age + sex``; see `formula`. There is no intercept,
        as the baselines hold it. "" is every column that is not named otherwise: `over` writes it.
    ties : str
        ``efron`` or ``breslow``, for deaths at one time.
    weight_column : str
        Weights of rows, as of so many equal ones; rows, not weights, are counted.
    strata_column : str
        Strata within the sites, whose categories are the site's own.
    id_column : str
        Whose row it is; no term unless the formula names it.
    firth : bool
        Whether log det I / 2 is added to the likelihood, which gives finite estimates where nobody
        of a category dies, and less bias where few do: Heinze and Schemper, Biometrics 57, 2001,
        114-119. Two sums a step.
    """

    name: ClassVar[str] = "cox"
    progress: ClassVar[type[Any]] = CoxProgress

    time_column: str = ""
    event_column: str = ""
    entry_column: str = ""
    event_level: str = ""
    formula: str = ""
    ties: str = "efron"
    weight_column: str = ""
    strata_column: str = ""
    id_column: str = ""
    firth: bool = False

    @property
    def times(self) -> FollowUpColumns:
        """The columns of the times."""
        return FollowUpColumns(
            self.time_column, self.event_column, self.entry_column, self.event_level
        )

    @property
    def _others(self) -> tuple[str, ...]:
        """The columns that are no terms."""
        named = (*self.times.names, self.weight_column, self.strata_column)
        return tuple(name for name in named if name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads: times, weights, strata, terms; all without a formula."""
        if self.ties not in ("efron", "breslow"):
            raise AnalysisError(f"ties is {self.ties!r}: efron or breslow")
        if not self.formula:
            return ()
        return tuple(dict.fromkeys((*self._others, *self._read().columns)))

    def over(self, names: Sequence[str]) -> Self:
        """Return the analysis with its formula written out, of a table with these columns."""
        if self.formula:
            return self
        named = {*self._others, self.id_column, LATE}
        return replace(
            self, formula=" + ".join(quoted(name) for name in names if name not in named)
        )

    def _read(self) -> Formula:
        """Return the formula with the outcome, and the intercept that categories are coded beside.

        The baselines hold the intercept, whatever the formula says of it.
        """
        outcome, tilde, terms = self.formula.rpartition("~")
        left = outcome.strip()
        if tilde and left not in ("", self.event_column, quoted(self.event_column)):
            raise AnalysisError(
                f"formula: the outcome is {left!r}, and event-column is {self.event_column!r}"
            )
        read = read_formula(f"{quoted(self.event_column)} ~ {terms}")
        if named := [name for name in read.columns if name == self.time_column]:
            raise AnalysisError(f"formula: {named[0]!r} is the time and a term; leave one out")
        return replace(read, intercept=True)

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns of texts, and those that the formula calls categories; no strata."""
        if self.formula:
            read = self._read()
            used, categories = read.columns, read.categories
        else:
            own = {*self._others, self.id_column, LATE} - {self.event_column}
            used, categories = tuple(name for name in frame.names if name not in own), ()
        return tuple(name for name in used if name in frame.factors or name in categories)

    def design(self, levels: Levels) -> Design:
        """Return the design, whose first column is the intercept (raises ``AnalysisError``)."""
        if not self.formula:
            raise AnalysisError("formula is empty: name the terms, such as age + sex")
        design = Design.of(self._read(), levels)
        if len(design.names) < 2:
            raise AnalysisError("formula: it has no column beside the intercept")
        return design

    def sums(self, frame: Frame, levels: Levels) -> CoxSums:
        """Return what a site sums of its complete cases (raises ``AnalysisError``)."""
        if not self.formula:
            return self.over(frame.names).sums(frame, levels)
        used, weights, times, codes, left_out, dropped = self._used(frame, levels)
        design = self.design(levels)
        matrix, efron = design.matrix(used)[:, 1:], self.ties == "efron"
        cells = tuple(design.cells(used))
        dropped = (*late_rows(frame, self.columns, self.time_column), *dropped)
        return CoxSums.of(matrix, weights, times, codes, efron, left_out, cells, dropped)

    def rows(
        self, frame: Frame, levels: Levels
    ) -> tuple[FloatArray, FloatArray, FollowUp, Codes, dict[str, int]]:
        """Return the design (n, p), weights, times and strata of complete cases; rows left out.

        Raises
        ------
        AnalysisError
            For a column that is not there or cannot be used.
        """
        used, weights, times, codes, left_out, _ = self._used(frame, levels)
        return self.design(levels).matrix(used)[:, 1:], weights, times, codes, left_out

    def _used(
        self, frame: Frame, levels: Levels
    ) -> tuple[Frame, FloatArray, FollowUp, Codes, dict[str, int], tuple[int, ...]]:
        """Return complete cases that can be used, with weights above 0: also their weights, times
        and strata; rows left out, and how many of these are so for another reason than a missing
        value."""
        complete, left_out = complete_cases(frame, self.columns)
        used = frame.taken(complete)
        times, usable, unusable = self.times.read(used, levels)
        add_left_out(left_out, unusable)
        used, dropped = used.taken(usable), tuple(unusable.values())
        weights = np.ones(used.rows)
        if self.weight_column:
            weights = column_of(used, self.weight_column)
            if 4 * int((weights < 0.0).sum()) > used.rows:
                raise AnalysisError(f"weight-column: {self.weight_column!r} has negative weights")
            heavy = weights > 0.0
            without = int((~heavy).sum())
            add_left_out(left_out, {self.weight_column: without})
            used, weights, times = used.taken(heavy), weights[heavy], times.taken(heavy)
            dropped = (*dropped, without)
        fine = np.ones(used.rows, bool)
        for name, bad, text in undefined(self._read(), used):
            if are_many(bad):
                raise AnalysisError(text)
            count = int((fine & bad).sum())
            add_left_out(left_out, {name: count})
            dropped, fine = (*dropped, count), fine & ~bad
        used, weights, times = used.taken(fine), weights[fine], times.taken(fine)
        codes = own_strata(used, self.strata_column, "strata-column")
        return used, weights, times, codes, left_out, dropped

    def guarded(self, sums: CoxSums, least: int) -> CoxSums:
        """Refuse terms, or events, that show few records (raises ``AnalysisError``)."""
        require_large_left_out(sums.dropped, least)
        require_few_terms(sums.columns.shape[1], sums.num_examples)
        events, entry = sums.times.event.astype(np.float64), sums.times.entry
        terms = [(f"term {place + 1}", column) for place, column in enumerate(sums.coded.T)]
        named = [*terms, ("the weights", sums.weights), ("the event", events)]
        came = np.where(np.isfinite(entry), entry, -1.0)
        times = (("the time", sums.times.time), ("the entry", came))
        cells = require_large_cells([*named, *times], least)[: len(named)]
        # At many times of death the score does not tell the deaths in a category.
        few = len(np.unique(sums.times.time[sums.times.event])) <= MOST_CODES
        require_large_pairs(cells if few else cells[:-1], sums.cells, least)
        if sums.codes.any():
            require_large_strata(sums.codes, cells, sums.cells, least)
        of_cells = [(name, codes.astype(np.float64)) for name, codes in sums.cells]
        shown = [
            *(one.codes for _, one in cells[: len(terms)]),
            *(codes for _, codes in sums.cells),
        ]
        require_large_risk_sets([*terms, *of_cells], shown, sums.times, sums.codes, least)
        strata = ("strata-column", Cells(sums.codes, whole=True))
        require_large_patterns([*cells[:-1], strata], cells[-1] if few else None, least)
        return replace(sums, least=least)

    def saturates(self, point: Arrays) -> bool:
        """Return whether coefficients of the coordinator's are in the point."""
        return int(point["phase"]) != SIZES

    def begin(self, levels: Levels) -> CoxProgress:
        """Return the state before the first round (raises ``AnalysisError``)."""
        design = self.design(levels)
        if event := levels.get(self.event_column, ()):
            self.times.place_of_event(event)
        labels = [""] * len(design.names)
        for term, places in design.terms.items():
            for place in places:
                labels[place] = term
        return fresh(design.names[1:], labels[1:], levels, len(self.columns))

    def point(self, state: CoxProgress) -> dict[str, FloatArray]:
        """Return the phase and unit, and where there are any the basis and coefficients."""
        point = {"phase": np.array(float(state.phase)), "unit": np.array(state.unit)}
        if state.phase == SIZES:
            return point
        point |= {
            "heaviness": np.array(state.heaviness),
            "time_size": np.array(state.time_size),
            "basis": state.basis,
            "gamma": state.gamma,
        }
        if state.phase == PENALTY:
            point["inverse"] = np.linalg.inv(state.information / state.whole)
        return point

    def shapes(self, state: CoxProgress) -> Shapes:
        """Return the shapes of the sums of the state's phase, p columns of the design."""
        width = len(state.gamma)
        if state.phase == SIZES:
            return {
                "counts": (4,),
                "present": (width,),
                "left_out": state.left_out.shape,
                "sizes": (width + 2, len(UNITS)),
            }
        if state.phase == PENALTY:
            return {"rows": (), "slope": (width,)}
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (),
            "loglik": (),
            "score": (width,),
            "information": (width, width),
        }
        if state.phase == FINAL:
            shapes |= {
                "cluster": (width, width),
                "meat": (width, width),
                "trend": (2, TREND + width),
                "pairs": (3,),
            }
        return shapes

    def step(self, state: CoxProgress, totals: Arrays) -> CoxProgress:
        """Return the state after a round (raises ``AnalysisError`` where there is no maximum).

        Sums of other rows than those of the first round, since a site was away, are asked for
        again: likelihoods of different rows cannot be compared.
        """
        if state.phase == SIZES:
            return from_sizes(state, totals)
        if lacks_rows(state, totals):
            return replace(state, rounds=state.rounds + 1)
        if state.phase == PENALTY:
            return from_slope(state, totals)
        return from_sums(state, totals, self.firth)

    def rows_said(self, state: CoxProgress, sums: Arrays) -> float:
        """Return the complete cases."""
        return rows_of(state, sums)

    def impossible(self, state: CoxProgress, claim: Claim) -> str:
        """Say what the counts and the information of a site cannot be."""
        sums = claim.sums
        if state.phase == SIZES:
            return no_first(state, claim)
        found = [no_squares(name, sums[name]) for name in ("information", "meat") if name in sums]
        if "cluster" in sums:
            found += [no_squares("cluster", sums["cluster"]), below_0("pairs", sums["pairs"])]
            if claim.sites == 1:
                found.append(no_product("cluster", sums["cluster"], sums["score"], state.unit))
        return next(filter(None, found), "")

    def by_site(
        self, before: CoxProgress, after: CoxProgress, sites: Sequence[Arrays]
    ) -> CoxProgress:
        """Keep each site's counts, and at the end its score test of the pooled coefficients.

        At a penalised estimate the scores do not add up to 0, and there is no test.
        """
        if before.phase == SIZES:
            return replace(after, site_counts=counts_of(before, sites))
        if before.phase != FINAL or not after.done:
            return after
        own = ((site["score"] * before.whole, site["information"] * before.whole) for site in sites)
        return replace(after, site_tests=against_pooled(own, after.information, 1.0))

    def table(self, state: CoxProgress) -> dict[str, Any]:
        """Return coefficients, hazard ratios, errors, tests and counts as JSON types."""
        settings = {
            "format": 1,
            "kind": self.name,
            "time": self.time_column,
            "event": self.event_column,
            "event_level": self.times.event_level(json.loads(state.levels.tobytes())),
            "entry": self.entry_column,
            "strata": f"site, {self.strata_column}" if self.strata_column else "site",
            "weights": self.weight_column,
            "formula": self.formula,
            "ties": self.ties,
            "firth": self.firth,
        }
        return settings | cox_table(state, self.columns, weighted=bool(self.weight_column))


def rows_of(state: CoxProgress, sums: Arrays) -> float:
    """Return how many rows sums are of."""
    return float(sums["counts"][0] if state.phase == SIZES else sums["rows"]) * state.unit


def no_first(state: CoxProgress, claim: Claim) -> str:
    """Say what the counts of the first round cannot be; see `possible`."""
    sums = {name: array * state.unit for name, array in claim.sums.items()}
    most = np.array([claim.rows, claim.rows, claim.rows, claim.sites])
    return (
        no_counts("counts", sums["counts"], most)
        or no_counts("present", sums["present"], claim.sites)
        or no_left_out(sums["left_out"])
        or below_0("sizes", claim.sums["sizes"])
        or no_later(sums.get("later", np.zeros(0)), claim.rows)
        or no_counts("off_grid", sums.get("off_grid", np.zeros(0)), claim.rows)
    )


def counts_of(before: CoxProgress, sites: Sequence[Arrays]) -> FloatArray:
    """Return rows and deaths (sites, 2) of the sums of the first round."""
    return np.array([np.rint(site["counts"][:2] * before.unit) for site in sites])
