"""What is doubtful about a table that can be used: each a line that says what to do.

Doubts about the contents of columns, of all rows or by site, are in `privet.data.tables.sites`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import algorithms, mapped
from privet.core.ordered import counted, places

from ..codes import lacked
from ..dataset import Fault, FloatArray, LabelArray, Source, some
from ..source_column import SourceColumn
from .copies import MANY
from .dates import OTHER, day_of, may_be_exchanged
from .values import (
    EXACT,
    NO_VALUE,
    POINT_OF_THOUSANDS,
    WITH_COMMA,
    as_numbers,
    as_texts,
    cells,
    codes_of,
    first_of,
    is_number,
    is_numeric,
    is_plain,
    is_text,
)

_PERSONS = {"patient", "person", "subject", "participant", "pid", "mrn", "patientid", "subjectid"}
_PERSONS |= {"personid", "proband", "individual"}
_IDS = _PERSONS | {"id", "uid", "uuid"}
_PLACES = {"inst", "institution", "site", "hospital", "center", "centre", "clinic"}
_EVENTS = {"event", "events", "status", "death", "dead", "died", "deceased", "cens", "censor"}
_EVENTS |= {"censored", "censoring", "fustat", "arrest", "relapse", "recurrence", "failure", "e"}
_EVENTS |= {"observed", "progression", "mortality", "churn", "fail"}
_DURATIONS = {"time", "days", "day", "week", "weeks", "month", "months", "duration", "futime", "t"}
_DURATIONS |= {"survival", "followup", "follow", "tenure", "os", "pfs", "dfs", "tte", "stop"}
VARIED = 10
"""Different numbers from which a column is a quantity rather than codes."""
_AT_ONCE = 1 << 17
"""Rows that are looked at at a time."""
_HEAD = 2000
"""Rows by which most columns are seen not to give a class away."""
_GAP = 3.0
"""Deviations between the numbers of two classes from which these are the classes, but for noise: of
what goes with a class, however closely, the ends are nearer."""
_SHARP, _BLUNT = 1.3, 2.7
"""Numbers that a class is cut from are as many at the cut as elsewhere: the quarter of either class
that is next to it is at most so many times as wide as half of the middle two, for one of them, and
for both. Classes apart by nature become fewer to their ends: those of two normal ones are 2.7."""
_EDGE, _WRONG, _NEARLY = 10, 0.01, 0.1
"""Rows on either side of a cut that are all of the right class; the part of the rarer class that
may be elsewhere; and that below which a column says the class by where its numbers lie."""
_MULTIPLE = 1e-6
"""Deviations within which floating point computes a multiple."""
_ROUNDED, _WIDE = 1.1, 3.0
"""The same of rounded numbers: halves of both steps, a tenth more for the estimate of the factor;
and how many of these a deviation must have, so that the digits say something."""
FEW = 5
"""Rows of a class, or of an id, below which they say little."""


def of_header(names: Iterable[str], table: Any) -> list[Fault]:
    """Return the doubt that the first row is a record: names of half of the columns, or more, are
    numbers, or among their own column's entries.

    Names that count on by one, as of columns without names of their own, or of years, are none. A
    column of numbers has no record that is a text: where its name is one, the first row has names.
    """
    import pyarrow.compute as pc

    names, own, numbers = list(names), [], []
    for name in names:
        if is_numeric(table[name]) and not (is_number(name) or name in NO_VALUE):
            return []
        if is_number(name):
            numbers.append(name)
        elif is_plain(table[name]) and pc.any(pc.equal(as_texts(cells(table[name])), name)).as_py():
            own.append(name)
    counted = sorted(float(name) for name in numbers)
    if len(counted) > 1 and all(np.diff(counted) == 1.0):
        numbers = []
    odd = own + numbers
    if not odd or 2 * len(odd) < len(names):
        return []
    what = f"{some(odd)} {'is' if len(odd) == 1 else 'are'} in it"
    text = (
        f"the first row may be a record, and not the names of the columns: {what}; put a row with "
        "the names above it"
    )
    return [Fault(text, stops=False, weight=2)]


def of_files(counts: Mapping[str, int], test: str, unread: Sequence[str]) -> list[Fault]:
    """Return the doubts about files of a folder that have a header and no rows, or are not read."""
    faults = []
    if unread:
        text = (
            f"not read, as no CSV, TSV or Parquet file of the folder: {', '.join(unread)}; save "
            "tables as one of these in the folder itself, or take them out of it"
        )
        faults.append(Fault(text, stops=False))
    for name, count in counts.items():
        if count or len(counts) < 2:
            continue
        if name == test:
            text = (
                f"{name} has a header and no rows, so a fifth of the other rows is held out "
                "instead: put rows into it, or take the file out of the folder"
            )
        else:
            text = (
                f"{name} has a header and no rows, and no agent is its own: put rows into it, or "
                "take the file out of the folder"
            )
        faults.append(Fault(text, stops=False))
    return faults


def of_ids(
    source: Source,
    columns: Iterable[SourceColumn],
    values: Mapping[str, Any],
    files: LabelArray,
) -> list[Fault]:
    """Return the doubts about features that are called ids, or places, and repeat; those that count
    the rows of each file are no persons' with several."""
    faults, person = [], bool(source.person_column)
    for column in columns:
        if column.public or column.constant:
            continue
        called, known = set(words(column.name)), values[column.name].drop_null()
        rows = len(known)
        if column.categories:
            distinct = len(known.unique())
        else:
            numbers = as_numbers(known)
            if not _are_whole(numbers):
                continue
            distinct = _different(numbers)
        if distinct < 3 or distinct == rows or _counted(values[column.name], files, rows=True):
            continue
        drop: tuple[str, ...] = (column.name,)
        keys: dict[str, str] = {}
        persons = bool(called & _PERSONS) or names_persons(column.name)
        if called & _IDS and not persons and distinct <= MANY and VARIED * distinct <= rows:
            if column.categories:
                continue
            drop = ()
            text = (
                f"{distinct} different numbers in {rows} rows, rather codes than ids, are used as "
                "a quantity: list them as texts in a schema, and each is a category"
            )
        elif called & _IDS or persons:
            text = (
                f"{distinct} ids in {rows} rows, so that rows of one may be trained on and held out"
            )
            if persons:
                text = f"{text}; if it says whose they are, person-column keeps them together"
                if not person:
                    drop, keys, person = (), {"person-column": column.name}, True
            else:
                text = f"{text}; leave it out, or list codes as categories in a schema"
        elif called & _PLACES and not (column.categories or called & _DURATIONS):
            text = (
                f"{distinct} numbers that name places are used as a quantity; leave them out, deal "
                f"by them with id-column = {column.name}, or list them as texts in a schema"
            )
        else:
            continue
        faults.append(Fault(f"column {column.name}: {text}", drop=drop, keys=keys, stops=False))
    return faults


def of_counted(name: str, persons: Any, files: LabelArray) -> list[Fault]:
    """Return the doubt that ids of ``person-column`` begin anew in each file, and are those of
    different persons."""
    if not (where := _counted(persons, files)):
        return []
    text = (
        f"column {name}: the ids count from the same number in {some(where)}, and rows with the "
        "same id are kept together as one person's: if these are different persons, write ids "
        f"that differ between files, such as {where[0]}-1"
    )
    return [Fault(text, stops=False, of_values=False)]


def _counted(ids: Any, files: LabelArray, *, rows: bool = False) -> list[str]:
    """Return the files in which ids count from the same number on without a gap, all of them; with
    ``rows`` one for each row. None where there is one file, or fewer than 5 ids in one."""
    import pyarrow as pa

    if (files[:1] == files).all():
        return []
    names = np.unique(files)
    try:
        numbers = as_numbers(ids)
    except pa.ArrowInvalid:
        return []
    if np.isnan(numbers).any() or not _are_whole(numbers):
        return []
    first = numbers.min()
    for name in names:
        own = numbers[files == name]
        each = np.unique(own)
        counted = each[0] == first and each[-1] - first == len(each) - 1 and len(each) >= FEW
        if not counted or (rows and len(each) < len(own)):
            return []
    return [str(name) for name in names]


def of_dates(columns: Iterable[SourceColumn], table: Any, sites: LabelArray) -> list[Fault]:
    """Return the doubts about dates that may be read with day and month exchanged.

    ``sites`` says where each row is from: one of them may write dates as the others do not.
    """
    faults = []
    for column in columns:
        if not column.dates or not is_text(table[column.name]):
            continue
        texts: dict[str, dict[str, None]] = {}
        for site, text in zip(sites.tolist(), table[column.name].to_pylist(), strict=True):
            texts.setdefault(site, {})[text or ""] = None
        odd = {site: may_be_exchanged(own, column.dates) for site, own in texts.items()}
        if not (odd := {site: one for site, one in odd.items() if one}):
            continue
        one = next(iter(odd.values()))
        day = np.datetime64(int(day_of(one, column.dates)), "D")
        several = len(texts) > 1
        where = f" in {some(sorted(map(str, odd)))}" if several else ""
        way = "write these as the others" if several else f"set dates = {OTHER[column.dates]}"
        text = (
            f"column {column.name}: no day or month{where} is above 12, and {one!r} is read as "
            f"{day}: if day and month are the other way round, {way}"
        )
        faults.append(Fault(text, stops=False))
    return faults


def of_numbers_of_dates(columns: Iterable[SourceColumn], values: Mapping[str, Any]) -> list[Fault]:
    """Return the doubt about numbers that are all dates, such as 20190321."""
    faults = []
    for column in columns:
        if (
            column.categories
            or column.dates
            or not 18000101 <= column.low <= column.high < 22000101
        ):
            continue
        numbers = as_numbers(values[column.name].drop_null())
        days, months = numbers % 100, numbers // 100 % 100
        dates = _are_whole(numbers) and min(days.min(), months.min()) >= 1
        if not dates or days.max() > 31 or months.max() > 12 or len(np.unique(numbers)) < FEW:
            continue
        one = f"{int(numbers[0])}"
        text = (
            f"column {column.name}: dates that are written as numbers, such as {one}, whose "
            f"differences are no days: write {one[:4]}-{one[4:6]}-{one[6:]}, and set dates"
        )
        faults.append(Fault(text, stops=False))
    return faults


def of_signs(columns: Iterable[SourceColumn], table: Any, points: Mapping[str, str]) -> list[Fault]:
    """Return the doubts about points in a schema's numbers that may be of thousands: those of
    whole numbers (``points``, by column), and those of a table with decimal commas."""
    names = [column.name for column in columns if column.public and not column.categories]
    faults = [
        Fault(f"column {name}: {points[name]}; it is read as a decimal one", stops=False)
        for name in names
        if name in points
    ]
    texts = {name: table[name].drop_null() for name in names if is_text(table[name])}
    commas = any(first_of(values, WITH_COMMA) for values in texts.values())
    for name, values in texts.items() if commas else ():
        if name not in points and (text := first_of(values, POINT_OF_THOUSANDS)):
            line = f"column {name}: {text!r} is read as {float(text):g}, beside decimal commas"
            line = f"{line}: if its point is one of thousands, write the numbers without"
            faults.append(Fault(line, stops=False))
    return faults


def names_persons(name: str) -> bool:
    """Return whether a column is called as one of persons is."""
    each = {word.removeprefix("unique") for word in words(name)}
    return bool(each & _PERSONS) or name.lower() == "id"


def of_spellings(name: str, ids: LabelArray | None) -> list[Fault]:
    """Return the doubt about ids of ``id-column`` that differ by case, or in how a number is
    written: each is an agent."""
    known: dict[str, list[str]] = {}
    for one in () if ids is None else np.unique(ids):
        text = str(one)
        same = text.casefold()
        if is_number(text) and "," not in text:
            same = str(float(text))  # 1, 01 and 1.0
        known.setdefault(same, []).append(text)
    if not (alike := [texts for texts in known.values() if len(texts) > 1]):
        return []
    each = ", ".join(some(texts) for texts in alike[:2])
    more = f" and {len(alike) - 2} more" if len(alike) > 2 else ""
    text = f"column {name}: {each}{more} are an agent each: if they are one id, write them alike"
    return [Fault(text, stops=False)]


def of_leaks(
    label: SourceColumn,
    inputs: Sequence[SourceColumn],
    values: Mapping[str, Any],
    persons: LabelArray | None,
) -> list[Fault]:
    """Return the doubts about columns that say the label: the same one to one, a multiple of it but
    for rounding, values or ranges of numbers that each go with one class, or a gap in all rows of
    one class and in no other. Rows of one of the ``persons`` count as one where they are alike."""
    labels = values[label.name]
    if len(labels) < MANY:
        return []
    faults, known = [], {column.name: values[column.name] for column in inputs}
    for column in inputs:
        if column.constant:
            continue
        if label.categories:
            says = _of_class(known[column.name], labels, label.name, column)
            says = says or _of_many(known, values, label, column, persons)
        else:
            says = _of_quantity(known[column.name], labels, label.name, column)
        if says:
            text = (
                f"column {column.name}: {says}: if it is known only when the label is, leave it out"
            )
            faults.append(Fault(text, drop=(column.name,), stops=False, weight=2))
    told = {name for one in faults for name in one.drop}
    return faults + _of_parts(label, [one for one in inputs if one.name not in told], values)


def _of_parts(
    label: SourceColumn, inputs: Sequence[SourceColumn], values: Mapping[str, Any]
) -> list[Fault]:
    """Return the doubt that a quantity is the sum, or the difference, of other columns: least
    squares fit it but for rounding, with factors 1 and -1 alone."""
    columns = [one for one in inputs if not (one.categories or one.dates or one.constant)]
    if label.categories or len(columns) < 2:
        return []
    head = np.empty((0, len(columns) + 1))
    for part in _complete([*columns, label], values):
        head = np.concatenate([head, part])[:_HEAD]
        if len(head) == _HEAD:
            break
    if len(head) < MANY + 2 * len(columns) or len(np.unique(head[:, -1])) < VARIED:
        return []
    with np.errstate(all="ignore"):
        wide = head.std(axis=0)
    if not (wide > 0).all() or not np.isfinite(wide).all():
        return []
    scaled = (head - head.mean(axis=0)) / wide
    fit: FloatArray = np.linalg.lstsq(scaled[:, :-1], scaled[:, -1], rcond=None)[0]
    factors = fit * (wide[-1] / wide[:-1])
    whole = np.round(factors)
    parts = [at for at, factor in enumerate(whole) if factor]
    if len(parts) < 2 or np.abs(factors - whole).max() > _MULTIPLE or np.abs(whole).max() > 1:
        return []
    for part in _complete([*columns, label], values):
        if np.abs(part[:, :-1] @ whole - part[:, -1]).max() > _MULTIPLE * wide[-1]:
            return []
    names = tuple(columns[at].name for at in parts)
    signed = "".join(
        f" {'-' if whole[at] < 0 else '+'} {name}" for at, name in zip(parts, names, strict=True)
    )
    return [
        Fault(
            f"label {label.name} is{signed.removeprefix(' +')} in every row: if these are known "
            "only when it is, leave them out",
            drop=names,
            stops=False,
            weight=2,
        )
    ]


def _complete(columns: Sequence[SourceColumn], values: Mapping[str, Any]) -> Iterator[FloatArray]:
    """Yield the rows (n, columns), n > 0, that have all numbers, some at a time."""
    for at in range(0, len(values[columns[0].name]), _AT_ONCE):
        each = [as_numbers(values[one.name].slice(at, _AT_ONCE)) for one in columns]
        rows = np.stack(each, axis=1)
        rows = rows[~np.isnan(rows).any(axis=1)]
        if len(rows):
            yield rows
        mapped.release()


def _of_class(known: Any, labels: Any, label: str, column: SourceColumn) -> str:
    """Return how a column of at most 20 values, or its gaps, give the class away; empty where they
    do not, or may by chance (1e-6).

    By chance the first row of a value decides its class, and each further row agrees.
    """
    import pyarrow as pa

    gaps = known.null_count > 0
    if not gaps and _are_several(known, MANY + 1):
        return ""
    pairs = pa.table({"one": known.is_null() if gaps else known, "other": labels})
    groups = pairs.group_by(["one", "other"], use_threads=False)  # threads take memory each
    found = groups.aggregate([([], "count_all")]).to_pydict()
    counts = found["count_all"]
    values, classes = len(set(found["one"])), len(set(found["other"]))
    if not classes <= values <= MANY or len(counts) > values or min(counts) < 2:
        return ""
    if values == classes:
        if gaps:
            return f"a value is missing in every row of one class of {label}, and in no other row"
        return "" if column.dates else f"says the same as {label} in every row"
    rare = 1.0 - max(labels.value_counts().field("counts").to_pylist()) / len(labels)
    if gaps or column.dates or not lacked(rare, (len(labels) - values) / 2):
        return ""
    return f"each of its {values} values goes with one class of {label}"


def _are_several(values: Any, least: int) -> bool:
    """Return whether a column has so many different values; most that do have them in the first
    rows, and no more are looked at then."""
    return any(len(part.unique()) >= least for part in (values[:_HEAD], values))


def _of_many(
    inputs: Mapping[str, Any],
    values: Mapping[str, Any],
    label: SourceColumn,
    column: SourceColumn,
    persons: LabelArray | None,
) -> str:
    """Return how a column of more than 20 values gives the class away, and by no chance: each class
    of 20 rows or more has numbers of its own, far from all others; or the classes are cut from it;
    or, as in `_of_class`, each value goes with one class.

    Where another column of many values follows from this one, it rather says whose the rows are.
    """
    # Arrays of all rows are as few and as narrow as they may be: a table may be large.
    of = codes_of(values[label.name], label).astype(np.int32)
    numbers = _as_codes(values[column.name], column)
    there = ~np.isnan(numbers) & (of < len(label.categories))
    known: slice | NDArray[np.bool_] = slice(None) if there.all() else there
    numbers, of = numbers[known], of[known]
    for part in (slice(_HEAD), slice(None)):  # most columns end at the first
        apart, pure, cut = _parted(numbers[part], of[part])
        if not (pure or apart or cut):
            return ""
    if column.dates or (different := _different(numbers)) <= MANY:
        return ""
    others: list[FloatArray] = []
    rows: slice | LabelArray = slice(None)
    if different < len(numbers):  # else no row has a copy, and no value a second row
        given = [_as_codes(one, None) for name, one in inputs.items() if name != column.name]
        others = [one[known] for one in given]
        if persons is None:  # a copy of a row says nothing more
            each = [numbers, *(np.nan_to_num(one, nan=-1.0) for one in others)]
        else:
            each = [numbers, np.unique(persons[known], return_inverse=True)[1].astype(float)]
        rows = np.unique(np.stack([of, *each]), axis=1, return_index=True)[1]
    numbers, of = numbers[rows], of[rows]
    counts = np.bincount(of, minlength=len(label.categories))
    if (apart or cut) and not column.categories:
        each_class = [np.sort(numbers[of == at]) for at in range(len(counts))]
        each_class.sort(key=lambda one: float(np.median(one)) if len(one) else math.inf)
        gaps = [above.min() - below.max() for below, above in pairwise(each_class)]
        if counts.min() >= MANY and min(gaps) >= _GAP * max(one.std() for one in each_class):
            least = " and ".join(f"{one.min():g} to {one.max():g}" for one in each_class[:2])
            return f"its numbers lie far apart by the class of {label.name} ({least})"
        if counts.min() >= _EDGE and all(_is_cut(*pair) for pair in pairwise(each_class)):
            most = np.sort(numbers)[len(each_class[0])]
            return f"the classes of {label.name} are parted by it, such as at {most:g}"
        return ""
    rare = 1.0 - counts.max() / len(numbers)
    again = counted(numbers)[1]
    again_rows, repeated = int(again[again > 1].sum()), int((again > 1).sum())
    if not pure or not lacked(rare, (again_rows - repeated) / 2):
        return ""
    codes = places(numbers)
    if any(_follows(codes, one[rows]) for one in others):
        return ""
    return f"each of its {len(again)} values goes with one class of {label.name}"


def _different(numbers: FloatArray) -> int:
    """Return how many different numbers there are, none of them missing."""
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))


def _as_codes(values: Any, column: SourceColumn | None) -> FloatArray:
    """Return numbers as they are, and numbers that stand for texts; NaN for a missing value."""
    if column is not None and not column.categories:
        return as_numbers(values)
    import pyarrow.compute as pc

    codes = pc.index_in(values, value_set=values.unique().drop_null()).fill_null(-1)
    numbers = np.asarray(codes.to_numpy(), dtype=float)
    numbers[numbers < 0] = np.nan
    return numbers


def _parted(numbers: FloatArray, of: LabelArray) -> tuple[bool, bool, bool]:
    """Return whether each class has numbers of its own, on one side of those of each other; whether
    each number is of one class; and whether that is so of two classes but for few rows."""
    order = np.argsort(numbers, kind="stable")
    ordered, classes = numbers[order], of[order]
    del order  # arrays of all rows are let go as soon as they may be
    changes = classes[1:] != classes[:-1]
    pure = not (changes & (ordered[1:] == ordered[:-1])).any()
    del ordered
    sizes = np.bincount(of)
    known = np.flatnonzero(sizes)
    apart = pure and int(changes.sum()) == len(known) - 1
    if len(known) != 2:
        return apart, pure, apart
    part = _misplaced(classes == known[0]).min() / sizes[known].min()
    # Of classes that are nearly apart, most numbers are of one class by that alone.
    return apart, pure and (apart or part > _NEARLY), bool(part <= _WRONG)


def _misplaced(first: NDArray[np.bool_]) -> LabelArray:
    """Return for each place how many rows of two classes, in the order of a column, are on the
    wrong side of a cut behind it; ``first`` says which are of the first class."""
    wrong: LabelArray = np.cumsum(first)  # those of the first class up to a row
    of_first = int(wrong[-1])
    wrong *= -2
    wrong += np.arange(1 + of_first, len(first) + 1 + of_first)
    np.minimum(wrong, len(first) - wrong, out=wrong)
    return wrong


def _is_cut(low: FloatArray, high: FloatArray) -> bool:
    """Return whether two classes are parts of one quantity, cut at a number: the rows go on to the
    cut from one side at least, and those next to it are of the right class."""
    numbers = np.concatenate([low, high])
    order = np.argsort(numbers, kind="stable")
    first = order < len(low)
    at = int(np.argmin(_misplaced(first)))
    if not first[max(0, at + 1 - _EDGE) : at + 1].all() or first[at + 1 : at + 1 + _EDGE].any():
        return False
    cut = numbers[order[at]]
    below, above = low[low <= cut], high[high > cut]
    if min(len(below), len(above)) < _EDGE:
        return False
    gap, step = above[0] - below[-1], float(np.median(np.diff(np.unique(numbers))))
    blunt = []
    for away in (below[-1] - below[::-1], above - above[0]):
        near, far = away[len(away) // 4], away[3 * len(away) // 4]
        alone = gap > max(away[_EDGE - 1], step)
        blunt.append(math.inf if alone or near >= far else 2 * near / (far - near))
    return min(blunt) <= _SHARP and max(blunt) <= _BLUNT


def _follows(codes: LabelArray, numbers: FloatArray) -> bool:
    """Return whether a column of many values has the same in all rows of each code."""
    if len(counted(numbers)[0]) < VARIED:
        return False
    order = np.argsort(codes, kind="stable")
    ordered, same = codes[order], numbers[order]
    within = ordered[1:] == ordered[:-1]
    return bool((~within | (same[1:] == same[:-1])).all())


def _of_quantity(known: Any, labels: Any, label: str, column: SourceColumn) -> str:
    """Return how a column of numbers gives a quantity away: as a multiple of it, with an offset or
    without one, but for the digits that either is written with; empty where it is none."""
    if column.categories:
        return ""
    numbers, amounts = as_numbers(known), as_numbers(labels)
    both = ~(np.isnan(numbers) | np.isnan(amounts))
    whole = bool(both.all())
    one, other = (each if whole else each[both] for each in (numbers, amounts))
    if len(one) < MANY or min(_different(one), _different(other)) < VARIED:
        return ""
    with np.errstate(all="ignore"):
        factor = ((one - one.mean()) * (other - other.mean())).mean() / other.var()
        rest = np.abs(one - one.mean() - factor * (other - other.mean())).max()
        deviation = float(one.std())
    if np.array_equal(one, other):
        return f"says the same as {label} in every row"
    rounding = _ROUNDED / 2 * (_step(one) + abs(factor) * _step(other))
    if not rest <= max(rounding, _MULTIPLE * deviation) or _WIDE * rounding > deviation:
        return ""
    return f"is {label} in another unit"


def _step(numbers: FloatArray) -> float:
    """Return the step of which all numbers are multiples, such as .1 of those with one decimal; 0
    where they have more than nine digits behind the point."""
    for digits in range(10):
        scaled = numbers * 10.0**digits
        whole = np.round(scaled)
        if np.abs(whole).max() > EXACT:
            break
        if np.abs(scaled - whole).max() <= 1e-6:
            return float(np.gcd.reduce(whole.astype(np.int64))) / 10.0**digits
    return 0.0


def of_survival(
    label: SourceColumn, inputs: Sequence[SourceColumn], values: Mapping[str, Any]
) -> list[Fault]:
    """Return the doubt about an event beside the time to it; ``values`` has those of the inputs."""
    known = algorithms()
    ways = "Cox regression or Kaplan-Meier"
    if set(words(label.name)) & _EVENTS and len(label.categories) == 2:
        for column in inputs:
            if set(words(column.name)) & _DURATIONS and _may_be_duration(column, values):
                if "cox" in known:
                    ways = (
                        f"{ways} (algorithm=cox time-column={column.name} "
                        f"event-column={label.name})"
                    )
                text = (
                    f"column {column.name}: beside {label.name} it may be the time to that event, "
                    f"which no feature knows beforehand: for survival take {ways}, for classes "
                    "leave it out"
                )
                return [Fault(text, drop=(column.name,), stops=False, of_values=False, weight=2)]
    if set(words(label.name)) & _DURATIONS and not label.categories and label.low >= 0:
        for column in inputs:
            two = len(column.categories) == 2 or {column.low, column.high} in (
                {0.0, 1.0},
                {1.0, 2.0},
            )
            if set(words(column.name)) & _EVENTS and two:
                text = (
                    f"column {label.name}: beside {column.name} it may be the time to an event, "
                    f"which ends too early where it is censored: for survival take {ways}"
                )
                return [Fault(text, drop=(column.name,), stops=False, of_values=False, weight=2)]
    return []


def _may_be_duration(column: SourceColumn, values: Mapping[str, Any]) -> bool:
    if column.categories or column.low < 0 or column.dates:
        return False
    return _are_several(values[column.name], FEW)


def _are_whole(numbers: Any) -> bool:
    return bool((numbers == np.floor(numbers)).all())


def words(name: str) -> list[str]:
    """Return the words of a column's name, in small letters."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
