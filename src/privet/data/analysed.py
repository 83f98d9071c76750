"""A table as the problem of an analysis: its sums at a public point, and what its columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np

from privet.analyses.analysis import Analysis, Arrays, NoisedSums, SiteSums
from privet.analyses.frame import AnalysisError, Frame, Levels
from privet.core import ConfigError
from privet.kernel import BudgetRefused, Told
from privet.kernel.analysis_rules import NO_RULES, AnalysisRules
from privet.kernel.records import FloatArray, RowIndex

from .dataset import DataError
from .frames import SiteTable
from .held_out import most_rows
from .meaning import GROUPED, OPEN, Meaning

FEW_LEVEL = "(fewer)"
"""The level of a column none of whose own is frequent enough to be named."""
_FOR_GOOD = (Told.SMALL_CELL, Told.MANY_TERMS, Told.MANY_CELLS, Told.HORIZON)
WAY_OUT = "privet describe --schema OUT over the sites writes one"


class AnalysedTable:
    """The problem of one site in an analysis; a model of one number stands for its progress.

    Parameters
    ----------
    analysis : Analysis
    table : SiteTable, Frame or mapping of columns
    agreed : str
        What the run's sites have agreed on, as the text of a `Meaning`; empty before.
    own : bool
        Whether the table is the site's own, so that others' categories are not known here.
    rules : AnalysisRules
        Those of the site's operator.
    masked : bool
        Whether its sums leave the site in a secure sum alone.

    Raises
    ------
    DataError
        For a column that is not there or cannot be used, and for categories of a table of one's own
        that no schema states.
    """

    dim = 1
    takes_matrices = True
    """Whether what it is broadcast may be more than vectors of the model's length."""
    widens = False
    """Whether agreed categories make its rows longer."""
    dtype = np.dtype(np.float64)

    def __init__(
        self,
        analysis: Analysis[Any],
        table: Any,
        agreed: str = "",
        *,
        own: bool = False,
        rules: AnalysisRules = NO_RULES,
        masked: bool = False,
    ) -> None:
        self.analysis, self.table = analysis, as_table(table)
        self._rules, self._masked = rules, masked
        self._own, self._agreed = own, Meaning.from_text(agreed) if agreed else None
        self.num_examples = self.table.frame.rows
        self.columns = analysis.columns or self.table.frame.names
        with named(self.table.frame, own=self._own):
            self._require_columns()
        self.data_dependent = "" if self._stated else _NOT_STATED

    def _require_columns(self) -> None:
        frame = self.table.frame
        for name in self.analysis.over(frame.names).columns or frame.names:
            if name not in frame:
                raise AnalysisError(f"no column {name}; there are {', '.join(frame.names)}")
        # Their categories would be in the answer to the enrolment question, rare ones as well.
        if self._own and not self._stated and self.analysis.needs_levels:
            raise unstated(self._open_factors[0])

    @cached_property
    def _factors(self) -> tuple[str, ...]:
        return self.analysis.factors(self.table.frame)

    @property
    def _open_factors(self) -> list[str]:
        """The columns taken as categories that no schema states: a range is none of these."""
        stated = self.table.stated - self.table.ranges.keys()
        return [name for name in self._factors if name not in stated]

    @property
    def _stated(self) -> bool:
        return not self._open_factors

    @cached_property
    def meaning(self) -> Meaning:
        """What the columns mean that the analysis reads: categories, ranges and who states them."""
        columns: Mapping[str, Any] = {name: self._facts(name) for name in sorted(self.columns)}
        if self._agreed is not None:
            columns = self._agreed.columns
        settings = {"analysis": self.analysis.name}
        if not self.analysis.needs_levels:
            settings[OPEN] = "yes"
            if self.analysis.grouped_by:
                settings[GROUPED] = self.analysis.grouped_by
        return Meaning(columns, settings=settings, public=self._stated)

    def _facts(self, name: str) -> Mapping[str, Any]:
        stated = {"stated": True} if name in self.table.stated else {}
        if name in self._factors:
            stated = {} if name in self.table.ranges else stated
            empty = not self.table.frame.rows
            if name in self.table.ranges and empty and self.analysis.needs_levels:
                raise DataError(
                    f"column {name} is used as categories, and the schema states a range, which "
                    f'does not say which there are: state them, such as "{name}" = ["0", "1"]'
                )
            factor = self.table.frame.factor(name)
            levels = list(factor.levels)
            guarded = self._own or self._rules.min_cell > 1  # else all of the file that was dealt
            if guarded and not stated and not self.analysis.needs_levels:
                levels = list(factor.frequent(self._rules.min_cell)) or [FEW_LEVEL]
            # A column at any site, also where all its rows have one and the same category.
            width = {"width": len(levels)} if len(levels) == 1 and not stated else {}
            return {"categories": levels, **width, **stated}
        if name in self.table.ranges:
            return {"range": list(self.table.ranges[name]), **stated}
        return {}

    @cached_property
    def levels(self) -> Levels:
        """The agreed categories by column: those of the run, or of the site's own table."""
        return levels_of(self.meaning, self.analysis)

    @cached_property
    def sums(self) -> SiteSums:
        """What the site sums.

        Raises
        ------
        DataError
            For a column that cannot be used.
        """
        with named(self.table.frame, own=self._own):
            analysis = self.analysis.over(tuple(self.meaning.columns))
            sums = analysis.sums(self.table.frame.with_booleans(self.levels), self.levels)
            self._rules.require_records(sums.num_examples)
            if self._masked:
                sums = analysis.unseen(sums)
            elif self._rules.min_cell > 1:
                sums = self._guarded(analysis, sums)
        return sums

    def _guarded(self, analysis: Analysis[Any], sums: SiteSums) -> SiteSums:
        """Return sums that show no small cell (raises ``BudgetRefused``: it is so for good)."""
        try:
            return analysis.guarded(sums, self._rules.min_cell)
        except AnalysisError as error:
            if error.told not in _FOR_GOOD:
                raise
            raise BudgetRefused(error.told) from error  # its own log has the line

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums over the site's rows at a public point."""
        with named(self.table.frame, own=self._own):
            return dict(self.sums.statistics(point))

    def value(self, x: FloatArray) -> float:
        """Refuse: an analysis has no loss."""
        _refuse()

    def gradient(self, x: FloatArray, rows: RowIndex = None) -> FloatArray:
        """Refuse: an analysis has no gradient."""
        _refuse()


class NoisedTable(AnalysedTable):
    """The problem of one site in an analysis by a noised sum: its model is the sum.

    Privacy: `require_public` refuses it where a column's categories or range are read from the
    records, since then the sum's length, and what a record adds, depend on others.
    """

    def __init__(self, analysis: Analysis[Any], table: Any, agreed: str = "") -> None:
        super().__init__(analysis, table, agreed)
        stated = self.table.stated
        self.columns = tuple(name for name in self.columns if name in stated)
        with named(self.table.frame):
            self._require_stated()
            self.layout_of_sum = noised_sums(self.meaning, analysis)
        self.dim = self.layout_of_sum.width
        open_ = [name for name in analysis.columns if name not in stated]
        self.data_dependent = self.table.dependence or (
            _NOT_STATED if open_ or not self.dim else ""
        )
        persons = self.table.persons
        self.person_rows = 1 if persons is None else most_rows(persons)

    def _require_stated(self) -> None:
        """Refuse a sum of other columns than the site's own schema states, before it is charged.

        Both are public, so that the refusal says nothing of a record.

        Raises
        ------
        AnalysisError
            For a column that the schema lacks, or that is of another kind there.
        """
        if self._agreed is None:
            return
        agreed = {n: facts for n, facts in self._agreed.columns.items() if facts.get("stated")}
        for name, facts in agreed.items():
            if name not in self.table.stated or name not in self.table.frame:
                raise AnalysisError(
                    f"column {name} of the noised sum is not in this site's schema: give it the "
                    "others'",
                    Told.SCHEMA,
                )
            kinds = "range" in facts, name in self.table.ranges
            more = set() if any(kinds) else {*self._facts(name)["categories"]}
            if kinds[0] != kinds[1] or more - set(facts.get("categories", ())):
                raise AnalysisError(
                    f"column {name}: this site's schema states other categories, or a range, "
                    "than the others': give it theirs",
                    Told.SCHEMA,
                )

    def with_divisor(self, divisor: float) -> Self:
        """Return itself: a sum is divided by nothing, whatever count its node declares."""
        return self

    def contributions(self, point: Arrays) -> Iterator[FloatArray]:
        """Yield what each record adds to the sum, in blocks."""
        with named(self.table.frame):
            yield from self.layout_of_sum.contributions(self.table.frame)


def noised_sums(meaning: Meaning, analysis: Analysis[Any]) -> NoisedSums:
    """Return the noised sum of the columns that a schema states (raises ``AnalysisError``)."""
    stated = {name: facts for name, facts in meaning.columns.items() if facts.get("stated")}
    return analysis.noised(
        {n: tuple(facts["categories"]) for n, facts in stated.items() if "categories" in facts},
        {n: tuple(facts["range"]) for n, facts in stated.items() if "range" in facts},
    )


def levels_of(meaning: Meaning, analysis: Analysis[Any]) -> Levels:
    """Return by column the categories that a meaning states.

    An analysis that reads all columns has those of numbers as well, which have none.
    """
    every = {name: tuple(facts.get("categories", ())) for name, facts in meaning.columns.items()}
    return {name: levels for name, levels in every.items() if levels or not analysis.needs_levels}


def unstated(column: str) -> AnalysisError:
    """Return the error of a column of categories of a table of one's own, without a schema."""
    return AnalysisError(
        f"column {column} is taken as categories, and no schema states them, which other sites may "
        f"have otherwise: set schema; {WAY_OUT}"
    )


class named:
    """Make a `DataError` that names the file of what an analysis cannot use.

    ``own`` says that the file is the node's own: no other is told its path.
    """

    def __init__(self, frame: Frame, *, own: bool = False) -> None:
        self._source, self._own = frame.source, own

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, AnalysisError):
            where = f"{self._source}: " if self._source else ""
            text = str(error).replace(f" ({self._source})", "") if where else str(error)
            told = error.told or (text if self._own else "")
            raise DataError(f"{where}{text}", told) from None


def as_table(table: Any) -> SiteTable:
    """Return a table, a frame or a mapping of columns as a table (raises ``DataError``)."""
    if isinstance(table, SiteTable):
        return table
    if isinstance(table, Frame):
        return SiteTable(table)
    try:
        return SiteTable(Frame.of({str(name): table[name] for name in table}))
    except (TypeError, ValueError) as error:
        raise DataError(f"an analysis reads a table of columns: {error}") from None


def _refuse() -> NoReturn:
    raise ConfigError("an analysis has sums, and no loss to be trained", Told.ALGORITHM)


_NOT_STATED = (
    f"categories are read from the records: give schema, a file of public ones ({WAY_OUT})"
)
