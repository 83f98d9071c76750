"""What a column of a table, and a row, holds, as its model file and the sites of a run state it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]


HIDDEN = re.compile("[\\x00-\\x1f\\x7f\u0080-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Letters that control what shows a text: ends of lines, terminals' codes, directions of writing.
No name of a column or category has one."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """The contents of one column of a table.

    Attributes
    ----------
    name : str
    missing : int
        Rows without a value.
    categories : tuple of str
        Empty for numbers.
    low, high : float
        Range of numbers; ``public`` says that it is not that of the records.
    gap : bool
        Whether a missing value has a column of its own, the last, which is 1 where it is missing.
    zeros : bool
        Whether its single category becomes a column of zeros, as other nodes may have a second.
    dates : str
        Of dates, which are numbers of days: "day-first" or "month-first", else empty.
    unit : str
        Of numbers, as the schema states it, which sites compare; empty where it states none.
    censored : str
        Of numbers, what bounds such as <5 become: "bound" or "half", else empty.
    codes : tuple of float
        The few whole numbers that records have, where they skip some, as codes do; else empty.
    """

    name: str
    missing: int
    categories: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    public: bool = False
    gap: bool = False
    zeros: bool = False
    dates: str = ""
    unit: str = ""
    censored: str = ""
    codes: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Columns that it becomes: k - 1 of k categories, none of a single one; one of numbers."""
        return (len(self.categories) - 1 if self.categories else 1) + self.gap + self.zeros

    @property
    def constant(self) -> bool:
        """Whether it has the same value in every row."""
        one = len(self.categories) == 1 if self.categories else self.low == self.high
        return one and not self.gap


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What some rows have in one column.

    Attributes
    ----------
    rows : int
        With a value.
    missing : int
        Without one.
    low, high : float
        Of numbers.
    moments : tuple
        Number, mean and sum of squared deviations of numbers, else empty.
    counts : mapping
        How many rows have each category, or each of at most 20 whole numbers; else empty.
    whole : bool
        Whether all are whole numbers.
    ids : bool
        Whether they are whole numbers, all different, that count the rows, or ascend or descend.
    different : bool
        Whether they are whole numbers, more than 20 and all different.
    far : tuple
        Numbers far from all others, each with how many rows have it.
    often : mapping
        Of varied numbers, how many rows have each that a fiftieth of them or more have.
    levels : tuple
        Of varied numbers, 20 quantiles, each the middle of a twentieth of the rows; else empty.
    lone : tuple of float
        Those of ``often`` that far more rows have than each of the five numbers on either side.
    filled : (float, int) or None
        The number, with its rows, that may be a mean filled in for missing values.
    trend : float
        The correlation of ranks with the label, as a multiple of its standard error (Fisher's z).
    ties : mapping
        The same with other columns, by name.
    """

    rows: int
    missing: int
    low: float = 0.0
    high: float = 0.0
    moments: tuple[float, ...] = ()
    counts: Mapping[Any, int] = field(default_factory=dict)
    whole: bool = False
    ids: bool = False
    different: bool = False
    far: tuple[tuple[float, int], ...] = ()
    often: Mapping[float, int] = field(default_factory=dict)
    levels: tuple[float, ...] = ()
    lone: tuple[float, ...] = ()
    filled: tuple[float, int] | None = None
    trend: float = 0.0
    ties: Mapping[str, float] = field(default_factory=dict)

    @property
    def only(self) -> str:
        """The value that all rows have, as a text; empty where they have several, or none."""
        if self.moments and self.rows:
            return f"{self.low:g}" if self.low == self.high else ""
        return str(*self.counts) if len(self.counts) == 1 else ""


@dataclass(frozen=True, slots=True, eq=False)
class RowDigests:
    """Digests of a table's rows, by which those that stand in another table are found.

    They stay in the process that read the rows.

    Attributes
    ----------
    digests : uint64 array of shape (rows,)
        The sum, modulo 2^64, of one of each column's name and value.
    alike : mapping
        By name of the column, the part of all pairs of rows that have the same value in it.
    apart : mapping
        The digests of columns that may be ids, by name: whole numbers that are all different, or
        doubted.
    ids : frozenset of str
        Those that are doubted: a copy of a row may have another id.
    varied : frozenset of str
        Columns of more than 20 different values.
    """

    digests: Digests
    alike: Mapping[str, float]
    apart: Mapping[str, Digests]
    ids: frozenset[str]
    varied: frozenset[str]

    def without(self, names: Collection[str]) -> Digests | None:
        """Return the digests of the other columns; None where one cannot be left out."""
        left = self.digests
        for name in names:
            if name not in self.apart:
                return None
            left = left - self.apart[name]
        return left
