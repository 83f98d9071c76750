"""Numbers of one column in two units: two heaps that are one, but for the factor of a unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from privet.core import mapped

from ..dataset import Fault, FloatArray
from ..scaling import rounded
from ..source_column import ColumnFacts, SourceColumn
from ..trends import trend_of
from .doubts import VARIED
from .values import as_numbers, codes_of

_UNITS = (
    *(1.609, 2.2046, 2.54, 2.665, 2.8, 4.184, 7.0, 7.5, 10.0, 12.0, 17.1, 18.02, 24.0, 28.35),
    *(30.44, 38.67, 60.0, 88.4, 100.0, 365.25, 1000.0),
)
"""Factors between usual units, such as pounds in a kilogram, and the mg/dl of 1 mmol/l glucose;
2.665 is that of body temperatures in degrees Fahrenheit and Celsius."""
_CLEAR = (1.8, 2.54, 10.0, 18.02, 88.4, 100.0, 1000.0)
"""Those that show in one table alone; 1.8 is that of degrees, to which 32 are added."""
_HUMPS, _BY_CHANCE = (1.5, 4.0), 0.05
"""One quantity of two kinds of persons, such as the glucose of the healthy and of diabetics, has
humps in such ratios. If all are as likely, in logarithms, so many are as near to a unit as to be
taken for it, at most: what is less exact is no doubt. Heaps of larger ratios are seldom of one."""
_HOTTEST = 60.0
"""Degrees Celsius above which a heap is rather none of them."""
_LEAST_ROWS, _LEAST_PART = 40, 0.05
"""Rows of a column, and part of them in either heap, from which one table shows two units."""
_APART = 4.5
"""Means of two heaps are apart by so many deviations; those of halves of one heap are by 3.5."""
_WIDER = 1.3
"""Heaps of one quantity are as wide as each other, but for this factor, and for chance."""
_RELATED = 4.0
"""Standard errors of a correlation from which it is not by chance which rows are in a heap."""


def of_heaps(
    column: SourceColumn,
    values: Any,
    others: Iterable[SourceColumn],
    values_of: Mapping[str, Any],
) -> list[Fault]:
    """Return the doubt that numbers of one table are in two units.

    The logarithms lie in two heaps far apart, each as wide and of the same shape as the other after
    one is converted, and which heap a row is in goes with none of the ``others``, the label
    included, as it would where rows are of two kinds.
    """
    if column.categories or column.dates:
        return []
    numbers = as_numbers(values)
    known = numbers[~np.isnan(numbers)]
    known.sort()
    if len(known) < _LEAST_ROWS or known[0] <= 0 or known[-1] / known[0] < _CLEAR[0]:
        return []
    np.log(known, out=known)
    low, high = heaps(known, max(VARIED, math.ceil(_LEAST_PART * len(known))))
    wide = max(float(one.std()) for one in (low, high))
    few = min(1 + int(np.count_nonzero(one[1:] != one[:-1])) for one in (low, high))
    if few < VARIED or float(high.mean() - low.mean()) < _APART * wide:
        return []
    if not any(_is_unit(low, high, unit) for unit in _CLEAR):
        return []
    above = (numbers > math.exp((low[-1] + high[0]) / 2)).astype(float)
    above[np.isnan(numbers)] = np.nan
    if any(_go_with(one, values_of[one.name], above) for one in others if one is not column):
        return []
    fewer, more = sorted((low, high), key=len)
    text = (
        f"column {column.name}: about {_middle(fewer)} in {len(fewer)} of {len(known)} rows, and "
        f"about {_middle(more)} in the others: if these are in two units, convert them to one"
    )
    return [Fault(text, stops=False, of_sites=True, weight=2)]


def of_part(sites: Mapping[str, ColumnFacts]) -> list[str]:
    """Return the doubt that a part of a site's rows is in another unit: their logarithms lie in two
    heaps, each as wide as those of the others, one of them where these are."""
    known = {
        site: np.log(one.levels)
        for site, one in sites.items()
        if one.levels and one.low > 0 and not one.far
    }
    for site, logs in known.items():
        others = np.concatenate([np.empty(0), *(known[one] for one in known if one != site)])
        if not len(others) or not (wide := float(others.std())):
            continue
        low, high = heaps(logs, 1)
        if min(len(low), len(high)) < len(logs) // 5:
            continue  # a tail, or one number in some rows
        step, middle = float(high.mean() - low.mean()), float(others.mean())
        unit = any(abs(step - math.log(one)) < max(0.04, wide / 4) for one in _UNITS)
        alike = all(wide / 1.6 < one.std() < 1.3 * wide for one in (low, high))
        alike &= all(2 * len(np.unique(one)) > len(one) for one in (low, high))  # no limit
        near = min(abs(float(one.mean()) - middle) for one in (low, high)) < wide / 2
        if unit and alike and near and step > 2.0 * _between(np.sort(others)):
            few, more = sorted((low, high), key=len)
            return [
                f"about {_middle(few)} in {len(few) / len(logs):.0%} of the rows of {site!r}, and "
                f"about {_middle(more)} in its others: if these are in two units, convert them to "
                "one"
            ]
    return []


def heaps(ordered: FloatArray, least: int) -> tuple[FloatArray, FloatArray]:
    """Return the two parts of numbers in order, of so many or more each, with least variance."""
    count, best, most = len(ordered), least, -math.inf
    sums = ordered - ordered.mean()
    np.cumsum(sums, out=sums)
    # The squares about both means are least where those between the means, which sum to 0 in all
    # numbers, are most.
    step = max(1, mapped.BLOCK // 8)
    for begin in range(least, count - least + 1, step):
        at = np.arange(begin, min(begin + step, count - least + 1))
        between = sums[at - 1] ** 2 / (at * (count - at))
        place = int(np.argmax(between))
        if between[place] > most:
            best, most = int(at[place]), float(between[place])
    return ordered[:best], ordered[best:]


def _middle(logs: FloatArray) -> str:
    return rounded(math.exp(logs.mean()))


def _between(ordered: FloatArray) -> float:
    """Return how far apart the means of two heaps are: of one heap, its halves, or a long tail."""
    below, above = heaps(ordered, len(ordered) // 5)
    return float(above.mean() - below.mean())


def _is_unit(low: FloatArray, high: FloatArray, unit: float) -> bool:
    """Return whether two heaps may be one quantity in two units."""
    degrees = unit == _CLEAR[0]
    if degrees and low[-1] > math.log(_HOTTEST):
        return False
    converted = np.log(unit * np.exp(low) + 32) if degrees else low + math.log(unit)
    if unit < _HUMPS[1]:
        error = math.hypot(converted.std() / math.sqrt(len(low)), high.std() / math.sqrt(len(high)))
        apart = abs(float(converted.mean() - high.mean()))
        if apart > 2 * error or 4 * error > _BY_CHANCE * math.log(_HUMPS[1] / _HUMPS[0]):
            return False
    return _is_one_quantity(converted, high)


def _is_one_quantity(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two samples may be of one quantity: by mean, deviation and shape."""
    narrow, wide = sorted((float(one.std()), float(other.std())))
    if not narrow:
        return False
    chance = math.sqrt(1 / len(one) + 1 / len(other))
    if abs(float(one.mean() - other.mean())) > max(0.01, 3 * wide * chance):
        return False
    if wide > narrow * (_WIDER + 2 * chance):
        return False
    every = np.sort(np.concatenate([one, other]))
    parts = [np.searchsorted(sample, every, side="right") / len(sample) for sample in (one, other)]
    return bool(np.abs(parts[0] - parts[1]).max() < 1.63 * chance)  # Kolmogorov-Smirnov, 1 %


def _go_with(column: SourceColumn, values: Any, above: FloatArray) -> bool:
    """Return whether rows of a heap have other categories, codes or numbers in a column."""
    if not column.categories:
        return abs(trend_of(as_numbers(values), above)) > _RELATED
    codes = codes_of(values, column)
    each = range(len(column.categories))
    return any(abs(trend_of((codes == at).astype(float), above)) > _RELATED for at in each)
