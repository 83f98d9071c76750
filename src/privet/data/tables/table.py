"""The user's own tables: CSV, TSV and Parquet files, read by the types of their columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.errors import did_you_mean

from .. import meaning, scaling
from ..codes import skip
from ..dataset import (
    DENSE_BYTES,
    DataError,
    Dataset,
    Encoding,
    Fault,
    FloatArray,
    Indices,
    LabelArray,
    Part,
    Source,
    Task,
)
from ..held_out import split
from ..source_column import ColumnFacts, RowDigests, SourceColumn
from .copies import digests_of, of_copies, of_repeats
from .dates import are_dates, as_days, has_dates
from .doubts import (
    FEW,
    names_persons,
    of_counted,
    of_dates,
    of_files,
    of_header,
    of_ids,
    of_leaks,
    of_numbers_of_dates,
    of_signs,
    of_spellings,
    of_survival,
)
from .exchanged import of_exchanged
from .faults import (
    DATES_TEXT,
    TableError,
    categories_of,
    dropped,
    label_column,
    of_empty_rows,
    of_gaps,
    of_headers,
    of_labels,
    of_left_out,
    of_names,
)
from .files import TEST, Rows, read_rows, tidy
from .heaps import of_heaps
from .public import numbers_of
from .schema import Schema, read_schema
from .sites import (
    between,
    facts_of,
    of_broken,
    of_column,
    of_each,
    of_filled,
    of_missing_classes,
    of_skipped,
    sites_of,
    with_trends,
)
from .spellings import of_lone_text, of_missing_texts, of_spelt
from .values import (
    UnfitError,
    as_numbers,
    as_texts,
    cells,
    censored_as,
    codes_of,
    encoded_column,
    finite_as,
    is_numeric,
    not_finite,
    typed,
    with_point,
)

log = logging.getLogger("flwr.privet")

LABELS = ("label", "labels", "target", "outcome", "class", "y")
"""Names, in any case, that identify the column of the labels where no key names it."""
_AT_ONCE = 1 << 17
"""Rows that are encoded at a time."""
_ROWS = 5
"""Rows that a line names."""
_FROM_RECORDS = (
    "scaling, categories and classes are read from the records: give schema, a file of public ones "
    "(privet data FILE --schema OUT writes a first one)"
)
_OF_GAPS = {
    "mean": "missing = mean takes the mean of the records: set it to category or zero",
    "drop": "missing = drop makes the number of rows depend on what is in them: set it to category "
    "or zero",
}
_OF_INFINITE = (
    "infinite = drop makes the number of rows depend on what is in them: set it to missing, with a "
    "schema, or take such rows out of the file"
)
_OF_LABELS = (
    "missing-labels = drop makes the number of rows depend on what is in them: take rows without a "
    "label or id out of the file"
)


def load_table(source: Source) -> Dataset:
    """Read a table with a header into numbers, one-hot categories and labels.

    ``source`` is one file; a folder of files with the same columns, of which a file's name is the
    natural id of its rows, and one called ``test`` the test set; or an ``hf:`` table. Without a
    test set a fifth of the rows is held out. A column in which every value is a number, with a
    decimal point or comma, is one of numbers, any other one of categories; separators of thousands
    are refused, and dates, unless ``dates`` makes them numbers of days. Bounds such as <5 among
    numbers are refused, or numbers, as ``censored`` says; infinite numbers are refused, missing,
    or their rows left out, as ``infinite`` says. Files of a folder may write a column in different
    ways, as `privet.data.tables.mixed` has it. Labels are classes where
    they are texts or at most `MOST_CLASSES` whole numbers, else a quantity.

    Numbers, and targets of a regression, are standardised with the training rows' mean and
    deviation, and are zeros where all are equal; k categories, in the order of the alphabet, become
    k - 1 columns, the first is the zero row, and a single one is left out. A node that reads its
    own file (``alone``) without a schema cannot know the other nodes' categories: a single one
    becomes a column of zeros. What a run's nodes have ``agreed`` on takes the place
    of the file's order of columns and categories, and of its means and deviations.

    A ``schema`` names the columns that are used: a range [low, high] is scaled to
    [-1, 1], or the categories; what lies outside is refused.

    A missing value is refused, or, as ``missing`` says: ``category``, a column of its own, 1 where
    it is missing, beside zeros in the others of its column (a schema lists "" where there may be
    such values); ``mean``, the mean over the training rows of each column that its own becomes;
    ``drop``, the row is left out; ``zero``, of numbers alone, 0 after scaling. A row without a
    label, or an id, is refused, or, with ``missing_labels = drop``, left out.

    Privacy: with a schema, which is public, each row depends on its own record alone, unless
    ``missing`` is ``mean`` or ``drop``, or ``missing_labels`` or ``infinite`` is ``drop``.
    Otherwise private runs are refused, as with a schema that says of itself that it was read from
    the records.

    Raises
    ------
    TableError
        Values that cannot be used: names the file and all columns with such values.
    DataError
        A missing or damaged file, no such column: names the file and, where there are, column and
        row.
    """
    schema = read_schema(source.schema)
    rows = read_rows(
        source.path,
        public=schema.columns,
        unused=_unused(source, schema),
        empty_headers=not schema.columns,  # a schema's table loses no row by how it is spelt
    )
    inputs_of, label_of = _names(source, rows, schema)
    table = _typed(rows.table, source, schema, [*inputs_of, *filter(None, [label_of])])
    # A private run's number of examples must not say that a record lost all its values.
    filled = np.ones(len(rows.files), dtype=bool) if schema.columns else _filled(rows)
    kept = _kept(source, rows, table, label_of, filled)
    files = rows.files
    if len(kept) < len(rows.files):
        files, table = files[kept], table.take(kept)
    faults = _faults_of_form(source, schema, rows, table, filled, len(kept))
    columns, values, facts, more = _columns(
        *(source, table, schema, inputs_of, label_of, kept), files=rows.files, odd=rows.faults
    )
    del kept, filled  # arrays of all rows are let go as soon as they may be: a table may be large
    faults += more
    if any(fault.stops for fault in faults):
        raise TableError(source, faults)
    *inputs, label = columns
    facts = _of_all_rows(facts, columns, values)
    tidy(len(table), len(inputs))
    faults += _faults_of_values(source, columns, values, facts, table, files)
    faults += of_signs(columns, table, rows.points)
    ids = _texts_of(table, source.id_column)
    faults += _of_sites(_undoubted(columns, faults), values, facts, files, ids)
    tidy(len(table), len(inputs))
    told = {one.text.partition(":")[0] for one in faults}
    silent = [column for column in inputs if f"column {column.name}" not in told]
    faults += [one for column in silent for one in of_skipped(column, facts[column.name])]
    agreed = meaning.Meaning.from_text(source.agreed) if source.agreed else None
    if agreed is not None:
        inputs = _as_agreed(source, columns, facts, agreed)
    task, classes = _task(label)
    whole = Part(
        _dense(source, inputs, values, len(files)),
        _labels(values[label.name], label, task),
        files if ids is None and len(rows.counts.keys() - {TEST}) > 1 else ids,
        _texts_of(table, source.person_column),
    )
    digests = digests_of(columns, values, facts, {name for one in faults for name in one.drop})
    tidy(len(table), len(inputs))
    faults += _faults_of_rows(source, columns, table, files, ids, whole.ids, digests)
    train, test = _train_and_test(source, whole, files)
    row_digests = digests if source.alone else None
    del whole, digests, files
    encoding = _encoding(source, inputs, label, train)
    if agreed is not None:
        encoding = scaling.scaled_as(encoding, agreed, source.missing)
    found = agreed or _meaning(source, encoding, train, facts)
    size = train.features.nbytes + test.features.nbytes
    train, test = (encoding.applied(part, size) for part in (train, test))
    return Dataset.of(
        "csv",
        train,
        test,
        classes=classes,
        task=task,
        description=_description(source, inputs),
        data_dependent=_dependence(source, schema),
        source_columns=tuple(columns),
        encoding=encoding,
        doubts=tuple(sorted(faults, key=lambda one: -one.weight)),
        facts=facts,
        row_digests=row_digests,
        meaning=replace(found, public=_is_public(source, schema)),
    )


def _faults_of_form(
    source: Source, schema: Schema, rows: Rows, table: Any, filled: NDArray[np.bool_], kept: int
) -> list[Fault]:
    """Return what is doubtful about names, empty rows and files, before any column is read.

    ``filled`` says which rows of the files have a value; ``table`` has those that are ``kept``.
    """
    faults = [] if schema.columns else _faults_of_names(rows, table.column_names)
    faults += of_headers(rows.headers)
    faults += of_empty_rows(int((~filled).sum()) - rows.headers)
    faults += of_left_out(int(filled.sum()) - kept, infinite=source.infinite == "drop")
    faults += of_files(rows.counts, TEST, rows.unread)
    if not schema.columns:
        made = {one for several in rows.repeated.values() for one in several} | {*rows.unnamed}
        faults += of_header([name for name in table.column_names if name not in made], table)
    return faults


def _of_all_rows(
    facts: Mapping[str, ColumnFacts], columns: list[SourceColumn], values: Mapping[str, Any]
) -> dict[str, ColumnFacts]:
    """Return the facts of columns with how they go with the label, over all rows."""
    of_rows = {name: {"": one} for name, one in facts.items()}
    with_all = with_trends(of_rows, columns, values, {"": slice(None)})
    return {name: own[""] for name, own in with_all.items()}


def _faults_of_values(
    source: Source,
    columns: list[SourceColumn],
    values: Mapping[str, Any],
    facts: Mapping[str, Any],
    table: Any,
    files: LabelArray,
) -> list[Fault]:
    """Return what is doubtful about the values of columns, the label last."""
    *inputs, label = columns
    ids, person = of_ids(source, inputs, values, files), source.person_column
    named = {name for one in ids for name in (*one.drop, *one.keys.values())}
    others = [column for column in inputs if column.name not in named]
    return [
        *ids,
        *(of_counted(person, table[person], files) if person else ()),
        *of_numbers_of_dates(inputs, values),
        *of_survival(label, inputs, values),
        *of_leaks(label, others, values, _persons(source, table, ids)),
        *of_exchanged(inputs, values, facts),
    ]


def _undoubted(columns: list[SourceColumn], faults: Iterable[Fault]) -> list[SourceColumn]:
    """Return the columns whose values no fault is about."""
    doubted = {name for one in faults if one.of_values for name in (*one.drop, *one.keys.values())}
    return [column for column in columns if column.name not in doubted]


def _dense(
    source: Source, inputs: list[SourceColumn], values: Mapping[str, Any], count: int
) -> FloatArray:
    """Return the features (count, d) before scaling (raises ``DataError`` if they are too many)."""
    width = sum(column.width for column in inputs)
    if count * width * 8 > DENSE_BYTES:
        raise DataError(
            f"{source.path}: {count} rows of {width} columns are too many to hold densely"
        )
    result: FloatArray = mapped.scratch((count, width), np.float64)
    at = 0
    for column in inputs:
        to = at + column.width
        for begin in range(0, count, _AT_ONCE):
            part = values[column.name].slice(begin, _AT_ONCE)
            result[begin : begin + _AT_ONCE, at:to] = encoded_column(part, column)
        at = to
        mapped.release()
    return result


def _faults_of_rows(
    source: Source,
    columns: list[SourceColumn],
    table: Any,
    files: LabelArray,
    ids: LabelArray | None,
    natural: LabelArray | None,
    digests: RowDigests,
) -> list[Fault]:
    """Return what is doubtful about rows: copies, repeats, their order in time, spelt ids.

    ``ids`` are those of ``id-column``, ``natural`` those that rows are dealt by, and
    ``digests`` those of what the rows hold.
    """
    faults = of_copies(table, files) or of_repeats(digests, files if ids is None else ids)
    faults += of_dates(columns, table, files if natural is None else natural)
    if source.id_column:
        faults += of_spellings(source.id_column, ids)
    return faults


def _train_and_test(source: Source, whole: Part, files: LabelArray) -> tuple[Part, Part]:
    """Return the rows to train on, and those held out: the test set, or a share of all.

    Raises
    ------
    DataError
        If a person has rows in both, or no row is left to train on.
    """
    tests = files == TEST
    _check_persons(source, whole.persons, tests)
    train, test = (
        (whole.rows(np.flatnonzero(~tests)), whole.rows(np.flatnonzero(tests)))
        if tests.any()
        else split(whole, source.held_out)
    )
    if not len(train.labels):
        raise DataError(f"{source.path}: expected rows to train on beside {TEST}")
    return train, test


def _persons(source: Source, table: Any, ids: Iterable[Fault]) -> LabelArray | None:
    """Return whose the rows are, by ``person-column`` or by ids that may be theirs."""
    known = [one.keys["person-column"] for one in ids if "person-column" in one.keys]
    names = [source.person_column, *known]
    return _texts_of(table, next(filter(None, names), ""))


def _of_sites(
    columns: list[SourceColumn],
    values: Mapping[str, Any],
    whole: Mapping[str, ColumnFacts],
    files: LabelArray,
    ids: LabelArray | None,
) -> list[Fault]:
    """Return the doubts about columns, the label last, by the rows of each file, and of each id of
    ``id-column``; ``whole`` has the facts of all rows."""
    *inputs, label = columns
    by_file, by_id = sites_of(files), {} if ids is None else sites_of(ids, FEW)
    found: dict[str, Fault] = {}
    known = [(sites, test) for sites, test in ((by_file, TEST), (by_id, "")) if sites]
    for sites, test in known or [({}, "")]:
        facts = {one.name: facts_of(one, values[one.name], sites) for one in columns}
        facts = with_trends(facts, columns, values, sites)
        lines = of_each(inputs, label, values, sites, facts, whole)
        lines += between(columns, facts, label.name, test)
        found |= {fault.text: fault for fault in lines}
    told = {text.partition(":")[0] for text in found}
    for column in columns:
        if f"column {column.name}" not in told:
            facts_of_all = whole[column.name]
            lines = of_missing_classes(column, facts_of_all) if column is label else []
            lines = lines or of_spelt(column, facts_of_all, classes=column is label)
            lines = lines or of_heaps(column, values[column.name], columns, values)
            lines = lines or of_filled(column, {"": facts_of_all})
            lone = [] if lines or column is label else of_lone_text(column, facts_of_all)
            found |= {fault.text: fault for fault in lines + lone}
            if lone:
                continue
        found |= {fault.text: fault for fault in of_missing_texts(column, whole[column.name])}
    return list(found.values())


def _as_agreed(
    source: Source,
    columns: list[SourceColumn],
    facts: Mapping[str, ColumnFacts],
    agreed: meaning.Meaning,
) -> list[SourceColumn]:
    """Return the columns of features in the order, and with the categories, that a run's sites have
    agreed on.

    Raises
    ------
    DataError
        Where the file is not as it was then.
    """
    *inputs, label = columns
    own = meaning.Meaning(*_of_columns(source, inputs, label, facts))
    if found := own.difference(replace(agreed, settings={}, says="")):
        told = found.between("this table has", "the others")
        raise DataError(f"{source.path}: {told}: it is not the table that the node enrolled with")
    return scaling.read_as(inputs, agreed)


def _meaning(
    source: Source, encoding: Encoding, train: Part, facts: Mapping[str, ColumnFacts]
) -> meaning.Meaning:
    """Return what a table's columns mean; ``train`` are its rows before scaling."""
    rows: dict[str, list[float]] = {}
    codes: dict[str, list[float]] = {}
    trends: dict[str, float] = {}
    if source.alone:
        shares = source.missing == "mean"
        rows = scaling.moments(encoding, train.features, train.labels, shares=shares)
        numbers = [one.name for one in encoding.columns if not (one.categories or one.public)]
        each = {name: facts[name].counts.items() for name in numbers if facts[name].counts}
        codes = {name: [float(x) for pair in each[name] for x in pair] for name in each}
        trends = {name: round(facts[name].trend, 2) for name in numbers if facts[name].trend}
    columns, label = _of_columns(source, encoding.columns, encoding.label, facts)
    scale = scaling.scaling(encoding)
    found = meaning.Meaning(columns, label, scale=scale, rows=rows, codes=codes, trends=trends)
    return replace(found, codes={}, trends={}) if found.is_long else found


def _of_columns(
    source: Source,
    inputs: Collection[SourceColumn],
    label: SourceColumn,
    facts: Mapping[str, ColumnFacts],
) -> tuple[dict[str, meaning.Facts], meaning.Facts]:
    numbers = [one.name for one in inputs if not (one.categories or one.public or one.dates)]
    if source.missing == "zero":  # 0 is the mean of numbers, and of booleans it is false
        numbers = [name for name in numbers if not facts[name].missing]
    flags = {name for name in numbers if (own := facts[name].counts) and own.keys() <= {0.0, 1.0}}
    means = source.missing == "mean"
    return meaning.of_columns(inputs, label, _censored(source), flags, means=means)


def _censored(source: Source) -> str:
    """Return how bounds such as <5 are read, empty where they are refused."""
    return "" if source.censored == "refuse" else source.censored


def _encoding(
    source: Source, inputs: list[SourceColumn], label: SourceColumn, train: Part
) -> Encoding:
    """Return how columns are scaled and what missing values become, by the training rows."""
    origin, unit = np.hstack(list(_scales(inputs, train.features)))
    filling: FloatArray = np.zeros(len(origin))
    if source.missing == "mean":
        filling = _means(train.features, origin, unit)
    may_lack: dict[str, Callable[[SourceColumn], bool]] = {
        "mean": lambda column: True,
        "category": lambda column: column.gap,
        "zero": lambda column: not column.categories,
    }
    optional = may_lack.get(source.missing)
    return Encoding(
        tuple(replace(column, missing=0) for column in inputs),
        origin,
        unit,
        filling,
        optional=tuple(column.name for column in inputs if optional and optional(column)),
        label=replace(label, missing=0),
        target=(0.0, 1.0) if label.categories else _scale(label, train.labels),
    )


def _description(source: Source, inputs: list[SourceColumn]) -> str:
    how = "scaled as the schema says" if source.schema else "standardised with training statistics"
    width = sum(column.width for column in inputs)
    remarks = [f"{Path(source.path).name}: {width} columns, numbers {how}, categories one-hot"]
    if constant := [column.name for column in inputs if not column.width]:
        remarks.append(f"left out, as every row has the same text: {', '.join(constant)}")
    if zeros := _zeros(inputs):
        remarks.append(zeros)
    return "; ".join(remarks)


def _zeros(inputs: list[SourceColumn]) -> str:
    """Return which columns are zeros, as the rows of this node, or of all, have one text."""
    names = [column.name for column in inputs if column.zeros]
    return f"zeros, as every row has the same text: {', '.join(names)}" if names else ""


def _is_public(source: Source, schema: Schema) -> bool:
    """Return whether columns, categories, classes and scaling are a schema's alone."""
    stated = bool(schema.columns) and not schema.from_records
    return stated and source.missing != "mean"


def _dependence(source: Source, schema: Schema) -> str:
    """Return the part of a row that depends on other records, and how to avoid it, if any."""
    if not schema.columns:
        return _FROM_RECORDS
    if schema.dependence:
        return schema.dependence
    if source.infinite == "drop":
        return _OF_INFINITE
    return _OF_GAPS.get(source.missing, _OF_LABELS if source.missing_labels == "drop" else "")


def _unused(source: Source, schema: Schema) -> Callable[[str], bool]:
    """Return whether the columns of a name are used by nobody, so that a file may lack them."""
    out = dropped(source.drop_columns)
    used = {*schema.columns, source.id_column, source.person_column}
    return lambda name: name in out or bool(schema.columns and name not in used)


# ------------------------------------------------------------------ values


def _typed(table: Any, source: Source, schema: Schema, names: list[str]) -> Any:
    """Return the columns that are used, and that of the ids, None where a value is missing."""
    import pyarrow as pa

    columns = typed(table, names, schema.columns)
    for name in filter(None, (source.id_column, source.person_column)):
        columns[name] = cells(table[name])
    return pa.table(columns)


def _filled(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows have any value: the others are no more than blank lines."""
    import pyarrow.compute as pc

    filled = np.zeros(len(rows.files), dtype=bool)
    for values in rows.table.columns:
        filled |= pc.is_valid(cells(values)).to_numpy()
    return filled


def _kept(source: Source, rows: Rows, used: Any, label: str, filled: NDArray[np.bool_]) -> Indices:
    """Return the positions of the rows to read: of those that are filled, not those that
    ``missing`` or ``missing-labels`` leaves out.

    Raises
    ------
    DataError
        Where nothing is left of a file.
    """
    import pyarrow.compute as pc

    kept = filled.copy()
    needed = set(used.column_names) if source.missing == "drop" else set()
    if source.missing_labels == "drop":
        needed |= {label, source.id_column, source.person_column} & set(used.column_names)
    for name in needed:
        if used[name].null_count < len(kept):  # an empty column is refused as one
            kept &= pc.is_valid(used[name]).to_numpy()
    if source.infinite == "drop":
        for values in used.columns:
            kept &= ~not_finite(values)
    for name in sorted(name for name, count in rows.counts.items() if count):
        if not kept[rows.files == name].any():
            of = f" of {name}" if name else ""
            infinite = " or infinite numbers" if source.infinite == "drop" else ""
            raise DataError(
                f"{source.path}: every row{of} has missing values{infinite}, none is left"
            )
    return np.flatnonzero(kept)


# ------------------------------------------------------------------ columns


def _names(source: Source, rows: Rows, schema: Schema) -> tuple[list[str], str]:
    """Return the names of the columns that are used, and of that of the labels, which is empty
    where nothing says which it is.

    Raises
    ------
    DataError
        A column that is not there, or has two parts to play.
    """
    names = rows.table.column_names
    out = dropped(source.drop_columns)
    label = source.label_column or _usual_label(names)
    for key, named in (
        ("label-column", [label] if label else []),
        ("id-column", [source.id_column] if source.id_column else []),
        ("person-column", [source.person_column] if source.person_column else []),
        ("drop-columns", out),
        (f"schema {source.schema}", list(schema.columns)),
    ):
        for name in named:
            if name not in names:
                if any(name in other and name != other for other in names if "," in other):
                    near = r"; a comma of a name is written \,"
                else:
                    near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"{source.path}: {key} names {name!r}, not a column{near}")
            several = [one for one in rows.repeated.get(name, []) if one not in out]
            if named is not out and len(several) > 1:
                raise DataError(
                    f"{source.path}: {key} names {name!r}, and several columns are: rename one, or "
                    f"leave out {', '.join(several[1:])} with drop-columns"
                )
    if schema.columns and label not in schema.columns:
        raise DataError(f"schema {source.schema}: expected {label}, the column of the labels, too")
    out = [one for name in out for one in rows.repeated.get(name, [name])]
    if label and label in (source.id_column, source.person_column, *out):
        raise DataError(f"{source.path}: {label} is the column of the labels already")
    others = (label, source.id_column, source.person_column, *out)
    inputs = [name for name in schema.columns or names if name not in others]
    if not inputs:
        raise DataError(f"{source.path}: expected a column beside {label}")
    return inputs, label


def _usual_label(names: list[str]) -> str:
    labels = [name for name in names if name.lower() in LABELS]
    return labels[0] if len(labels) == 1 else ""


def _faults_of_names(rows: Rows, used: list[str]) -> list[Fault]:
    repeated = {
        name: [(one, cells(rows.table[one])) for one in several]
        for name, several in rows.repeated.items()
    }
    return of_names(repeated, rows.unnamed, used)


def _columns(
    source: Source,
    table: Any,
    schema: Schema,
    inputs: list[str],
    label: str,
    kept: Indices,
    files: LabelArray,
    odd: Mapping[str, str],
) -> tuple[list[SourceColumn], dict[str, Any], dict[str, ColumnFacts], list[Fault]]:
    """Return the contents of the columns, the labels last, the values and facts of each, and all
    faults. ``kept`` are the places of the rows among all, whose files are ``files``."""
    read: dict[str, Any] = {}
    facts: dict[str, ColumnFacts] = {}
    columns: list[SourceColumn] = []
    faults: list[Fault] = []
    if not label:
        faults.append(of_labels(inputs))
    for name in [*inputs, *filter(None, [label])]:
        public = schema.columns.get(name)
        if name in odd:
            faults.append(Fault(f"column {name}: {odd[name]}", () if name == label else (name,)))
            continue
        try:
            column, read[name] = _column(name, table[name], public, source)
            if name == label:
                column = label_column(read[name], column)
                if not (column.categories or column.dates):
                    faults += of_broken(column, as_numbers(read[name]))
            elif source.alone and not public and column.categories and column.constant:
                column = replace(column, zeros=True)
            facts |= facts_of(column, read[name], {name: slice(None)})
            tidy(len(table), len(inputs))
            if not (column.public or column.categories) and skip(counts := facts[name].counts):
                column = replace(column, codes=tuple(counts))
            columns.append(column)
            if name != label:
                faults += of_column(column, facts[name])
        except UnfitError as error:
            where = _said(kept[list(error.rows)], files)
            drop = (name,) if error.drop and name != label else ()
            keys = error.keys
            if drop and not source.person_column and _may_be_persons(name, table[name]):
                drop, keys = (), {"person-column": name}
                where = (
                    "if it says whose a row is, person-column keeps a person's rows together; "
                    f"{where}"
                )
            faults.append(Fault(f"column {name}: {where}{error}", drop, keys))
    faults += of_gaps(source, columns, label, table)
    if any(fault.stops for fault in faults):
        return columns, read, facts, faults
    if source.missing == "category" and not schema.columns:
        columns = [replace(column, gap=column.missing > 0) for column in columns]
    if not any(column.width for column in columns[:-1]):
        raise DataError(
            f"{source.path}: expected a column beside {label} that is not the same text in every "
            "row"
        )
    return columns, read, facts, faults


def _said(rows: Indices, files: LabelArray) -> str:
    """Return where rows are, by their numbers in the files that they are of."""
    shown, texts = rows[:_ROWS], []
    for name in dict.fromkeys(map(str, files[shown])):
        numbers = np.searchsorted(np.flatnonzero(files == name), shown[files[shown] == name]) + 1
        several, of = "s" * (len(numbers) > 1), f" of {name!r}" if name else ""
        texts.append(f"row{several} {', '.join(map(str, numbers))}{of}")
    more = f" and {len(rows) - _ROWS} more" if len(rows) > _ROWS else ""
    return f"{', '.join(texts)}{more}: " if texts else ""


def _may_be_persons(name: str, values: Any) -> bool:
    """Return whether a column that cannot be used is one of persons with several rows."""
    known = values.drop_null()
    return names_persons(name) and 1 < len(known.unique()) < len(known) == len(values)


def _column(
    name: str, values: Any, public: SourceColumn | None, source: Source
) -> tuple[SourceColumn, Any]:
    """Return the contents and the values of a column (raises ``UnfitError`` where it cannot be
    used)."""
    if public and public.categories:
        return _contents(name, values, public), values
    if public:
        dates = source.dates if source.dates != "refuse" and has_dates(values) else ""
        values = numbers_of(values, public, dates=source.dates, censored=source.censored)
        values = finite_as(values, source.infinite)
        column = _contents(name, values, public)
        return replace(column, dates=dates, censored=_censored(source)), values
    values = finite_as(with_point(censored_as(values, source.censored)), source.infinite)
    dates = "" if source.dates == "refuse" or not are_dates(values) else source.dates
    if dates:
        values = as_days(values, dates)
    column = _contents(name, values, public)
    if column.categories:
        return column, values
    return replace(column, dates=dates, censored="" if dates else _censored(source)), values


def _contents(name: str, values: Any, public: SourceColumn | None) -> SourceColumn:
    """Return the contents of a column (raises ``UnfitError``)."""
    import pyarrow as pa

    kind, missing = values.type, values.null_count
    if missing == len(values) and not public:
        raise UnfitError("every value is missing")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        raise UnfitError(DATES_TEXT.format(values.drop_null()[0].as_py()))
    numeric = is_numeric(values)
    if not (numeric or pa.types.is_boolean(kind) or pa.types.is_string(kind)):
        raise UnfitError(f"of type {kind}; expected numbers or texts")
    if public and public.categories:
        codes_of(values, public)
        return replace(public, missing=missing)
    if numeric:
        numbers = as_numbers(values.drop_null())
        if public and not len(numbers):
            return replace(public, missing=missing)
        low, high = float(numbers.min()), float(numbers.max())
        if not public:
            return SourceColumn(name, missing, low=low, high=high)
        if not public.low <= low <= high <= public.high:
            numbers = as_numbers(values)
            rows = np.flatnonzero((numbers < public.low) | (numbers > public.high)).tolist()
            such = f", such as {numbers[rows[0]]:g}" if rows else ""
            known = f"[{public.low:g}, {public.high:g}], the range in the schema"
            raise UnfitError(
                f"values outside of {known}{such}",
                drop=False,
                rows=rows,
            )
        return replace(public, missing=missing)
    return SourceColumn(name, missing, tuple(categories_of(as_texts(values))))


def _task(label: SourceColumn) -> tuple[Task, int]:
    """Return the task, and the number of classes."""
    count = len(label.categories)
    if not count:
        return "regression", 0
    return ("binary", 2) if count == 2 else ("multinomial", count)


# ------------------------------------------------------------------ encoding


def _labels(values: Any, label: SourceColumn, task: Task) -> LabelArray:
    if task == "regression":
        return as_numbers(values)
    codes = codes_of(values, label)
    if task == "binary":
        codes *= 2
        codes -= 1
    return codes


def _texts_of(table: Any, name: str) -> LabelArray | None:
    return np.asarray(as_texts(table[name]).to_pylist()) if name else None


def _check_persons(source: Source, persons: LabelArray | None, tests: NDArray[np.bool_]) -> None:
    """Raise ``DataError`` where persons have rows in the test set and in the others."""
    if persons is None:
        return
    both = len(np.intersect1d(persons[tests], persons[~tests]))
    if both:
        who = "1 person has" if both == 1 else f"{both} persons have"
        raise DataError(
            f"{source.path}: person-column = {source.person_column}: {who} rows in {TEST} and in "
            f"other files: move them to one side, or take the file {TEST} out, and a fifth of the "
            "persons is held out"
        )


def _scales(columns: list[SourceColumn], features: FloatArray) -> Iterator[FloatArray]:
    """Yield for each column what is taken off the columns it becomes, and their divisors."""
    at = 0
    for column in columns:
        scale = np.repeat([[0.0], [1.0]], column.width, axis=1)
        if not column.categories:
            scale[:, 0] = _scale(column, features[:, at])
        yield scale
        at += column.width


def _scale(column: SourceColumn, values: FloatArray) -> tuple[float, float]:
    """Return the middle and half the width of a public range, else mean and deviation."""
    if column.public:
        return (column.low + column.high) / 2, (column.high - column.low) / 2 or 1.0
    known = values[~np.isnan(values)]
    mapped.release()
    if not len(known):
        return 0.0, 1.0
    # Of equal numbers, rounding makes a deviation that is not 0.
    constant = known.min() == known.max()
    return (float(known[0]), 1.0) if constant else (float(known.mean()), float(known.std()))


def _means(features: FloatArray, origin: FloatArray, unit: FloatArray) -> FloatArray:
    """Return the mean of the known values of each column after scaling, 0 where there are none."""

    def known(rows: slice) -> FloatArray:
        scaled = features[rows] - origin
        scaled /= unit
        scaled[np.isnan(scaled)] = 0.0
        return scaled

    counts = sum(
        np.count_nonzero(~np.isnan(features[at]), axis=0) for at in mapped.blocks(features)
    )
    # Numpy adds up the rows of several columns in order, and those of a single one in pairs.
    if len(origin) == 1:
        total = known(slice(None)).sum(axis=0)
    else:
        total = mapped.sum_of(known(rows) for rows in mapped.blocks(features))
    means: FloatArray = total / np.maximum(counts, 1)
    return means
