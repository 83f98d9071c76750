"""Means and deviations that sites have in common, from numbers of each site's rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from .codes import codes_apart, from_zero, parted_codes
from .dataset import Encoding, FloatArray, some
from .meaning import BOOLEANS, Meaning, read
from .source_column import SourceColumn
from .trends import turned

_LABEL = ""
"""The key of the label in ``rows`` and ``scale``: no column is called so."""
_FEW = 5
"""Rows below which a site's mean and deviation say little of its unit."""
_APART, _RATIO = 1.5, 1.5
"""Means this many sums of two deviations, and this factor, apart are rather of two units."""
_MIDDLE, _SAME = 1.2816, 1.25
"""So are means this far apart, where the middle 80 % of normal numbers around them do not overlap,
whose deviations, relative to them, are the same but for this factor, as a unit keeps them."""
_DISJOINT, _NEAR = 5.0, 1.25
"""So are means this many sums of deviations apart, of deviations that a unit keeps, from this
factor on: 760 mmHg are 1013 hPa."""
_OPPOSITE, _FAR_FROM_0 = 6.0, 10.0
"""So are means of which one is negative, as a longitude beside a latitude, this many sums of
deviations apart; smaller ones are rather of centred numbers."""
_ERRORS = 3.0
"""Means of skewed numbers this many standard errors apart are so by more than chance."""
_MOVED = 10.0
"""One site that changes the deviation of all sites' numbers by this factor is named."""
CENTURY, _EPOCHS = 36524.5, 1462.0
"""Days of a century, and those between the first days of Excel's two calendars (1900 and 1904)."""
_ENOUGH_DATES = 20
_ALIKE, _LARGE, _MIRRORED = 1.5, 4.0, 0.1
"""So are means this far apart whose deviations, relative to them, differ by no more than that."""


def scaling(encoding: Encoding) -> dict[str, list[float]]:
    """Return ``scale`` of an encoding: what of it is not stated by a schema."""
    found: dict[str, list[float]] = {}
    at = 0
    for column in encoding.columns:
        filling = encoding.filling[at : at + column.width]
        if column.categories:
            if filling.any():
                found[column.name] = [max(0.0, 1.0 - float(filling.sum())), *map(float, filling)]
        elif not column.public:
            found[column.name] = [float(encoding.origin[at]), float(encoding.unit[at])]
        elif filling.any():
            found[column.name] = [float(filling[0] * encoding.unit[at] + encoding.origin[at])]
        at += column.width
    if not (encoding.label.categories or encoding.label.public):
        found[_LABEL] = [float(one) for one in encoding.target]
    return found


def moments(
    encoding: Encoding, coded: FloatArray, targets: FloatArray, *, shares: bool
) -> dict[str, list[float]]:
    """Return ``rows`` of a site: number, mean and sum of squared deviations of each column of
    numbers.

    Parameters
    ----------
    encoding : Encoding
        By the site's own rows, whose means and deviations it has.
    coded : array of shape (rows, width)
        Before scaling, NaN where a value is missing.
    targets : array of shape (rows,)
    shares : bool
        Whether missing values become means: ranges that a schema states have a mean then as well,
        and categories the number of rows of each.
    """
    found: dict[str, list[float]] = {}
    at = 0
    for column in encoding.columns:
        values = coded[:, at : at + column.width]
        if column.categories and shares:
            if column.zeros:
                found[column.name] = [float((~np.isnan(values[:, 0])).sum())]
            else:
                known = values[~np.isnan(values).any(axis=1)]
                each = [float(one) for one in known.sum(axis=0)]
                found[column.name] = [len(known) - sum(each), *each]
        elif not column.categories and (shares or not column.public):
            known = values[:, 0][~np.isnan(values[:, 0])]
            if column.public:
                found[column.name] = moments_of(known)
            else:
                deviation = known.size and float(encoding.unit[at])
                constant = not known.size or known.min() == known.max()
                squares = 0.0 if constant else deviation**2 * known.size
                found[column.name] = [float(known.size), float(encoding.origin[at]), squares]
        at += column.width
    if not (encoding.label.categories or encoding.label.public):
        found[_LABEL] = moments_of(targets)
    return found


def moments_of(values: FloatArray) -> list[float]:
    """Return number, mean and sum of squared deviations of known numbers."""
    if not len(values):
        return [0.0, 0.0, 0.0]
    if values.min() == values.max():
        return [float(len(values)), float(values[0]), 0.0]
    mean = float(values.mean())
    return [float(len(values)), mean, float(((values - mean) ** 2).sum())]


def read_as(columns: Iterable[SourceColumn], agreed: Meaning) -> list[SourceColumn]:
    """Return a table's columns in the order of an encoding, and with its categories."""
    known = {column.name: column for column in columns}
    found = []
    for name, facts in agreed.columns.items():
        column = known[name]
        if "categories" in facts:
            categories = tuple(map(str, facts["categories"]))
            zeros = len(categories) == 1 and facts.get("width", 0) > column.gap
            # Numbers 0 and 1 are booleans where other sites have such.
            column = replace(column, categories=categories, zeros=zeros, low=0.0, high=0.0)
        found.append(column)
    return found


def scaled_as(encoding: Encoding, agreed: Meaning, missing: str) -> Encoding:
    """Return an encoding of the same columns with the agreed means and deviations."""
    origin, unit, filling = (
        each.copy() for each in (encoding.origin, encoding.unit, encoding.filling)
    )
    at = 0
    for column in encoding.columns:
        numbers = agreed.scale.get(column.name)
        if numbers is not None and column.categories:
            if missing == "mean":
                filling[at : at + column.width] = numbers[1 : column.width + 1]
        elif numbers is not None and len(numbers) == 2 and not column.public:
            origin[at], unit[at] = numbers
            filling[at] = 0.0  # the mean of all rows
        elif numbers is not None and len(numbers) == 1 and missing == "mean":
            filling[at] = (numbers[0] - origin[at]) / unit[at]
        at += column.width
    label, target = encoding.label, encoding.target
    if _LABEL in agreed.scale and not (label.categories or label.public):
        target = (agreed.scale[_LABEL][0], agreed.scale[_LABEL][1])
    return replace(encoding, origin=origin, unit=unit, filling=filling, target=target)


def pooled(base: Meaning, sites: Sequence[Meaning]) -> dict[str, list[float]]:
    """Return mean and deviation of all sites' rows together, by column.

    Numbers, means and sums of squared deviations are merged two by two, which loses no digits where
    a mean is large (T. F. Chan, G. H. Golub and R. J. LeVeque, The American Statistician 37, 1983).
    """
    scale = {}
    for name in sorted({name for site in sites for name in site.rows}):
        facts = base.columns.get(name, {})
        if "categories" in facts:
            if any("categories" in site.columns[name] for site in sites if name in site.rows):
                scale[name] = _shares(name, facts["categories"], sites)
            continue
        merged = (0.0, 0.0, 0.0)
        for site in sites:
            if name in site.rows:
                merged = _merged(merged, site.rows[name])
        number, mean, squares = merged
        if "range" in facts:
            scale[name] = [mean]
        else:
            scale[name] = [mean, math.sqrt(squares / number) if squares > 0 and number else 1.0]
    return scale


def _merged(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    (n, mean, squares), (m, mean_of_other, more) = one, other
    if not n or not m:
        return (n, mean, squares) if n else (m, mean_of_other, more)
    apart = mean_of_other - mean
    return n + m, mean + apart * m / (n + m), squares + more + apart * apart * (n * m / (n + m))


def _shares(name: str, categories: Sequence[str], sites: Iterable[Meaning]) -> list[float]:
    counts = dict.fromkeys(categories, 0.0)
    for site in sites:
        texts, rows = site.columns[name].get("categories"), site.rows.get(name, ())
        if rows and texts is None:  # numbers 0 and 1
            ones = min(max(0.0, float(round(rows[0] * rows[1]))), rows[0])
            texts, rows = BOOLEANS, (rows[0] - ones, ones)
        for category, count in zip(texts or (), rows, strict=False):
            counts[category] += count
    total = sum(counts.values()) or 1.0
    return [count / total for count in counts.values()]


def fault_of_rows(statement: str, num_examples: int) -> str:
    """Return why a site of so many examples cannot have rows of which it states such numbers.

    An empty text says that it can. Numbers of rows are whole, and at most that of the examples and
    that of the rows with a label; at most one row has no deviation. More is not to be compared: the
    squares are of deviations from the stated mean, so that any that are not negative are possible.
    """
    if (site := read(statement)) is None:
        return ""
    label = str(site.label.get("name", ""))
    labels = site.rows.get(_LABEL, [math.inf])[0]
    for name, given in site.rows.items():
        categories = "categories" in site.columns.get(name, {})
        counts = given if categories else given[:1]
        number, of = sum(counts), f"rows of column {name or label!r}"
        if not all(float(one).is_integer() for one in counts):
            return f"states a number of {of} that is not whole"
        if number > num_examples:
            return f"states {number:.6g} {of}, and enrols with {num_examples} examples"
        if number > labels:
            return f"states {number:.6g} {of}, and {labels:.6g} with a label"
        if not categories and number <= 1 and given[2] > 0:
            return f"states a deviation of {number:.6g} {of}"
    return ""


# ------------------------------------------------------------------ units


class Doubts(NamedTuple):
    """Lines on columns that sites scale by their own rows."""

    several: list[str]
    """Where sites differ in a way that their rows hardly explain: numbers in several units, or
    different codes; dates from another first day; labels or numbers the other way round."""
    alone: list[str]
    """Where one site alone changes the deviation of all sites' rows (`moved_by_one`)."""


def between_sites(sites: Mapping[str, Meaning]) -> Doubts:
    """Return the doubts about columns by what sites state of their rows; a column that is in one
    list is in no other."""
    doubts = Doubts([], [])
    label = next((str(site.label.get("name", "")) for site in sites.values()), "")
    trends: dict[str, dict[str, float]] = {}
    told = set[str]()
    for name in dict.fromkeys(name for site in sites.values() for name in site.rows):
        columns = {one: site.columns.get(name, {}) for one, site in sites.items()}
        known = {one: site.rows[name] for one, site in sites.items() if name in site.rows}
        found, moved = list[str](), list[str]()
        if all(facts.get("dates") for facts in columns.values()):
            found = of_days(known)
        elif not any("categories" in facts or "dates" in facts for facts in columns.values()):
            given = {one: sites[one].codes.get(name, ()) for one, rows in known.items() if rows[0]}
            codes = {one: dict(zip(x[::2], x[1::2], strict=True)) for one, x in given.items()}
            found = of_numbers(known, codes)
            stated = any("range" in facts for facts in columns.values())
            moved = [] if stated else moved_by_one(known)
        lines = doubts.alone if moved else doubts.several
        lines.extend(f"column {name or label}: {one}" for one in found or moved)
        if found or moved:
            told.add(name)
        trends[name] = {one: site.trends.get(name, 0.0) for one, site in sites.items()}
    if "" not in told:
        # Ranks are the same in another unit: a column that is named already tells of the label.
        doubts.several.extend(text for name, text in turned(trends, label) if name not in told)
    return doubts


def moved_by_one(sites: Mapping[str, Sequence[float]]) -> list[str]:
    """Return lines on single sites that change the deviation of all sites' rows by a factor of ten
    or more: the numbers of all sites are divided by that deviation.

    Parameters
    ----------
    sites : mapping
        By name of the site, number, mean and sum of squared deviations of its numbers.
    """
    known = {name: rows for name, rows in sites.items() if rows[0]}
    if len(known) < 3:
        return []
    _, mean, squares = whole = reduce(_merged, known.values(), (0.0, 0.0, 0.0))
    apart = {n: rows[2] + rows[0] * (rows[1] - mean) ** 2 for n, rows in known.items()}
    suspects = {max(apart, key=apart.__getitem__), max(known, key=lambda name: known[name][0])}
    lines = []
    for name in sorted(suspects):
        others = (rows for one, rows in known.items() if one != name)
        number, _, rest = reduce(_merged, others, (0.0, 0.0, 0.0))
        if not (squares > 0 and rest > 0):
            continue
        factor = math.sqrt(squares / whole[0]) / math.sqrt(rest / number)
        if not 1 / _MOVED < factor < _MOVED:
            lines.append(
                f"the deviation by which all sites scale is {factor:.3g} times that without "
                f"{name!r}: check its numbers, or give the column a range in a schema"
            )
    return lines


def of_numbers(
    moments: Mapping[str, Sequence[float]], counts: Mapping[str, Mapping[float, float]]
) -> list[str]:
    """Return what to do where the numbers of one column may be in several units, or different
    codes.

    Few whole numbers are in one unit where sites have the same ones, however often.

    Parameters
    ----------
    moments : mapping
        As `several_units` has them.
    counts : mapping
        By name of the site, the rows of each whole number; empty where there are many, or others.
    """
    if not (counts and all(counts.values())):
        return several_units(moments)
    groups = parted_codes(counts)
    found = codes_apart(groups) or several_units(moments) if len(groups) > 1 else []
    return found or from_zero(counts)


def of_days(sites: Mapping[str, Sequence[float]]) -> list[str]:
    """Return what to do where the dates of a site are a century off, or count from the other first
    day of Excel.

    The dates of the other sites spread about as much, and their mean is so far away.

    Parameters
    ----------
    sites : mapping
        As `several_units` has them, of numbers of days.
    """
    known = {one: rows for one, rows in sites.items() if rows[0] >= _ENOUGH_DATES and rows[2] > 0}
    number, mean, squares = reduce(_merged, known.values(), (0.0, 0.0, 0.0))
    for site, (n, own, spread) in known.items():
        if not (others := number - n):
            break
        rest = mean + (mean - own) * n / others
        left = squares - spread - n * others / number * (own - rest) ** 2
        deviations = math.sqrt(spread / n), math.sqrt(max(0.0, left) / others)
        narrow, wide = sorted(deviations)
        if wide > _ALIKE * narrow:
            continue
        apart = own - rest
        if abs(abs(apart) - CENTURY) < wide and abs(apart) > _APART * sum(deviations):
            than = "later" if apart > 0 else "earlier"
            return [
                f"the dates of {site!r} are about a century {than} than all others (about "
                f"{_day(own)} and {_day(rest)}): write years with four digits, and check these"
            ]
        near = min(wide / 3, 180.0)
        if abs(abs(apart) - _EPOCHS) < near and apart**2 > 2 * wide**2:
            return [
                f"the dates of {site!r} and of all others are {_EPOCHS:.0f} days apart, as those "
                "of Excel's calendars of 1900 and 1904: set one calendar in Excel, and export again"
            ]
    return []


def _day(days: float) -> str:
    return str(np.datetime64(int(days), "D")) if abs(days) < 1e7 else f"day {days:.6g}"


def several_units(sites: Mapping[str, Sequence[float]]) -> list[str]:
    """Return what to do where the numbers of one column may be in several units; nothing where
    they lie close enough together.

    Sites are sorted by their means. Two neighbours whose means have one sign are apart where these
    differ by 1.5 sums of their deviations and by half, as 37 and 98.6 degrees do, or by 1.28 with
    the same relative deviation, as haemoglobin in g/dl and mmol/l; or where they differ by a factor
    of 4 or more, and by three standard errors, with about the same relative deviation, as skewed
    quantities in mg/l and mg/dl do. Others are by 6 sums, where one mean is beyond 10, as those of
    a longitude and a latitude. So are numbers with the other sign, standardised ones, and
    logarithms.

    Parameters
    ----------
    sites : mapping
        By name of the site, number, mean and sum of squared deviations of its numbers.
    """
    known = {name: rows for name, rows in sites.items() if rows[0] >= _FEW and rows[2] > 0}
    groups: list[list[str]] = []
    for name in sorted(known, key=lambda name: known[name][1]):
        if not groups or _are_apart(known[groups[-1][-1]], known[name]):
            groups.append([])
        groups[-1].append(name)
    if len(groups) < 2:
        return []
    each = " and ".join(
        f"about {rounded(known[group[len(group) // 2]][1])} in {some(sorted(group))}"
        for group in groups
    )
    return [
        f"{each}: if their units differ, convert them to one; if two columns are swapped, exchange "
        "them"
    ]


def rounded(number: float) -> str:
    """Return a number to three digits, and of a larger one those before the point."""
    return f"{number:.0f}" if 1e3 <= abs(number) < 1e9 else f"{number:.3g}"


def _is_other_scale(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether means and deviations are those of numbers with the other sign, of standardised
    beside raw ones, or of logarithms beside what they are of."""
    (low, narrow), (high, wide) = one, other
    if low * high < 0 and abs(low + high) < _MIRRORED * abs(high - low):
        shapes = narrow / -low, wide / high
        return max(shapes) < min(0.5, _ALIKE * min(shapes))
    for (mean, deviation), (far, spread) in ((one, other), (other, one)):
        standard = abs(mean) < 0.3 and 0.7 < deviation < 1.4
        if standard and abs(far) > 5 and abs(far - mean) > _APART * (spread + deviation):
            return True
    if not (low > max(1, narrow) and high > _LARGE * low and wide > narrow):
        return False
    # The mean and deviation of lognormal numbers follow from those of their logarithms.
    for base in (2.0, math.e, 10.0):
        mean, squares = low * math.log(base), (narrow * math.log(base)) ** 2
        if mean < 50 and squares < 10:
            middle = mean + squares / 2
            relative = math.sqrt(math.expm1(squares))
            if abs(math.log(high) - middle) < 1 and 0.4 < wide / high / relative < 2.5:
                return True
    return False


def _are_degrees(celsius: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether means and deviations are those of one temperature in Celsius and Fahrenheit,
    which the other rules miss where its deviation is large beside its mean."""
    (mean, deviation), (far, spread) = celsius, other
    wide = 1.8 * deviation
    return wide / _SAME < spread < wide * _SAME and abs(1.8 * mean + 32 - far) < spread / 2


def _are_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    (n, low, squares), (m, high, more) = one, other
    deviations = math.sqrt(squares / n), math.sqrt(more / m)
    if min(n, m) >= 20 and _is_other_scale((low, deviations[0]), (high, deviations[1])):
        return True
    if low * high <= 0:  # one unit is a multiple of another, but for degrees around zero
        return max(-low, high) > _FAR_FROM_0 and high - low > _OPPOSITE * sum(deviations)
    small, large = sorted((abs(low), abs(high)))
    if high - low > sum(deviations) and _are_degrees((low, deviations[0]), (high, deviations[1])):
        return True
    shapes = [each / abs(mean) for each, mean in zip(deviations, (low, high), strict=True)]
    kept = max(shapes) <= _SAME * min(shapes)
    if high - low > (_MIDDLE if kept else _APART) * sum(deviations):
        disjoint = kept and high - low > _DISJOINT * sum(deviations)
        return large >= (_NEAR if disjoint else _RATIO) * small
    error = math.sqrt(squares / n**2 + more / m**2)
    far = large >= _LARGE * small and high - low >= _ERRORS * error
    return far and max(shapes) <= _ALIKE * min(shapes)
