"""A site's table as an analysis reads it: numbers and categories by column, or missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped

FloatArray = NDArray[np.float64]
Codes = NDArray[np.int32]
Levels = Mapping[str, Sequence[str]]
"""By column, the categories that all sites have agreed on, in order; none of numbers."""


TEXTS_LEVEL = "(texts)"
"""The one level of a column of texts that are no categories, such as names."""
DATES_LEVEL = "(dates"
"""What the one level of a column of dates begins with."""


class AnalysisError(ValueError):
    """A table or setting that an analysis cannot use: one line that names the column or key.

    Parameters
    ----------
    text : str
        For the holder of the table.
    told : str, optional
        What others are told, where the text is the holder's alone.
    """

    def __init__(self, text: str, told: str = "") -> None:
        super().__init__(text)
        self.told = told


_BOOLEANS = ("false", "true")
_BLOCK = 1 << 21
"""Numbers of the matrices that blocks of rows are made into."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A column of categories.

    Attributes
    ----------
    codes : int32 array (n,)
        Positions in ``levels``; -1 where the value is missing.
    levels : tuple of str
    """

    codes: Codes
    levels: tuple[str, ...]

    def frequent(self, least: int) -> tuple[str, ...]:
        """Return the levels that at least so many rows have."""
        known = self.codes[self.codes >= 0]
        counts = np.bincount(known, minlength=len(self.levels))
        return tuple(
            level for level, count in zip(self.levels, counts, strict=True) if count >= least
        )

    def among(self, levels: Sequence[str]) -> Codes:
        """Return the codes (n,) by other levels, which hold all that occur.

        Raises
        ------
        AnalysisError
            If a category that occurs is not among them; it is not named, as it is a record's.
        """
        places = {level: place for place, level in enumerate(levels)}
        moved = np.array([places.get(level, -2) for level in self.levels] + [-1], np.int32)
        codes: Codes = moved[self.codes]
        if (codes == -2).any():
            raise AnalysisError("a category is not among those that the sites have agreed on")
        return codes


@dataclass(frozen=True, eq=False)
class Frame:
    """The rows of one site.

    Attributes
    ----------
    rows : int
    numbers : mapping of str to float64 array (n,)
        NaN where a value is missing.
    factors : mapping of str to Factor
    source : str
        Where the rows are from, for errors.
    persons : int
        Whose rows they are: as many as there are rows, where nobody says.
    """

    rows: int
    numbers: Mapping[str, FloatArray] = field(default_factory=dict)
    factors: Mapping[str, Factor] = field(default_factory=dict)
    source: str = ""
    persons: int = 0

    @classmethod
    def of(cls, columns: Mapping[str, Any], source: str = "") -> Frame:
        """Return the frame of columns: arrays or lists of numbers, or of texts.

        None and NaN are missing values, booleans the texts ``false`` and ``true``.
        """
        numbers: dict[str, FloatArray] = {}
        factors: dict[str, Factor] = {}
        rows = 0
        for name, values in columns.items():
            listed = list(values)
            rows = len(listed)
            texts = [_text(value) for value in listed]
            if any(isinstance(value, str | bool | np.bool_) for value in listed):
                levels = tuple(sorted({text for text in texts if text is not None}))
                places = {level: place for place, level in enumerate(levels)}
                codes = [-1 if text is None else places[text] for text in texts]
                factors[name] = Factor(np.array(codes, np.int32), levels)
            else:
                numbers[name] = np.array(
                    [
                        np.nan if text is None else float(value)
                        for value, text in zip(listed, texts, strict=True)
                    ]
                )
        return cls(rows, numbers, factors, source)

    def __contains__(self, name: object) -> bool:
        return name in self.numbers or name in self.factors

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return (*self.numbers, *self.factors)

    def factor(self, name: str) -> Factor:
        """Return a column as categories; numbers are named as they are written, in their order.

        Raises
        ------
        AnalysisError
            For a column that is not there.
        """
        if name in self.factors:
            return self.factors[name]
        if name not in self.numbers:
            raise AnalysisError(f"column {name!r} is not in the table")
        values = self.numbers[name]
        there = ~np.isnan(values)
        found, places = np.unique(values[there] + 0.0, return_inverse=True)
        codes = np.full(len(values), -1, np.int32)
        codes[there] = places
        return Factor(codes, tuple(f"{value:.15g}" for value in found))

    def blocks(self, width: int) -> Iterator[Frame]:
        """Yield the rows in order, so many at a time that their ``width`` columns are small."""
        several = max(_BLOCK // max(width, 1), 1)
        for start in range(0, self.rows, several):
            stop = min(start + several, self.rows)
            yield self._of(stop - start, itemgetter(slice(start, stop)))
            mapped.release()

    def taken(self, rows: NDArray[Any]) -> Frame:
        """Return the frame of some rows: their places, or a mask (n,)."""
        masked = rows.dtype == bool
        count = int(np.count_nonzero(rows)) if masked else len(rows)
        if (masked and count == self.rows) or (not masked and mapped.are_all(rows, self.rows)):
            return self._of(count, lambda column: column)
        whole = 8 * count * len(self.names)
        return self._of(count, lambda column: mapped.kept(column[rows], whole))

    def only(self, columns: Collection[str]) -> Frame:
        """Return the frame of some columns."""
        numbers = {name: one for name, one in self.numbers.items() if name in columns}
        factors = {name: one for name, one in self.factors.items() if name in columns}
        return replace(self, numbers=numbers, factors=factors)

    def with_booleans(self, levels: Levels) -> Frame:
        """Return the frame with columns of 0 and 1 as false and true, where the agreed categories
        are these, and the other way round: not all databases have booleans."""
        found, zeros = dict(self.factors), dict[str, FloatArray]()
        for name, factor in self.factors.items():
            if levels.get(name) == () and set(factor.levels) <= set(_BOOLEANS):
                numbers = [float(_BOOLEANS.index(level)) for level in factor.levels]
                zeros[name] = np.array([*numbers, np.nan])[factor.codes]
                del found[name]
        for name, values in self.numbers.items():
            if set(levels.get(name, ())) == set(_BOOLEANS):
                missing = np.isnan(values)
                if (missing | (values == 0) | (values == 1)).all():
                    codes = np.where(missing, -1.0, values).astype(np.int32)
                    found[name] = Factor(codes, _BOOLEANS)
        kept = {name: one for name, one in self.numbers.items() if name not in found}
        return replace(self, numbers={**kept, **zeros}, factors=found)

    def _of(self, count: int, taken: Callable[[NDArray[Any]], NDArray[Any]]) -> Frame:
        numbers = {name: taken(values) for name, values in self.numbers.items()}
        factors = {name: Factor(taken(one.codes), one.levels) for name, one in self.factors.items()}
        return Frame(count, numbers, factors, self.source, self.persons and count)


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(value)
