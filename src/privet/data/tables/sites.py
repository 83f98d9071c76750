"""What the rows of each site have in a column, and what is doubtful about it.

A site is an agent whose rows are known: a file of a folder, an id of ``id-column``, or one of
several tables that are compared. All of these are judged by the same facts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privet.core import mapped
from privet.core.ordered import counted

from ..codes import lacked
from ..dataset import Dataset, Fault, FloatArray, Indices, LabelArray, some
from ..scaling import CENTURY, moments_of, of_days, of_numbers
from ..source_column import ColumnFacts, SourceColumn
from ..trends import Trends, against, out_of_step, ties_of, trend_of, turned
from .copies import between_rows
from .doubts import FEW, VARIED, words
from .faults import MOST_CLASSES
from .heaps import of_part
from .values import as_numbers, codes_of, is_number

_MOST_SITES = 200
"""Ids beyond which they are rather persons than sites."""
_MOST_TIED = 32
"""Columns at most of which each two are compared."""
_ENOUGH = 20
"""Rows from which all numbers of one node say something of their unit, or of their kind."""
_PART = 100.0
"""All numbers within this part of what a schema states are rather in another unit."""
_MOST_GROUPS = 5
"""Groups of categories that a line names."""
_MOST_GAPS = 4
"""Groups of far numbers at most: 999, 9999 and an error are three."""
_MOST_CODES = 3
"""Codes of missing values in one group, such as 997, 998 and 999."""
_UNANSWERED = ((7.0, 9.0), (77.0, 99.0), (777.0, 999.0))
"""Codes of a survey for what somebody refused to answer or did not know."""
_FEW_FAR = 0.1
"""Far rows, as a part of the others, up to which they are rather errors than a second unit."""
_COMMON_CODE = 0.05
"""Part of the rows from which each of few numbers is a code, beside which one may be an error."""
_EVEN = 2.5
"""Ends of numbers whose distances from the median differ by less than this: no skewed ones."""
_ID_WORDS = {"id", "pid", "uid", "uuid", "key", "nr", "no", "number", "index", "patient", "case"}
_ID_WORDS |= {"mrn", "ssn", "subject", "sample", "record", "encounter", "participant", "proband"}
_ID_WORDS |= {"nummer", "fallnummer", "fallnr", "patnr"}
_UNKNOWN = {"unknown", "not known", "unbekannt", "keine angabe", "inconnu", "desconocido"}
"""Categories and classes that mostly say that a value is missing, in small letters."""
_COMMON = 0.6
"""Part of the other rows from which a value in every row of a site is no wonder."""
_PART_OF_ROWS = 0.05
"""Part of a site's rows from which a category that it alone has is no rare one."""
_CHANCE, _CHANCE_OF_UNKNOWN = 1e-6, 1e-3
"""The chance that none of some rows have a category, if rows were dealt to sites at random, below
which it is doubted; higher for a word of `_UNKNOWN`, which often stands for an empty cell."""
_OFTEN, _MORE_OFTEN = 0.2, 6.0
"""Part of a site's rows with one number, so many times that of the other sites, that is doubted."""
_CODES = r"-[189]|-?99+|9|-?(9+[.]9+|8+[.]8+|7+[.]7+)"
"""Numbers that often stand for missing values."""
_NEXT, _LONE, _DIGITS = 5, 4.0, 7
"""A number in more than so many times the rows of each of the five below and above it is alone; of
digits behind the point up to so many are looked at."""
_AWAY = 0.2
"""Where all numbers of the other sites are from such a part of their median on, a 0 is a code."""
_ALONE = 8.0
"""One negative number in several rows, so many times as far from the others as any next two of
their lower half are from each other, is a code."""
_TURNED = 0.4
"""Ranks among the numbers of other sites differ by more than this from those at the own site, where
the sign there is another."""
_MIXED = 0.1
"""Part of a site's rows with a third code from which it is no rare one."""
_ALIKE = 0.15
"""Ranks among the numbers of other sites differ by less than this from those at the own site."""
_LEVELS = (np.arange(20) + 0.5) / 20
_PLURAL = {"class": "classes", "category": "categories"}

Sites = Mapping[str, ColumnFacts]
"""The facts of one column, by name of the site."""


def facts_of(
    column: SourceColumn, values: Any, sites: Mapping[str, Indices | slice]
) -> dict[str, ColumnFacts]:
    """Return by name of the site, of which ``sites`` has the rows, the facts of a column."""
    if column.categories:
        codes = codes_of(values, column)
        return {name: _of_categories(codes[rows], column) for name, rows in sites.items()}
    numbers = as_numbers(values)
    return {name: _of_numbers(numbers[rows]) for name, rows in sites.items()}


def with_trends(
    facts: Mapping[str, Sites],
    columns: Sequence[SourceColumn],
    values: Mapping[str, Any],
    sites: Mapping[str, Indices | slice],
) -> dict[str, dict[str, ColumnFacts]]:
    """Return facts, by name of the column, with the trends of features that have an order, beside a
    label, the last column, that has one, and with the ties between the first of them."""
    *inputs, label = columns
    found = {name: dict(own) for name, own in facts.items()}
    targets = _ordered(label, values[label.name])
    known: dict[str, FloatArray] = {}
    for one in inputs:
        numbers = None if one.constant else _ordered(one, values[one.name])
        if numbers is not None:
            known[one.name] = mapped.kept(numbers, numbers.nbytes * len(inputs))
    tied = list(known)[:_MOST_TIED]
    for site, rows in sites.items():
        ties = ties_of([known[name][rows] for name in tied])
        for at, name in enumerate(tied):
            with_others = dict(zip(tied[at + 1 :], ties[at, at + 1 :].tolist(), strict=True))
            found[name][site] = replace(found[name][site], ties=with_others)
        if targets is not None:
            for name, numbers in known.items():
                trend = trend_of(numbers[rows], targets[rows])
                found[name][site] = replace(found[name][site], trend=trend)
    return found


def _ordered(column: SourceColumn, values: Any) -> FloatArray | None:
    """Return a column as numbers, NaN where one is missing; None of other than two categories."""
    if not column.categories:
        return as_numbers(values)
    two = len(column.categories) == 2
    return np.asarray([0.0, 1.0, np.nan])[codes_of(values, column)] if two else None


def _of_categories(codes: LabelArray, column: SourceColumn) -> ColumnFacts:
    counts = np.bincount(codes, minlength=len(column.categories) + 1).tolist()
    missing = counts.pop()
    known = {text: n for text, n in zip(column.categories, counts, strict=True) if n}
    return ColumnFacts(len(codes) - missing, missing, counts=known)


def _of_numbers(numbers: FloatArray) -> ColumnFacts:
    missing = int(np.isnan(numbers).sum())
    known = numbers[~np.isnan(numbers)] if missing else numbers
    if not len(known):
        return ColumnFacts(0, missing, moments=(0.0, 0.0, 0.0))
    each, counts = counted(known)
    low, high = float(each[0]), float(each[-1])
    whole = bool((each == np.floor(each)).all())
    few = whole and len(each) <= MOST_CLASSES
    different = whole and len(each) == len(known) > MOST_CLASSES and not missing
    varied = not few and len(each) >= VARIED and len(known) >= _ENOUGH
    most = np.flatnonzero((50 * counts >= len(known)) & (counts > 1)) if varied else ()
    levels = tuple(np.quantile(known, _LEVELS).tolist()) if varied else ()
    ids = different and (high - low < 2 * len(known) or _in_order(known))
    return ColumnFacts(
        len(known),
        missing,
        low,
        high,
        tuple(moments_of(known)),
        dict(zip(each.tolist(), counts.tolist(), strict=True)) if few else {},
        whole,
        ids,
        different,
        _far(each, counts),
        {float(each[at]): int(counts[at]) for at in most},
        levels,
        lone=tuple(float(each[at]) for at in most if _is_lone(counts, int(at))),
        filled=_filled(each, counts, most, levels),
    )


def _is_lone(counts: Any, at: int) -> bool:
    """Return whether a number is in far more rows than each of the next ones in order."""
    near = np.r_[counts[max(0, at - _NEXT) : at], counts[at + 1 : at + 1 + _NEXT]]
    return bool(counts[at] >= FEW and counts[at] > _LONE * near.max())


def _filled(
    each: FloatArray, counts: Any, most: Any, levels: Sequence[float]
) -> tuple[float, int] | None:
    """Return the number, with its rows, that may be a mean filled in for missing values.

    It has digits behind the point that no other number has; or is the mean of the others, and in
    far more rows than these.
    """
    if not len(most):
        return None
    inner = [at for at in most if counts[at] >= FEW and levels[1] < each[at] < levels[-2]]
    for at in sorted(inner, key=lambda one: -counts[one])[:_MOST_CODES]:
        rest, rows = np.delete(each, at), np.delete(counts, at)
        finest = next((d for d in range(_DIGITS) if _are_of(rest, d)), None)
        if finest is not None and not _are_of(each[at : at + 1], finest):
            return float(each[at]), int(counts[at])
        mean = float((rest * rows).sum() / rows.sum())
        step = 0.0 if finest is None else 10.0**-finest
        near = max(0.51 * step, 1e-9 * abs(mean))
        # Of numbers that some rows have rounded, many are so; a mean is one alone.
        if _is_lone(counts, at) and counts[at] > 2 * rows.max() and abs(each[at] - mean) <= near:
            return float(each[at]), int(counts[at])
    return None


def _are_of(numbers: FloatArray, digits: int) -> bool:
    """Return whether numbers have no more digits behind the point."""
    scaled = numbers * 10.0**digits
    return bool(np.abs(scaled - np.round(scaled)).max() <= 1e-6)


def _in_order(numbers: FloatArray) -> bool:
    steps = np.diff(numbers)
    return bool((steps > 0).all() or (steps < 0).all())


def _far(each: FloatArray, counts: Any) -> tuple[tuple[float, int], ...]:
    """Return numbers that lie far from all others, with their rows.

    Looked at are the numbers beyond the widest gap, again among those that are left, then negative
    ones, and zeros, below positive ones.
    """
    found: list[tuple[float, int]] = []
    for _ in range(_MOST_GAPS):
        if len(each) < 2:
            break
        at = int(np.argmax(np.diff(each))) + 1
        sides = slice(at, None), slice(at)
        for far, rest in (sides, sides[::-1]):
            if _are_far(each[far], counts[far], each[rest], counts[rest]):
                break
        else:
            break
        found += zip(each[far].tolist(), counts[far].tolist(), strict=True)
        each, counts = each[rest], counts[rest]
    for at in (int((each < 0).sum()), int((each <= 0).sum())):
        if 0 < at < len(each) and _are_low(each[:at], counts[:at], each[at:], counts[at:]):
            found += zip(each[:at].tolist(), counts[:at].tolist(), strict=True)
            each, counts = each[at:], counts[at:]
    return tuple(found)


def _are_far(far: FloatArray, rows: Any, rest: FloatArray, others: Any) -> bool:
    """Return whether numbers on one side of a gap are codes, errors or of another unit."""
    total, width = int(rows.sum()), float(rest[-1] - rest[0])
    gap = max(far[0] - rest[-1], rest[0] - far[-1])
    if total + others.sum() < 3:
        return False
    counted = rest[0] in (0.0, 1.0) and width == len(rest) - 1 > 0
    if counted and gap > 1 and total >= FEW and tuple(far) in _UNANSWERED:
        return True
    if len(far) <= _MOST_CODES and total > 1:
        code = "-?9+" if len(rest) <= 3 else r"-?([789])\1*|9*[789]"
        same = all(re.fullmatch(code, f"{one:.15g}") for one in far)
        small = len(rest) > 3 and counted
        digit = len(rest) > 3 and 0 < far[0] < 10  # a count, rather, in few rows
        enough = total >= FEW or not (digit or gap == width)
        if same and enough and (gap > width or (small and gap == width)):
            return True
    if others.sum() < _ENOUGH:
        return False
    # Measured numbers do not repeat so often: 999 in 30 rows beside 80 to 650.
    often = len(far) == 1 and total >= FEW and total > 2 * int(others.max())
    if often and re.fullmatch("99+", f"{far[0]:.15g}") and len(rest) >= VARIED and 4 * gap > width:
        return True
    if total == 1 and 1 < len(rest) < VARIED and _COMMON_CODE * others.sum() <= others.min():
        return bool(gap >= 5 * width)
    if len(rest) <= 3:
        return False
    if len(far) == 1 and 1 < total <= others.sum() and len(rest) >= VARIED and gap > 2 * width:
        return True
    many = total > _FEW_FAR * others.sum()
    if many and (total > others.sum() or min(len(far), len(rest)) < VARIED):
        return False
    if many and gap < 3 * max(width, float(far[-1] - far[0])):
        return False
    if gap < width * (1 if len(rest) >= VARIED else 10):
        return False
    # Skewed numbers, such as doses or incomes, have wide gaps, but no wide ratios.
    positive = rest[rest > 0]
    if rest[0] < 0 or len(positive) < 3:
        return bool(gap > 20 * width)
    if far[0] <= 0:
        return bool(far[-1] < 0 and gap > 3 * width)
    ratio = max(far[0] / rest[-1], positive[0] / far[-1])
    if ratio > positive[-1] / positive[0]:
        return True
    middle = rest[np.searchsorted(np.cumsum(others), others.sum() / 2)]
    short, long = sorted((rest[-1] - middle, middle - rest[0]))
    return bool(long <= _EVEN * short and gap > 3 * width)


def _are_low(low: FloatArray, rows: Any, rest: FloatArray, others: Any) -> bool:
    """Return whether negative numbers, or zeros, are codes below numbers that stay away from 0."""
    total, known = int(rows.sum()), int(others.sum())
    steps = np.diff(rest[: len(rest) // 2 + 1])
    if known < _ENOUGH or len(rest) < 4:
        return False
    gap = float(rest[0] - low[-1])
    lone = len(low) == 1 and low[0] < 0 and total >= FEW and len(rest) >= VARIED
    if lone and gap > _ALONE * steps.max():
        return True  # such as -200, or -9 in a count
    if rest[0] <= 0:
        return False
    if low[-1] < 0:
        signs = rest[0] <= -np.median(low) <= rest[-1] and 2 * total <= known
        if signs and len(rest) >= VARIED and rest[0] > 3 * steps.max():
            return True  # others without their sign
        codes = all(re.fullmatch(r"-(\d|([789])\2+)", f"{one:.15g}") for one in low)
        return bool(codes and len(low) <= _MOST_CODES and total > 1 and gap > steps.max())
    if len(low) > 1 or len(rest) < VARIED or 2 * total > 3 * known:
        return False
    mean = float((rest * others).sum() / known)
    deviation = math.sqrt(float(((rest - mean) ** 2 * others).sum()) / known)
    least = 0.8 if 4 * total <= known else 1.5  # many zeros may be meant
    if gap > least * deviation and gap > 3 * steps.max():
        return True
    # One number alone between them is of the others, where it is nearer to these.
    second, steps = float(rest[1]), steps[1:]
    alone = total >= FEW and others[0] < FEW and second < 2 * gap
    return bool(alone and second > least * deviation and second > 3 * steps.max())


# ------------------------------------------------------------------ a column


def of_column(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return what is doubtful about a column of features by all rows together."""
    of = f"column {column.name}:"
    if column.public:
        return _of_range(column, facts)
    if column.constant and not column.missing:
        text = f"{of} {facts.only[:40]} in every row, which no model learns from: leave it out"
        return [Fault(text, drop=(column.name,), stops=False, of_sites=True)]
    if column.categories or column.dates:
        return []
    if _may_be_ids(column, facts):
        text = f"{of} a different whole number in every row: if it is an id, leave it out"
        return [Fault(text, drop=(column.name,), stops=False)]
    return []


def of_filled(column: SourceColumn, own: Sites) -> list[Fault]:
    """Return the doubt that missing values of sites, "" for all rows, are filled with a mean."""
    lines = []
    for site, one in own.items():
        if one.filled and not column.dates:
            value, rows = one.filled
            lines.append(f"{value:.7g} in {rows} of {one.rows} rows{f' of {site!r}' * bool(site)}")
    if not lines:
        return []
    text = (
        f"column {column.name}: {', '.join(lines[:_MOST_CODES])}, unlike the numbers next to it: "
        "if it is a mean, filled in for missing values, leave these cells empty"
    )
    return [Fault(text, stops=False, of_sites=True, weight=1)]


def of_skipped(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return the doubt that whole numbers are codes of categories, such as 1 to 4, 6 and 7.

    They are five numbers or more from 0 or 1 on, and each that no row has is between two that
    `_ENOUGH` rows have. The frequencies of counts and scores rise to a mode and fall, so that one
    between two common ones is common: they skip numbers in their tail alone, as of 0, 1, 2, 3 and 5
    children.
    """
    counts = facts.counts
    if column.public or column.categories or column.dates or not 5 <= len(counts) < VARIED:
        return []
    each = sorted(counts)
    skipped = [one for one in np.arange(each[0], each[-1]).tolist() if one not in counts]
    beside = [counts.get(one + step, 0) for one in skipped for step in (-1.0, 1.0)]
    if each[0] not in (0.0, 1.0) or not skipped or min(beside) < _ENOUGH:
        return []
    text = (
        f"column {column.name}: {', '.join(f'{one:g}' for one in each)} are used as a quantity, "
        f"and no row has {', '.join(f'{one:g}' for one in skipped)}: if they are codes, list them "
        "as texts in a schema, and each is a category"
    )
    return [Fault(text, stops=False)]


def _may_be_ids(column: SourceColumn, facts: ColumnFacts) -> bool:
    return facts.ids or (facts.different and bool(_ID_WORDS & set(words(column.name))))


def _of_range(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return the doubt that numbers are in another unit than the range that a schema states."""
    if column.categories or column.dates or facts.rows < _ENOUGH:
        return []
    largest = max(abs(facts.low), abs(facts.high))
    if not 0.0 < largest <= max(abs(column.low), abs(column.high)) / _PART:
        return []
    text = (
        f"column {column.name}: all numbers lie in {facts.low:g} to {facts.high:g}, within a "
        f"hundredth of the schema's [{column.low:g}, {column.high:g}]: if it is in another unit, "
        "convert it"
    )
    return [Fault(text, stops=False)]


def of_missing_classes(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return the doubt that some of three or more classes stand for missing labels."""
    classes = column.categories
    if column.public or len(classes) < 3:
        return []
    if all(map(is_number, classes)):
        each = {float(one): one for one in classes}
        numbers = np.asarray(sorted(each))
        missing = [each[one] for one, _ in _far(numbers, np.full(len(numbers), FEW))]
    else:
        missing = [one for one in classes if one.casefold().strip() in _UNKNOWN]
    if not missing:
        return []
    rows = sum(facts.counts[one] for one in missing)
    text = (
        f"column {column.name}: the {_several('class', missing)} in {rows} of {facts.rows} rows: "
        "if it stands for missing labels, leave these cells empty (missing-labels = drop leaves "
        "these rows out)"
    )
    return [Fault(text, stops=False)]


def of_broken(column: SourceColumn, numbers: FloatArray) -> list[Fault]:
    """Return the doubt that few labels that are not whole make a quantity of classes."""
    known = numbers[~np.isnan(numbers)]
    broken = known != np.floor(known)
    rows, values = int(broken.sum()), np.unique(known[~broken])
    if column.public or not 0 < rows <= _FEW_FAR * len(known) or len(known) < _ENOUGH:
        return []
    if not 2 <= len(values) <= MOST_CLASSES or VARIED * len(values) > len(known):
        return []
    text = (
        f"column {column.name}: {known[broken][0]:g} in {rows} row{'s' * (rows > 1)}, and whole "
        f"numbers ({', '.join(f'{one:g}' for one in values[:4])}{' ...' * (len(values) > 4)}) in "
        "all others: a quantity is predicted; if the labels are classes, mend or empty these cells"
    )
    return [Fault(text, stops=False)]


def _several(what: str, values: Sequence[str]) -> str:
    """Return a class or a category, or several, by name."""
    return f"{what if len(values) == 1 else _PLURAL[what]} {some(values)}"


# ------------------------------------------------------------------ sites of one table


def sites_of(ids: LabelArray, least: int = 1) -> dict[str, Indices]:
    """Return the rows of each site, by its name: of ids with so many rows at least; none where
    there is one alone, or where there are so many that they are rather persons."""
    if (ids[:1] == ids).all():
        return {}
    names, numbers, counts = np.unique(ids, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= least)
    if not 1 < len(enough) <= (_MOST_SITES if least > 1 else len(names)):
        return {}
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
    return {str(names[at]): rows[at] for at in enough}


def of_each(
    inputs: Iterable[SourceColumn],
    label: SourceColumn,
    values: Mapping[str, Any],
    sites: Mapping[str, Indices],
    facts: Mapping[str, Sites],
    whole: Mapping[str, ColumnFacts],
) -> list[Fault]:
    """Return the doubts about columns at single sites, which all rows together would hide: ids that
    begin anew, one value in every row, numbers that may stand for missing ones. A label that is a
    quantity is treated as a feature is, but for zeros and ids.

    ``facts`` are those of the sites, by name of the column, ``whole`` those of all rows.
    """
    ids, constant, frequent = [], [], set[str]()
    far: list[tuple[str, str]] = []
    columns = list(inputs)
    for column in (*columns, label):
        name = column.name
        own = {site: one for site, one in facts[name].items() if one.rows}
        of = f"column {name}:"
        common = 1.0 if column is label else _COMMON
        dealt = column is label and all(one.only for one in own.values())  # by label, on purpose
        text = _of_constants(column, values[name], sites, own, common)
        if text and not (column.constant or dealt):
            constant.append((name, f"{of} {text}"))
        if column.categories:
            continue
        # Where that is said, it need not be said of all rows, nor of zeros.
        if often := _of_often(own, column.dates):
            frequent.add(name)
        if found := _of_far(own, () if often else whole[name].far, column.dates):
            far.append((name, f"{of} {found}"))
        if column.dates or column is label:
            continue
        known = [site for site, one in own.items() if one.rows > MOST_CLASSES]
        alike = [site for site in known if _may_be_ids(column, own[site])]
        if not column.public and alike and 2 * len(alike) >= len(known):
            text = f"{of} a different whole number in every row of {some(alike)}"
            text = f"{text}: if it is an id, leave it out"
            ids.append(Fault(text, drop=(name,), stops=False))
            far = [one for one in far if one[0] != name]
    told = {name for name, _ in (*constant, *far)} | frequent
    filled = [
        fault
        for one in columns
        if one.name not in told
        for fault in of_filled(one, facts[one.name])
    ]
    zeros = [name for name, _ in far if 0.0 in dict(whole[name].far)]
    far += _of_zeros([one for one in columns if one.name not in told], values, zeros)
    return [
        *ids,
        *_lines(constant, 1),
        *_lines(far, 1),
        *filled,
    ]


def _of_constants(
    column: SourceColumn, values: Any, sites: Mapping[str, Indices], own: Sites, common: float
) -> str:
    """Return the doubt that sites have one value in every row, which others have less often, by
    more than chance (1e-6), and in less than a part of the rows, ``common``."""
    if not (alone := {site: one.only for site, one in own.items() if one.only and not one.missing}):
        return ""
    of = codes_of(values, column) if column.categories else as_numbers(values)
    by_value: dict[str, list[str]] = {}
    for site in alone:
        rows, first = len(sites[site]), of[sites[site][0]]
        elsewhere = (int((of == first).sum()) - rows) / max(1, len(of) - rows)
        if rows >= FEW and elsewhere < common and lacked(1.0 - elsewhere, rows // 2):
            by_value.setdefault(own[site].only[:40], []).append(site)
    return _constants(by_value)


def _of_constant_tables(own: Sites) -> str:
    """Return the doubt of `_of_constants` by the facts of sites alone."""
    by_value: dict[str, list[str]] = {}
    for site, one in own.items():
        others = [other for name, other in own.items() if name != site]
        if not one.only or one.missing or one.rows < FEW or not others:
            continue
        value: Any = one.low if one.moments else one.only
        if any(not other.counts and other.low <= value <= other.high for other in others):
            continue  # nothing says how many of these rows have it
        elsewhere = sum(other.counts.get(value, 0) for other in others)
        part = elsewhere / sum(other.rows for other in others)
        if part < _COMMON and lacked(1.0 - part, one.rows // 2):
            by_value.setdefault(one.only[:40], []).append(site)
    return _constants(by_value)


def _constants(by_value: Mapping[str, Sequence[str]]) -> str:
    """Return the doubt about values, each in every row of some sites."""
    if not by_value:
        return ""
    each = [f"{only} in every row of {some(where)}" for only, where in by_value.items()]
    more = " and so on" if len(each) > 2 else ""
    return (
        f"{', '.join(each[:2])}{more}, and other values elsewhere: if it stands for missing "
        "values, leave these cells empty; else check that this column was exported right"
    )


def _of_far(own: Sites, whole: Sequence[tuple[float, int]], dates: str) -> str:
    """Return the doubt about numbers far from all others at sites, else in all rows."""
    found: dict[float, int] = {}
    sites = []
    for site, one in own.items():
        if far := [
            (code, rows)
            for code, rows in one.far
            if not any(
                other.low <= code <= other.high and code not in dict(other.far)
                for name, other in own.items()
                if name != site
            )
        ]:
            sites.append(site)
            for code, rows in far:
                found[code] = found.get(code, 0) + rows
    if not found:
        ends = [code for code, _ in whole]
        if any(min(ends) <= one.low <= one.high <= max(ends) for one in own.values() if ends):
            return ""  # those of a whole site
        found = dict(whole)
    if not found:
        return ""
    codes = sorted(found, key=lambda one: (abs(one), one))
    shown = [str(np.datetime64(int(one), "D")) if dates else f"{one:.7g}" for one in codes]
    if len(shown) > _MOST_CODES:
        shown = [f"{len(shown)} numbers such as {shown[0]}"]
    rows = sum(found.values())
    return (
        f"{', '.join(shown)} in {rows} row{'s' * (rows > 1)}{f' of {some(sites)}' * bool(sites)}, "
        "far from all other numbers: if it stands for missing values, leave these cells empty; "
        "correct an error, convert another unit, take out a row of totals"
    )


def _of_zeros(
    columns: Iterable[SourceColumn], values: Mapping[str, Any], others: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the doubts about zeros beside amounts that come nearer to 0, but by no small step, in
    a table of which ``others`` have zeros far from all other numbers."""
    found = []
    for name in [one.name for one in columns if not (one.categories or one.dates)] * bool(others):
        numbers = as_numbers(values[name])
        each, counts = counted(numbers[~np.isnan(numbers)])
        rest, rows = each[1:], int(counts[0]) if len(each) else 0
        if len(rest) < VARIED or each[0] or 2 * rows > 3 * counts[1:].sum():
            continue
        if rest[0] > 3 * np.median(np.diff(rest[: len(rest) // 2 + 1])):
            text = (
                f"column {name}: 0 in {rows} row{'s' * (rows > 1)}, and {rest[0]:g} or more in all "
                f"others: if it stands for missing values, as it may in {some(others)}, leave "
                "these cells empty"
            )
            found.append((name, text))
    return found


def _lines(found: Sequence[tuple[str, str]], weight: int) -> list[Fault]:
    return [Fault(text, stops=False, weight=weight) for _, text in found]


# ------------------------------------------------------------------ between sites


def between_tables(tables: Mapping[str, Dataset]) -> list[Fault]:
    """Return what is doubtful about columns that the tables of several sites have in common."""
    first = next(iter(tables.values()))
    doubted = {
        name
        for table in tables.values()
        for fault in table.doubts
        if fault.of_values
        for name in (*fault.drop, *fault.keys.values())
        if name in table.facts and not table.facts[name].only
    }
    each = [{one.name: one for one in table.source_columns} for table in tables.values()]
    columns = []
    for name in (column.name for column in first.source_columns if column.name not in doubted):
        same = [known[name] for known in each if name in known]
        most = max(same, key=lambda one: len(one.categories))
        alike = len({(one.dates, bool(one.categories)) for one in same}) == 1
        within = all(set(one.categories) <= set(most.categories) for one in same)
        if len(same) == len(tables) and alike and within:
            columns.append(most)
    facts = {
        one.name: {site: each.facts[one.name] for site, each in tables.items()} for one in columns
    }
    label = first.source_columns[-1].name
    constant = [
        (column.name, f"column {column.name}: {text}")
        for column in columns
        if column.name != label and (text := _of_constant_tables(facts[column.name]))
    ]
    told = {name for name, _ in constant}
    digests = {site: one.row_digests for site, one in tables.items() if one.row_digests}
    return [
        *_lines(constant, 1),
        *between([one for one in columns if one.name not in told], facts, label),
        *between_rows(digests),
    ]


def between(
    columns: Iterable[SourceColumn], facts: Mapping[str, Sites], label: str, test: str = ""
) -> list[Fault]:
    """Return what is doubtful about columns by the facts of several sites, by name of the column.

    Parameters
    ----------
    columns : iterable of SourceColumn
    facts : mapping
        By name of the column.
    label : str
        The name of the column of the labels.
    test : str
        The name of the site that is the test set.
    """
    found: list[tuple[str, str]] = []
    columns = list(columns)
    for column in columns:
        own = {site: one for site, one in facts[column.name].items() if one.rows}
        if column.categories:
            texts = _of_parted(column, own, test, "class" if column.name == label else "category")
        elif texts := _of_often(own, column.dates):
            pass
        elif column.dates:
            moments = {site: one.moments for site, one in own.items()}
            texts = of_days(moments) or _of_part_of_days(own)
        else:
            moments = _without_codes(own)
            texts = of_numbers(moments, {site: one.counts for site, one in own.items()})
            if column.name == label and not column.public:
                texts += _of_kinds(own)
            texts = texts or of_part(own) or _of_signs(own)
            if column.name != label:
                texts = texts or _of_few_codes(own) or _of_mixed_codes(own)
        found += [(column.name, f"column {column.name}: {text}") for text in texts]
    told = {name for name, _ in found}
    if label not in told and any(column.name == label for column in columns):
        every = [one.name for one in columns if one.name != label]
        known = [name for name in every if name not in told]
        trends = {name: {site: one.trend for site, one in facts[name].items()} for name in every}
        # Ranks are the same in another unit: a column that is named already tells of the label.
        lines = [(name, text) for name, text in turned(trends, label) if name not in told]
        found += lines or _of_steps(known, facts, label)
    known = [one.name for one in columns if one.name not in {*(name for name, _ in found), label}]
    if label not in {name for name, _ in found}:
        found += _of_ties(known, facts)
    return _lines(found, 2)


def _of_steps(
    names: Sequence[str], facts: Mapping[str, Sites], label: str
) -> list[tuple[str, str]]:
    """Return the doubt that labels of a site belong to other rows."""
    return [
        (
            label,
            f"column {label}: goes with {some(columns)} at all other sites, and with none of these "
            f"in {site!r}: if its labels are out of step with the rows there, by a row or by a "
            "sort of their own, export them again with the rows",
        )
        for site, columns in out_of_step(_trends(names, facts))
    ]


def _of_ties(names: Sequence[str], facts: Mapping[str, Sites]) -> list[tuple[str, str]]:
    """Return the doubts about columns that go with others at a site the other way round."""
    return [
        (
            name,
            f"column {name}: goes with {some(others)} in {site!r} the other way round than "
            "elsewhere: if the scale or codes of one of these are reversed there, turn them round",
        )
        for site, name, others in against(_trends(names, facts))
    ]


def _trends(names: Sequence[str], facts: Mapping[str, Sites]) -> dict[str, Trends]:
    """Return how the columns of each site go with the label and with each other; of sites of few
    rows nothing."""
    sites: dict[str, Trends] = {}
    for site in facts[names[0]] if names else ():
        own = {name: facts[name][site] for name in names if site in facts[name]}
        rows = max((one.rows for one in own.values()), default=0)
        if rows >= _ENOUGH:
            ties = {
                (name, other): tie
                for name, one in own.items()
                for other, tie in one.ties.items()
                if other in own
            }
            sites[site] = Trends(rows, {name: one.trend for name, one in own.items()}, ties)
    return sites


def _of_often(own: Sites, dates: str) -> list[str]:
    """Return the doubt about a number that sites have in a good part of their rows, and the others
    far less often, by more than chance, as one that stands for missing values."""
    known = {site: one for site, one in own.items() if one.levels}
    if len(known) < 2:
        return []
    found, all_rows = [], sum(one.rows for one in known.values())
    all_often = sum((Counter(one.often) for one in known.values()), Counter[float]())
    for site, one in known.items():
        total = all_rows - one.rows
        for value, rows in one.often.items():
            part, elsewhere = rows / one.rows, all_often[value] - rows
            if part < _OFTEN or _MORE_OFTEN * elsewhere > part * total or value in dict(one.far):
                continue
            if value not in one.lone:
                continue
            if (one.rows / (one.rows + total)) ** rows < _CHANCE:
                shown = str(np.datetime64(int(value), "D")) if dates else f"{value:.7g}"
                found.append(f"{shown} in {rows} of {one.rows} rows of {site!r}")
    if not found:
        return []
    return [
        f"{', '.join(found[:_MOST_CODES])}, and seldom or never elsewhere: if it stands for "
        "missing values, leave these cells empty"
    ]


def _of_signs(own: Sites) -> list[str]:
    """Return the doubt that numbers of a site lost their sign, or have the other one: with the sign
    of the others the amounts are alike.

    None is negative, as some are at all others, by more than chance; or all are on the other side
    of 0 than those of all others; or, of three sites or more, they are as the others' mirrored at
    0, and are not so as they stand, as those of each two others are.
    """
    known = {site: one for site, one in own.items() if one.levels}
    for site, one in known.items():
        others = [other for name, other in known.items() if name != site]
        if not others:
            break
        rest = np.concatenate([other.levels for other in others])
        part = float((rest < 0).mean())
        lost = one.low >= 0 and all(other.low < 0 < other.high for other in others)
        if lost and (1 - part) ** one.rows <= _CHANCE:
            if _unlike(np.abs(rest), one.levels) <= _ALIKE:
                return [
                    f"no number of {site!r} is negative, {part:.0%} of all others are, and the "
                    "amounts are alike: if they lost their sign there, export them again with it"
                ]
            continue
        below = one.high <= 0 and one.low < 0 and all(other.low >= 0 for other in others)
        above = one.low >= 0 and one.high > 0 and all(other.high <= 0 for other in others)
        mirrored = np.negative(one.levels[::-1])
        if below or above:
            turned_there = _unlike(rest, mirrored) <= 2 * _ALIKE
        else:
            turned_there = (
                len(others) > 1
                and _unlike(rest, mirrored) <= _ALIKE
                and _unlike(rest, one.levels) >= _TURNED
                and all(_unlike(rest, other.levels) <= _ALIKE for other in others)
            )
        if turned_there:
            return [
                f"{one.low:g} to {one.high:g} in {site!r}, with the other sign than all others, "
                "and the amounts are alike: if the sign is reversed there, turn it round"
            ]
    return []


def _unlike(numbers: FloatArray, levels: Sequence[float] | FloatArray) -> float:
    """Return how much the ranks of a site's numbers among others differ from those at the site."""
    ranks = np.searchsorted(np.sort(numbers), levels) / len(numbers)
    return float(np.abs(ranks - _LEVELS).max())


def _without_codes(own: Sites) -> dict[str, tuple[float, ...]]:
    """Return the moments of sites without numbers that may be codes at one of them: those far from
    all others, and those beyond nine tenths of the rows that are in far more than the next ones.
    """
    often = {site: {**one.often, **dict(one.far)} for site, one in own.items()}
    codes = {
        value
        for site, one in own.items()
        for value in (*one.lone, *dict(one.far))
        if not (one.levels and one.levels[1] < value < one.levels[-2])
        and not all(value in known for known in often.values())  # amounts that may be 0
    }
    found: dict[str, tuple[float, ...]] = {}
    for site, one in own.items():
        number, mean, squares = one.moments
        for value, rows in often[site].items():
            rest = number - rows
            if value in codes and rest > 0:
                squares -= rows * (value - mean) ** 2 * number / rest
                mean, number = (number * mean - rows * value) / rest, rest
        found[site] = (number, mean, max(0.0, squares))
    return found


def _of_mixed_codes(own: Sites) -> list[str]:
    """Return the doubt about a third code at one site, next to the two that all others have, in a
    part of its rows, by more than chance: those of two kinds, such as 0, 1 and 1, 2, are mixed."""
    sets = {site: frozenset(one.counts) for site, one in own.items() if one.rows >= _ENOUGH}
    for site, values in sets.items():
        others = [one for name, one in sets.items() if name != site]
        if len(others) < 2 or len(set(others)) > 1 or len(others[0]) != 2:
            continue
        if not (others[0] < values and len(values) == 3 and len(sets) == len(own)):
            continue
        (third,) = values - others[0]
        part = own[site].counts[third] / own[site].rows
        total = sum(one.rows for one in own.values()) - own[site].rows
        if part >= _MIXED and abs(third - sum(others[0]) / 2) <= 2 and lacked(part, total / 2):
            return [
                f"{third:g} in {own[site].counts[third]} of {own[site].rows} rows of {site!r}, and "
                f"{', '.join(f'{one:g}' for one in sorted(others[0]))} alone in all others: if two "
                "codes are mixed there, or it stands for missing values, write it as the others do"
            ]
    return []


def _of_few_codes(own: Sites) -> list[str]:
    """Return the doubt about a code of missing values, such as 99 or -1, among the numbers of one
    site: far more rows have it than any number next to it, and than elsewhere, by more than chance;
    of few whole numbers it is beyond all others, and nowhere else."""
    known = {site: one for site, one in own.items() if one.rows >= _ENOUGH}
    if len(known) < 2 or len({bool(one.levels) for one in known.values()}) > 1:
        return []
    for site, one in known.items():
        rest = [other for name, other in known.items() if name != site]
        often = one.often or one.counts
        away = all(
            each.levels and each.low > 0 and each.low >= _AWAY * np.median(each.levels)
            for each in rest
        )
        for value, rows in often.items():
            code = re.fullmatch(_CODES, f"{value:.15g}") or (away and not value)
            if rows < FEW or not code or value in dict(one.far):
                continue
            seen = [other.often.get(value, other.counts.get(value, 0)) for other in rest]
            if one.levels:
                # Numbers of less than a fiftieth of the rows are not counted.
                share = max(0.02, sum(seen) / sum(other.rows for other in rest))
                most = max([n for x, n in often.items() if x != value] + [0.02 * one.rows])
            else:
                share = 1 / sum(other.rows for other in rest)
                near = sorted(often, key=lambda x: abs(x - value))[1:2]
                most = 2 * often[near[0]] if near else one.rows
                if any(seen) or value not in (min(often), max(often)):
                    continue
            alone = value in one.lone or rows >= 2 * most or (away and not value)
            if not alone or not _more_often(rows / one.rows, share, one.rows):
                continue
            return [
                f"{value:g} in {rows} of {one.rows} rows of {site!r}, far more often than numbers "
                "next to it, and than elsewhere: if it stands for missing values, leave these "
                "cells empty"
            ]
    return []


def _more_often(part: float, share: float, rows: int) -> bool:
    """Return whether such a part of rows has what a share of others has by no chance (1e-3, by
    Chernoff's bound)."""
    if part <= share or part >= 1.0:
        return False
    apart = part * math.log(part / share) + (1 - part) * math.log((1 - part) / (1 - share))
    return rows * apart > -math.log(_CHANCE_OF_UNKNOWN)


def _of_part_of_days(own: Sites) -> list[str]:
    """Return the doubt that a part of the dates of a site is a century off, as years of two digits
    may be read."""
    known = {site: one for site, one in own.items() if one.levels}
    for site, one in known.items():
        others = [other for name, other in known.items() if name != site]
        if not others:
            return []
        days = np.asarray(one.levels)
        rest = np.sort(np.concatenate([other.levels for other in others]))
        beyond = days[
            (days < min(other.low for other in others))
            | (days > max(other.high for other in others))
        ]
        width = float(rest[-1] - rest[0])
        low, high = rest[0] - width / 20, rest[-1] + width / 20
        for sign, than in ((1, "later"), (-1, "earlier")):
            moved = beyond - sign * CENTURY
            if len(beyond) and low <= moved.min() <= moved.max() <= high:
                part = len(beyond) / len(days)
                return [
                    f"{part:.0%} of the dates of {site!r} are about a century {than} than all "
                    f"others ({_date(beyond[0])} to {_date(beyond[-1])}): write years with four "
                    "digits, and check these"
                ]
    return []


def _date(days: float) -> str:
    return str(np.datetime64(int(days), "D"))


def _of_kinds(own: Sites) -> list[str]:
    """Return the doubt that labels are classes at some sites, and a quantity at others."""
    whole = {site: one for site, one in own.items() if one.counts and one.rows >= _ENOUGH}
    classes = [site for site, one in whole.items() if 5 * len(one.counts) <= one.rows]
    broken = [site for site, one in own.items() if not one.whole]
    if not (classes and broken):
        return []
    values = sorted({value for site in classes for value in own[site].counts})
    return [
        f"whole numbers ({', '.join(f'{one:g}' for one in values[:4])}{' ...' * (len(values) > 4)})"
        f" in {some(classes)} and others ({own[broken[0]].low:g} to {own[broken[0]].high:g}) in "
        f"{some(broken)}: classes and a quantity together are predicted as a quantity; write "
        "labels alike"
    ]


def _of_parted(column: SourceColumn, own: Sites, test: str, what: str) -> list[str]:
    """Return the doubt about categories that part along sites."""
    sets = {site: set(map(str, one.counts)) for site, one in own.items()}
    held_out = sets.pop(test, set())
    trained = set[str]().union(*sets.values())
    same, names = "if they mean the same, write them alike", _PLURAL[what]
    if alone := sorted(held_out - trained):
        are = "is" if len(alone) == 1 else "are"
        text = f"the {_several(what, alone)} of {test} {are} in no other file"
        return [f"{text}: write it as the others do"]
    groups = _groups(sets)
    mixed = len({is_number(one) for one in trained}) > 1
    several = sum(len(values) > 1 for _, values in groups)
    if all(map(is_number, trained)) and len(groups) > 2:
        several = 0  # rather each has few of the classes than a code of its own
    if len(groups) > 1 and (mixed or several > 1):
        each = " and ".join(
            f"{some(values)} in {some(where)} alone" for where, values in groups[:_MOST_GROUPS]
        )
        return [f"the {names} {each}: {same}"]
    kinds = len(set(map(frozenset, sets.values())))
    if len(trained) in (3, 4) and kinds == 2 and all(len(one) == 2 for one in sets.values()):
        each = "; ".join(f"{some(sorted(one))} in {site}" for site, one in list(sets.items())[:4])
        return [f"the {names} are {len(trained)}, and no site has more than two ({each}): {same}"]
    most = len(trained) if what == "class" else 2
    known = {site: own[site] for site in sets}
    return _of_lone(sets, known, what, most) or (_of_some(known) if what == "category" else [])


def _of_some(own: Sites) -> list[str]:
    """Return the doubt about categories that one site alone has, in a part of its rows, beside
    those of all others, which are alike: in place of others that it lacks, or of missing values."""
    if len(own) < 2:
        return []
    for site, facts in own.items():
        others = {name: one for name, one in own.items() if name != site}
        counts = Counter[Any]()
        for one in others.values():
            counts.update(one.counts)
        if any(_lacking(one.counts, counts) for one in others.values()):
            continue  # rows of several kinds
        alone = sorted(_lacking(counts, facts.counts))
        if not alone:
            continue
        total, text = sum(facts.counts[one] for one in alone), _several("category", alone)
        if lacks := sorted(_lacking(facts.counts, counts)):
            return [
                f"the {text} in {site!r} alone, in {total} rows, and {some(lacks)} in all others "
                "but there: if they mean the same, write them alike"
            ]
        return [
            f"the {text} in {site!r} alone, in {total} rows: if another spelling, write it as the "
            "other sites do; if it stands for missing values, leave these cells empty"
        ]
    return []


def _lacking(counts: Mapping[Any, int], others: Mapping[Any, int]) -> list[Any]:
    """Return the categories of a good part of other rows that these rows do not have, by more than
    chance (1e-6), as that of dealing all rows at random."""
    rows, total = sum(counts.values()), sum(others.values())
    part = total / max(1, rows + total)
    return [
        text
        for text, count in others.items()
        if text not in counts
        and count >= max(FEW, _PART_OF_ROWS * total)
        and part**count < (_CHANCE_OF_UNKNOWN if str(text).casefold() in _UNKNOWN else _CHANCE)
    ]


def _of_lone(sets: Mapping[str, set[str]], own: Sites, what: str, most: int) -> list[str]:
    """Return the doubt about categories at one site alone, by more than chance, where all others
    have the same ones, at most so many; or in very few rows."""
    having = Counter(value for values in sets.values() for value in values)
    kinds = Counter(map(frozenset, sets.values()))
    for site, values in sets.items():
        alone = sorted(value for value in values if having[value] == 1)
        others = list(kinds - Counter([frozenset(values)]))
        if not alone or len(others) != 1 or not 2 <= len(others[0]) <= most:
            continue
        counts = {one: own[site].counts[one] for one in alone}
        if 2 * sum(counts.values()) > own[site].rows:
            continue  # rather rows of another kind than another spelling
        rows = sum(one.rows for name, one in own.items() if name != site)
        total = sum(counts.values())
        if total < FEW or any(lacked(one / own[site].rows, rows) for one in counts.values()):
            return [
                f"the {_several(what, alone)} in {site!r} alone, in {total} row{'s' * (total > 1)}"
                ": if another spelling, write it as the other sites do"
            ]
    return []


def _groups(sets: Mapping[str, set[str]]) -> list[tuple[list[str], list[str]]]:
    """Return groups of sites, with their values, of which no two have a value in common."""
    groups: list[tuple[list[str], set[str]]] = []
    for site, values in sets.items():
        if not values:
            continue
        near = [group for group in groups if group[1] & values]
        groups = [group for group in groups if not group[1] & values]
        joined = [name for group in near for name in group[0]]
        groups.append(([*joined, site], values.union(*(group[1] for group in near))))
    return [(sites, sorted(values)) for sites, values in groups]
