"""Rows in which two columns are exchanged, such as the height and the weight of a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from privet.core import mapped

from ..dataset import Fault, FloatArray
from ..source_column import ColumnFacts, SourceColumn
from .doubts import FEW
from .values import as_numbers

_MOST = 32
"""Columns at most of which each two are compared."""
_FAR, _DISTANT, _MIDDLE = 2.5, 3.0, 1.0
"""Deviations from the middle beyond which a number is none of its own column, and within which it
may be one of the other; middles so many deviations apart; and how near that of the rows in doubt
is to the other column's."""
_QUARTILES = 1.349
"""Deviations between the quartiles of normal numbers."""
_MORE, _PART = 10.0, 0.5
"""Such rows are so many times those of independent columns, and this part of those in which both
numbers are far from their own columns'."""


def of_exchanged(
    columns: Sequence[SourceColumn],
    values: Mapping[str, Any],
    facts: Mapping[str, ColumnFacts],
) -> list[Fault]:
    """Return the doubts that two columns are exchanged in some rows.

    As they are, neither number is within 2.5 deviations of its own column's middle, by quartiles;
    after exchanging them both are. Columns whose middles are near each other show nothing.
    """
    known: dict[str, tuple[float, float]] = {}
    for column in columns:
        levels = np.asarray(facts[column.name].levels)
        if column.categories or column.dates or not len(levels):
            continue
        width = float(levels[14:16].mean() - levels[4:6].mean()) / _QUARTILES
        if width > 0 and len(known) < _MOST:
            known[column.name] = (float(levels[9:11].mean()), width)
    pairs = [pair for pair in combinations(known, 2) if _distant(*(known[name] for name in pair))]
    numbers: dict[str, FloatArray] = {}
    odd: dict[str, Any] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        given = as_numbers(values[name])
        whole = given.nbytes * len(known)
        numbers[name] = mapped.kept(given, whole)
        odd[name] = mapped.kept(_far(given, *known[name]), whole)
    found = []
    for one, other in pairs:
        (middle, width), (middle_of_other, wide) = known[one], known[other]
        both = np.flatnonzero(odd[one] & odd[other])
        first, second = numbers[one][both], numbers[other][both]
        fit = _near(first, *known[other]) & _near(second, *known[one])
        rows, total = int(fit.sum()), len(numbers[one])
        if rows < FEW or rows < _PART * len(both):
            continue
        by_chance = float((odd[one] & _near(numbers[one], *known[other])).mean())
        by_chance *= float((odd[other] & _near(numbers[other], *known[one])).mean()) * total
        near = abs(float(np.median(first[fit])) - middle_of_other) <= _MIDDLE * wide
        near &= abs(float(np.median(second[fit])) - middle) <= _MIDDLE * width
        if near and rows >= _MORE * by_chance:
            text = (
                f"columns {one}, {other}: in {rows} rows, such as {first[fit][0]:g} and "
                f"{second[fit][0]:g}, both fit when exchanged alone: if they are swapped there, "
                "exchange them"
            )
            found.append(Fault(text, stops=False, weight=2))
    return found


def _distant(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether the middles of two columns are far apart, by the wider of both."""
    return abs(one[0] - other[0]) >= _DISTANT * max(one[1], other[1])


def _near(numbers: FloatArray, middle: float, width: float) -> Any:
    return np.abs(numbers - middle) <= _FAR * width


def _far(numbers: FloatArray, middle: float, width: float) -> Any:
    return np.abs(numbers - middle) > _FAR * width
