"""What a site shows of its own columns in a description, by the rule of `small_cells`.

Groups add up to all rows, but for those in none: these are one more part, which is solved for by
taking the groups from all. So a column is shown of all groups or of none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.kernel import Told

from .description_groups import parted
from .frame import AnalysisError, Codes, FloatArray, Frame, Levels
from .small_cells import Steps, has_rare_code, hidden, is_solved, merged, middles, steps

Cells = tuple[FloatArray, NDArray[np.bool_]]
_NONE = -1
"""The group of rows that are in none which is shown."""


class Moments(NamedTuple):
    """How many numbers there are, their mean, and the squares about it in units of ``scale``.

    What a site sends of numbers is a function of these alone, whatever point it is asked at: sums
    of rounded differences would not be, and could count the numbers above any.
    """

    number: int
    mean: float
    squared: float
    scale: float

    @classmethod
    def of(cls, values: FloatArray) -> Moments:
        """Return those of finite numbers."""
        if not len(values):
            return cls(0, 0.0, 0.0, 1.0)
        scale = 2.0 ** math.frexp(float(max(values.max(), -values.min())))[1]
        scaled = values / scale
        middle = float(scaled.mean())
        scaled -= middle
        moved = float(scaled.mean())  # what rounding has left
        return cls(
            *(len(values), (middle + moved) * scale),
            *(float(np.square(scaled, out=scaled).sum()) - len(values) * moved**2, scale),
        )

    def distances(self, centre: float, unit: float) -> float:
        """Return sum (x - centre) / unit."""
        return self.number * ((self.mean - centre) / unit)

    def squares(self, centre: float, unit: float) -> float:
        """Return sum ((x - centre) / unit)^2."""
        moved = (self.mean - centre) / unit
        return self.squared * (self.scale / unit) ** 2 + self.number * moved * moved


class ShownColumns:
    """The numbers and counts of a site's columns, without cells of 1 to ``least`` - 1 rows.

    Parameters
    ----------
    frame : Frame
    levels : mapping of str to sequence of str
        The agreed columns.
    by : str
        The column of the groups; empty for none.
    least : int
        1 shows all.

    Raises
    ------
    AnalysisError
        If a category that enough rows have is not among the agreed ones: then their counts would
        be those of other cells in every message.
    """

    def __init__(self, frame: Frame, levels: Levels, by: str, least: int) -> None:
        self.frame, self.levels, self.by, self.least = frame, levels, by, least
        self._groups: Codes = np.full(frame.rows, _NONE, np.int32)
        self._of_columns: dict[str, tuple[bool, Steps | None]] = {}
        self._moments: dict[str, Moments] = {}
        self._of_groups: dict[str, tuple[NDArray[np.intp], FloatArray, FloatArray]] = {}
        self._of_solved: dict[str, bool] = {}
        for name, known in levels.items():
            if least > 1 and known and self.is_here(name):
                self._require_frequent(name, known)
        if by and by in frame:
            self._groups = self._shown_groups(frame.factor(by).codes, levels[by])

    def _require_frequent(self, name: str, known: Sequence[str]) -> None:
        if not set(self.frame.factor(name).frequent(self.least)) <= set(known):
            raise AnalysisError(
                f"column {name}: a category of at least {self.least} rows is not among those that "
                "the sites have agreed on",
                Told.SMALL_CELL,
            )

    def _shown_groups(self, own: Codes, known: Sequence[str]) -> Codes:
        codes = codes_of(self.frame, self.by, known)
        rows = np.bincount(codes[codes >= 0], minlength=len(known)).astype(float)
        missing = int((own < 0).sum())
        rare = float((codes < 0).sum()) - missing  # of categories that are not agreed on
        out = hidden(rows, known, self.least, others=rare, also=0 < missing < self.least)
        return np.where(np.append(out, True)[codes], _NONE, codes).astype(np.int32)

    def is_here(self, name: str) -> bool:
        """Whether the site has the column as the kind that is agreed."""
        if not self.levels[name]:
            return name in self.frame.numbers
        return name in self.frame.factors or (name == self.by and name in self.frame)

    def rows(self, name: str) -> float:
        """Return how many rows the column's group has."""
        _, group = parted(name)
        return float(self.frame.rows if group < 0 else (self._groups == group).sum())

    @cached_property
    def _unshown(self) -> set[str]:
        """The columns that are shown of no group."""
        if self.least <= 1 or not self.by:
            return set()
        names = [name for name in self.levels if name != self.by and self.is_here(name)]
        return {name for name in names if self._is_solvable(name)}

    def _is_solvable(self, name: str) -> bool:
        """Whether a group, or the rows of none, have too little of a column."""
        groups = [_NONE, *np.unique(self._groups[self._groups >= 0]).tolist()]
        parts = [self._groups == group for group in groups]
        if not self.levels[name]:
            numbers = self.frame.numbers[name]
            known = [_known(numbers[part]) for part in parts]
            rare = [self._is_rare(one) for one in known if len(one)]
            return any(rare) or self._is_rare(_known(numbers))
        counts = [self._counted(name, part) for part in parts]
        return any(one.sum() > 0 and one.min() < self.least for one in counts)

    def _is_rare(self, values: FloatArray) -> bool:
        if len(values) < self.least:
            return True
        return has_rare_code(np.unique(values, return_counts=True)[1], self.least)

    # ------------------------------------------------------------------ numbers

    def numbers(self, name: str) -> FloatArray:
        """Return the numbers of a column that are shown, none where they are too few."""
        own, group = parted(name)
        values = self.frame.numbers.get(own, np.empty(0)) if self.is_here(own) else np.empty(0)
        if group < 0:
            return _known(values) if self._is_shown(own) else np.empty(0)
        if own in self._unshown or not len(values):
            return np.empty(0)
        return _known(values[self._groups == group])

    def moments(self, name: str) -> Moments:
        """Return the moments of the numbers that are shown.

        They are those of the steps, as histograms are, where those of the numbers would say how
        many have which.
        """
        if name not in self._moments:
            values = self.numbers(name)
            if len(values) and self.least > 1 and self._is_solved(parted(name)[0]):
                places, numbers = self.places(name)
                assert numbers is not None
                moved = middles(places, numbers, self.least)
                values = np.repeat(moved, numbers.astype(np.int64))
            self._moments[name] = Moments.of(values)
        return self._moments[name]

    def _is_solved(self, own: str) -> bool:
        """Whether moments of a column, or of its groups, say how many have which number."""
        if own not in self._of_solved:
            values, found = _known(self.frame.numbers[own]), self._steps(own)
            solved = is_solved(values, found)
            if self.by and own not in self._unshown and not solved:
                groups = self._groups[np.isfinite(self.frame.numbers[own])]
                which = self._in_groups(own)[0][found.which]
                parts = [groups == group for group in np.unique(groups)]
                solved = any(is_solved(values[p], Steps(found.places, which[p])) for p in parts)
            self._of_solved[own] = solved
        return self._of_solved[own]

    def places(self, name: str) -> tuple[FloatArray, FloatArray | None]:
        """Return what histograms are made of: places, and how many numbers each has; None for one.

        Those of groups are steps of all numbers merged until each group has enough, or none.
        """
        own, group = parted(name)
        if self.least <= 1:
            return self.numbers(name), None
        if not len(self.numbers(name)):
            return np.empty(0), None
        found = self._steps(own)
        if group < 0:
            return found.places, found.counts
        _, places, numbers = self._in_groups(own)
        return places, numbers[group]

    def _in_groups(self, own: str) -> tuple[NDArray[np.intp], FloatArray, FloatArray]:
        """Return which merged step each step of a column is of, their places, and how many numbers
        each group has there."""
        if own not in self._of_groups:
            found = self._steps(own)
            known = np.isfinite(self.frame.numbers[own])
            width = len(self.levels[self.by]) + 1  # the last of the rows in none
            counts = np.zeros((width, len(found.places)), np.int64)
            np.add.at(counts, (self._groups[known], found.which), 1)
            which, last = merged(counts, self.least)
            sums = [np.bincount(which, one, len(last)) for one in counts]
            self._of_groups[own] = which, found.places[last], np.array(sums, float)
        return self._of_groups[own]

    def _is_shown(self, own: str) -> bool:
        if self.least <= 1 or not self.is_here(own):
            return True
        if own not in self._of_columns:
            values = _known(self.frame.numbers[own])
            shown = not self._is_rare(values)
            self._of_columns[own] = shown, self._kept(values) if shown else None
        return self._of_columns[own][0]

    def _kept(self, values: FloatArray) -> Steps:
        """Return the steps of a column, in files where those of all columns are large."""
        whole = 16 * len(values) * len(self.frame.numbers)
        return Steps(*(mapped.kept(one, whole) for one in steps(values, self.least)))

    def _steps(self, own: str) -> Steps:
        self._is_shown(own)
        found = self._of_columns[own][1]
        assert found is not None
        return found

    # ------------------------------------------------------------------ categories

    def _counted(self, name: str, part: NDArray[np.bool_] | slice) -> FloatArray:
        """Return how many of some rows have each of the agreed categories, and any other, if so."""
        known = self.levels[name]
        codes = codes_of(self.frame, name, known)[part]
        there = self.frame.factor(name).codes[part] >= 0
        counts = np.bincount(codes[codes >= 0], minlength=len(known)).astype(float)
        others = float(there.sum()) - counts.sum()
        return np.append(counts, others) if others else counts

    def cells(self, name: str) -> tuple[float, FloatArray, NDArray[np.bool_]]:
        """Return how many values a column has, the counts of its categories, and which of them are
        hidden."""
        own, group = parted(name)
        known = self.levels[own]
        nothing = 0.0, np.zeros(len(known)), np.zeros(len(known), bool)
        if not self.is_here(own):
            return nothing
        part = slice(None) if group < 0 else self._groups == group
        counted = self._counted(own, part)
        if counted.sum() < self.least or not self.frame.factor(own).frequent(self.least):
            return nothing  # of rare categories alone their sum may say how many each has
        counts, others = counted[: len(known)], counted[len(known) :]
        if group >= 0:
            out = np.full(len(known), own in self._unshown)
        else:
            out = hidden(counts, known, self.least, others=float(others.sum()))
        return float(counted.sum()), np.where(out, 0.0, counts), out


def _known(values: FloatArray) -> FloatArray:
    finite = np.isfinite(values)
    known: FloatArray = values if finite.all() else values[finite]
    return known


def codes_of(frame: Frame, name: str, known: Sequence[str]) -> Codes:
    """Return the codes of a column by the agreed categories, -1 for any other text."""
    factor = frame.factor(name)
    places = {level: place for place, level in enumerate(known)}
    moved = np.array([places.get(level, -1) for level in factor.levels] + [-1], np.int32)
    codes: Codes = moved[factor.codes]
    return codes
