"""What is wrong with a table, or doubtful, and the run-config keys that mend it.

The loader refuses what stops it, ``privet data`` lists all of it. What is doubtful about contents
of columns is in `privet.data.tables.sites`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privet.core.assignments import comma_list
from privet.core.ordered import counted

from ..dataset import DataError, Fault, Source, some
from ..source_column import SourceColumn
from .dates import is_date
from .schema import GAP
from .values import UnfitError, as_numbers

MISSING = ("refuse", "category", "mean", "drop", "zero")
MISSING_LABELS = ("refuse", "drop")
CENSORED = ("refuse", "bound", "half")
"""What bounds such as <5 become in a column of numbers."""
INFINITE = ("refuse", "missing", "drop")
MOST_CLASSES = 20
"""Whole numbers of more values than this are a quantity, not classes."""
MOST_CATEGORIES = 100
_FILES, _COLUMNS = 4, 12
"""Files, and columns, that a line names."""
CHOSEN = "COLUMN"
"""Stands for the name that the user is to choose."""
DATES_TEXT = (
    "dates or times, such as {}; expected numbers or categories (dates = day-first or month-first "
    "makes them numbers of days; a schema that lists the texts makes them categories)"
)
_NAMES = ("cohort", "label_column", "id_column", "person_column", "drop_columns", "schema")
_READ_BY = {
    **dict.fromkeys(_NAMES, ""),
    **dict.fromkeys(("missing", "missing_labels", "dates", "censored", "infinite"), "refuse"),
}
"""The keys that say how a table is read, and their usual values."""
_NO_TEXT = r"true|false|[-+]?[\d._]+([eE][-+]?\d+)?"
"""Values that the command line reads as numbers or booleans unless they are quoted."""
_DAY_OF_EXCEL = r"[1-7]\d{4}([.,]\d+)?"
"""Its number of days since 1900, of 1927 to 2119, a part of a day included."""
_NUMBER = r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?"


class TableError(DataError):
    """A table that cannot be used.

    Attributes
    ----------
    faults : tuple of Fault
        All that is wrong or doubtful.
    keys : dict
        Run-config keys that mend what stops the loader, where keys can.
    """

    def __init__(self, source: Source, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        stopping = [fault for fault in faults if fault.stops]
        self.keys = mending(stopping, source.drop_columns)
        keys = " ".join(f"{key}={value}" for key, value in self.keys.items())
        if "label-column" in self.keys:  # which may be a column that is to be left out
            self.keys, keys = {"label-column": CHOSEN}, ""
        texts = "; ".join(fault.text for fault in stopping)
        super().__init__(
            f"{source.path}: {texts}{f': set {keys}' if keys else ''}; to list all faults: "
            f"{command(source.path, asdict(source))}"
        )


def command(path: str, keys: Mapping[str, Any]) -> str:
    """Return the command that lists what is wrong with a table, or doubtful, as ``keys`` read it.

    ``keys`` are run-config keys, with underscores; those of other matters are left out.
    """
    words = ["privet", "data", path]
    for name, usual in _READ_BY.items():
        if (value := str(keys.get(name, usual))) != usual:
            given = json.dumps(value) if re.fullmatch(_NO_TEXT, value) else value
            words.append(f"{name.replace('_', '-')}={given}")
    return shlex.join(words)


def together(lines: Iterable[tuple[Sequence[str], str]]) -> list[str]:
    """Return lines on columns, each with the files that it is about: of those with the same way
    out one, where they are three or more, with the columns and what is in each."""
    known = list(dict.fromkeys((tuple(files), text) for files, text in lines))
    groups: dict[str, list[tuple[Sequence[str], str, str]]] = {}
    parts = [re.fullmatch(r"column (.+?): (.+?): (.+)", text) for _, text in known]
    for (files, _), part in zip(known, parts, strict=True):
        if part:
            groups.setdefault(part[3], []).append((files, part[1], part[2]))
    found: dict[str, None] = {}
    for (files, text), part in zip(known, parts, strict=True):
        group = groups.get(part[3], []) if part else []
        alike = part is not None and len(group) > 2
        every = list(dict.fromkeys(file for one in group for file in one[0])) if alike else files
        where = f"{', '.join(every[:_FILES])}{_more(every, _FILES)}: " if every else ""
        found[where + (_of_several(group, part[3]) if part and alike else text)] = None
    return list(found)


def _of_several(group: Sequence[tuple[Sequence[str], str, str]], way: str) -> str:
    """Return one line on columns with the same way out; of several files the first is told."""
    first: dict[str, str] = {}
    several = len({*(tuple(files) for files, _, _ in group)}) > 1
    for files, name, said in group:
        what, comma, rest = said.partition(", ")
        what = f"{what} of {files[0]}" if several else what
        first.setdefault(name, f"{what}{comma}{rest}")
    ends = {said.partition(", ")[2] for said in first.values()}
    shown = list(first)[:_COLUMNS]
    if len(ends) == 1:
        each = [f"{name} ({first[name].partition(', ')[0]})" for name in shown]
        end = "".join(f": {one}" for one in ends if one)
        return f"columns {', '.join(each)}{_more(first, _COLUMNS)}{end}: {way}"
    each = [f"{name}: {first[name]}" for name in shown]
    return f"columns {'; '.join(each)}{_more(first, _COLUMNS)}: {way}"


def _more(known: Collection[str], shown: int) -> str:
    return f" and {len(known) - shown} more" if len(known) > shown else ""


# ------------------------------------------------------------------ keys that mend


def dropped(drop_columns: str) -> list[str]:
    """Return the names in a value of ``drop-columns``: separated by commas, a comma of a name is
    written with a backslash before it."""
    names = re.findall(r"(?:\\[\\,]|[^,])+", drop_columns)
    return [re.sub(r"\\([\\,])", r"\1", name.strip()) for name in names if name.strip()]


def mending(faults: Iterable[Fault], drop_columns: str = "") -> dict[str, str]:
    """Return the run-config keys that mend faults, beside a value of ``drop-columns``."""
    keys: dict[str, str] = {}
    names = dropped(drop_columns)
    for fault in faults:
        keys = {**fault.keys, **keys}
        names += [name for name in fault.drop if name not in names]
    if len(names) > len(dropped(drop_columns)):
        keys = {"drop-columns": comma_list(names), **keys}
    return keys


# ------------------------------------------------------------------ the table


def of_names(
    repeated: Mapping[str, Sequence[Any]], unnamed: Iterable[str], names: Iterable[str]
) -> list[Fault]:
    """Return the faults of names among the columns that are used.

    ``repeated`` has, by a name that several columns have, their names and contents.
    """
    used, faults = set(names), []
    for name, columns in sorted(repeated.items()):
        (_, first), *others = columns
        if len(used & {one for one, _ in columns}) < 2:
            continue
        again = [one for one, _ in others]
        alike = all(values.equals(first) for _, values in others)
        keep = (
            f"drop-columns = {comma_list(again)} keeps the first, {comma_list([name])} none of them"
        )
        faults.append(
            Fault(
                f"several columns are called {name!r}{', with equal values' if alike else ''} "
                f"({keep})",
                drop=tuple(again),
            )
        )
    faults += [
        Fault(f"{name} has no name: give it one, or leave it out as {name!r}", drop=(name,))
        for name in unnamed
        if name in used
    ]
    return faults


def of_labels(names: Iterable[str]) -> Fault:
    """Return the fault of a table of which nothing says where its labels are."""
    return Fault(
        f"which column has the labels? Give label-column, one of {', '.join(names)}",
        keys={"label-column": CHOSEN},
    )


def of_gaps(source: Source, columns: Iterable[SourceColumn], label: str, table: Any) -> list[Fault]:
    """Return the faults of missing values, as ``missing`` and ``missing-labels`` treat them.

    ``table`` has the columns of ``id-column`` and ``person-column``, where there are any.
    """

    def absent(name: str) -> int:
        return table[name].null_count if name else 0

    faults = []
    gaps = {column.name: column for column in columns if column.missing}
    for count, what in (
        (gaps.pop(label).missing if label in gaps else 0, f"label in column {label}"),
        (absent(source.id_column), f"id in column {source.id_column}"),
        (absent(source.person_column), f"person in column {source.person_column}"),
    ):
        if count:
            rows, them = ("1 row has", "it") if count == 1 else (f"{count} rows have", "them")
            text = f"{rows} no {what}: take {them} out of the file, for a private run"
            if source.schema:  # as private runs have, which refuse the key
                faults.append(Fault(f"{text} (for others missing-labels = drop leaves them out)"))
            else:
                text = f"{text}; for others missing-labels = drop leaves them out"
                faults.append(Fault(text, keys={"missing-labels": "drop"}))
    if source.missing == "category" and source.alone and not source.schema:
        why = "other nodes may lack other values, and have other columns"
        text = f"missing = category needs schema where a node reads its own file: {why}"
        return [*faults, Fault(text, keys={"missing": "mean"})]
    for column in columns:
        if column.gap and source.missing != "category":
            text = f"column {column.name}: the schema lists {GAP!r}, a missing value"
            text = f"{text}, which needs missing = category"
            faults.append(Fault(text, keys={"missing": "category"}))
        elif column.name not in gaps:
            continue
        elif source.missing == "category" and source.schema and not column.gap:
            text = f"column {column.name}: {column.missing} values are missing"
            faults.append(Fault(f"{text}, and the schema does not list {GAP!r} among its values"))
        elif source.missing == "zero" and column.categories:
            text = f"column {column.name}: {column.missing} texts are missing"
            text = f"{text}, which missing = zero would make {column.categories[0][:40]!r}"
            faults.append(Fault(text, keys={"missing": "mean" if source.alone else "category"}))
    if gaps and source.missing == "refuse":
        where = ", ".join(
            f"{column.name} of {column.missing} row{'s' * (column.missing > 1)}"
            for column in gaps.values()
        )
        text = f"{', '.join(MISSING[1:-1])} or {MISSING[-1]}"
        if source.schema:  # as private runs have, which take no mean of the records
            text = f"{text}; in a private run category, with {GAP!r} in the schema, or zero"
        becomes = "mean"
        if any(column.gap for column in columns):
            becomes = "category"
        elif source.schema and not any(column.categories for column in gaps.values()):
            becomes = "zero"
        faults.append(
            Fault(
                f"missing values, in {where} (fill them in, leave the columns out, or choose what "
                f"they become: missing = {text})",
                keys={"missing": becomes},
            )
        )
    return faults


def of_empty_rows(count: int) -> list[Fault]:
    """Return the doubt about rows without any value, which the loader leaves out."""
    rows = "an empty row, which is" if count == 1 else f"{count} empty rows, which are"
    return [Fault(f"{rows} left out", stops=False)] if count else []


def of_left_out(count: int, *, infinite: bool) -> list[Fault]:
    """Return the line on rows that the keys of missing and infinite values leave out."""
    rows = "a row is" if count == 1 else f"{count} rows are"
    text = f"{rows} left out, as values are missing{' or infinite' * infinite}"
    return [Fault(text, stops=False)] if count else []


def of_headers(count: int) -> list[Fault]:
    """Return the doubt about rows that repeat the names of the columns, which are left out."""
    rows = "a row repeats" if count == 1 else f"{count} rows repeat"
    which = "is" if count == 1 else "are"
    text = f"{rows} the names of the columns, as where files were joined, and {which} left out"
    return [Fault(text, stops=False)] if count else []


# ------------------------------------------------------------------ a column


def categories_of(values: Any) -> list[str]:
    """Return the different texts of a column, sorted.

    Raises
    ------
    UnfitError
        Where they are no categories, or look alike, with the rows that show it.
    """
    categories: list[str] = sorted(values.unique().drop_null().to_pylist())
    rows = len(values) - values.null_count
    first = repr(categories[0][:40])
    if all(map(is_date, categories)):
        raise UnfitError(DATES_TEXT.format(first))
    others = [text for text in categories if not is_date(text)]
    days = [text for text in others if re.fullmatch(_DAY_OF_EXCEL, text)]
    few = len(categories) > MOST_CLASSES and 0 < len(others) < len(categories) / 2
    if others and (few or (len(days) == len(others) < len(categories))):
        excel = " (a day number of Excel?)" if days[:1] == others[:1] else ""
        raise UnfitError(
            f"dates, but for {some(others, 1)}{excel}: write it as one, or nothing if a value is "
            "missing",
            rows=_rows_of(values, others),
        )
    folded: dict[str, str] = {}
    for text in categories:
        if (other := folded.setdefault(text.casefold(), text)) != text:
            raise UnfitError(
                f"{other!r} and {text!r} differ by case alone: write them alike, list both in a "
                "schema, or leave the column out"
            )
    if len(categories) <= MOST_CLASSES:
        return categories
    odd = [text for text in categories if not re.fullmatch(_NUMBER, text)]
    if 0 < len(odd) < len(categories) / 2:
        raise UnfitError(
            f"numbers, but for {some(odd, 1)}: write it as one, or nothing if a value is missing",
            rows=_rows_of(values, odd),
        )
    if len({re.sub(r"\d+([.,]\d+)*", "", text) for text in categories}) == 1:
        own = ", set person-column if they say whose a row is" * (len(categories) < rows)
        raise UnfitError(
            f"texts that differ in a number, such as {first}: leave them out if they are ids{own}, "
            "write the numbers alone if they are quantities, or list them in a schema if categories"
        )
    if len(categories) > min(MOST_CATEGORIES, rows / 2):
        what = " (an id, or notes?)" if len(categories) == rows else ""
        raise UnfitError(
            f"{len(categories)} different texts in {rows} rows, such as {first}, are too many "
            f"categories{what}"
        )
    return categories


def _rows_of(values: Any, texts: Collection[str]) -> list[int]:
    """Return the rows of a column that have one of these texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_in(values, value_set=pa.array(texts, values.type))
    return [int(row) for row in np.flatnonzero(found.to_numpy(zero_copy_only=False))]


def label_column(values: Any, label: SourceColumn) -> SourceColumn:
    """Return the contents of a column of labels: classes, where it has few whole numbers.

    Raises
    ------
    UnfitError
        Where they are no labels.
    """
    if label.gap:
        raise UnfitError(f"a label may not be missing, and the schema lists {GAP!r}", drop=False)
    if not label.categories and not label.public:
        numbers = as_numbers(values.drop_null())
        classes = counted(numbers)[0] if (numbers == np.floor(numbers)).all() else ()
        if 0 < len(classes) <= MOST_CLASSES:
            label = replace(label, categories=tuple(str(int(one)) for one in classes))
    if label.constant:
        way = " (a node that has one class of several needs a schema that lists all)"
        way = way if label.categories else ""
        raise UnfitError(f"every row has the same label{way}", drop=False)
    return label
