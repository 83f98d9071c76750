"""The user's own tables: CSV, TSV and Parquet files, read by the types of their columns."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet.core.errors import did_you_mean
from privet.core.key import LARGEST
from privet.data.dataset import (
    DENSE_BYTES,
    DataError,
    Dataset,
    Encoding,
    FloatArray,
    Indices,
    LabelArray,
    Part,
    Source,
    SourceColumn,
    Task,
)
from privet.data.held_out import split
from privet.data.schema import GAP, MARK, Schema, read_schema
from privet.data.table_files import Rows, read_rows
from privet.data.table_values import (
    UnfitError,
    as_numbers,
    as_texts,
    cells,
    codes_of,
    encoded_column,
    typed,
    with_point,
)

log = logging.getLogger("flwr.privet")

LABELS = ("label", "labels", "target", "outcome", "class", "y")
"""Names, in any case, that identify the column of the labels where no key names it."""
MISSING = ("refuse", "category", "mean", "drop", "zero")
MOST_CLASSES = 20
"""Whole numbers of more values than this are a quantity, not classes."""
MOST_CATEGORIES = 100
TEST = "test"
_NUMBER = r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?"
_TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?(Z|[AP]M|[-+]\d{2}:?\d{2}))?"
_DAY = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})\.?)"
_DATE = rf"{_DAY}([T ]{_TIME})?|{_TIME}"
_FROM_RECORDS = (
    "scaling, categories and classes are read from the records: give schema, a file of public ones "
    "(privet data FILE --schema OUT writes a first one)"
)
_MARKED = (
    f"the schema holds {MARK} = true, as it was written from the records: put ranges and "
    f"categories in it that are publicly known of such data, then take out the line {MARK}"
)
_OF_GAPS = {
    "mean": "missing = mean takes the mean of the records: set it to category or zero",
    "drop": "missing = drop makes the number of rows depend on what is in them: set it to category "
    "or zero",
}


class Fault(NamedTuple):
    """What is wrong with a table, and what would mend it: the column to leave out, or a value of
    the key ``missing``; both are empty where the file itself is to be mended."""

    text: str
    drop: str = ""
    missing: str = ""


class TableError(DataError):
    """Columns that cannot be used, all of them.

    Attributes
    ----------
    faults : tuple of Fault
    keys : dict
        Values of ``drop-columns`` and ``missing`` that would mend those that keys can mend.
    """

    def __init__(self, source: Source, faults: list[Fault]) -> None:
        names = [*_dropped(source), *(fault.drop for fault in faults if fault.drop)]
        ways = [fault.missing for fault in faults if fault.missing]
        self.faults = tuple(faults)
        self.keys: dict[str, str] = {}
        if len(names) > len(_dropped(source)):
            self.keys["drop-columns"] = ",".join(names)
        if ways:
            self.keys["missing"] = "drop" if "drop" in ways else ways[0]
        texts = "; ".join(fault.text for fault in faults)
        keys = " ".join(f"{key}={value}" for key, value in self.keys.items())
        super().__init__(f"{source.path}: {texts}{f': set {keys}' if keys else ''}")


def load_table(source: Source) -> Dataset:
    """Read a table with a header into numbers, one-hot categories and labels.

    ``source`` is one file; a folder of files with the same columns, of which a file's name is the
    natural id of its rows, and one called ``test`` the test set; or an ``hf:`` table. Without a
    test set a fifth of the rows is held out. A column in which every value is a number, with a
    decimal point or comma, is one of numbers, any other one of categories; separators of thousands
    and dates are refused. Labels are classes where they are texts or at most
    `MOST_CLASSES` whole numbers, else a quantity.

    Numbers, and targets of a regression, are standardised with the training rows' mean and
    deviation, and are zeros where all are equal; k categories, in the order of the alphabet, become
    k - 1 columns, the first is the zero row, and a single one is left out. A node that reads its
    own file (``alone``) without a schema cannot know the other nodes' categories: a single one
    becomes a column of zeros, with a warning.

    A ``schema`` names the columns that are used: a range [low, high] is scaled to
    [-1, 1], or the categories; what lies outside is refused.

    A missing value is refused, or, as ``missing`` says: ``category``, a column of its own, 1 where
    it is missing, beside zeros in the others of its column (a schema lists "" where there may be
    such values); ``mean``, the mean over the training rows of each column that its own becomes;
    ``drop``, the row is left out; ``zero``, of numbers alone, 0 after scaling.

    Privacy: with a schema, which is public, each row depends on its own record alone, unless
    ``missing`` is ``mean`` or ``drop``. Otherwise private runs are refused, as with a schema that
    says of itself that it was read from the records.

    Raises
    ------
    TableError
        Values that cannot be used: names the file and all columns with such values.
    DataError
        A missing or damaged file, no such column: names the file and, where there are, column and
        row.
    """
    schema = read_schema(source.schema)
    rows = read_rows(source.path)
    names = _names(source, rows, schema)
    table = _typed(rows.table, source, schema, names)
    kept = _kept(source, rows, table)
    table, files = table.take(kept), rows.files[kept]
    columns, values = _columns(source, table, schema, names, rows.repeated, kept)
    *inputs, label = columns
    task, classes = _task(label)
    width = sum(column.width for column in inputs)
    if len(files) * width * 8 > DENSE_BYTES:
        raise DataError(
            f"{source.path}: {len(files)} rows of {width} columns are too many to hold densely"
        )
    whole = Part(
        np.hstack([encoded_column(values[column.name], column) for column in inputs]),
        _labels(values[label.name], label, task),
        _ids(source, table, files),
    )
    tests = files == TEST
    train, test = (
        (whole.rows(np.flatnonzero(~tests)), whole.rows(np.flatnonzero(tests)))
        if tests.any()
        else split(whole, source.held_out)
    )
    if not len(train.labels):
        raise DataError(f"{source.path}: expected rows to train on beside {TEST}")
    encoding = _encoding(source, inputs, label, train)
    train, test = (encoding.applied(part) for part in (train, test))
    if zeros := _zeros(inputs):
        log.warning("%s: %s", source.path, zeros)
    return Dataset.of(
        "csv",
        train,
        test,
        classes=classes,
        task=task,
        description=_description(source, inputs, len(rows.files) - len(kept)),
        data_dependent=_dependence(source, schema),
        source_columns=tuple(columns),
        encoding=encoding,
    )


def _encoding(
    source: Source, inputs: list[SourceColumn], label: SourceColumn, train: Part
) -> Encoding:
    """Return how columns are scaled and what missing values become, by the training rows."""
    origin, unit = np.hstack(list(_scales(inputs, train.features)))
    filling: FloatArray = np.zeros(len(origin))
    if source.missing == "mean":
        filling = _means((train.features - origin) / unit)
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


def _description(source: Source, inputs: list[SourceColumn], left_out: int) -> str:
    how = "scaled as the schema says" if source.schema else "standardised with training statistics"
    width = sum(column.width for column in inputs)
    remarks = [f"{Path(source.path).name}: {width} columns, numbers {how}, categories one-hot"]
    if constant := [column.name for column in inputs if not column.width]:
        remarks.append(f"left out, as every row has the same text: {', '.join(constant)}")
    if zeros := _zeros(inputs):
        remarks.append(zeros)
    if left_out:
        remarks.append(f"left out, as values are missing: {left_out} rows")
    return "; ".join(remarks)


def _zeros(inputs: list[SourceColumn]) -> str:
    """Return which columns are zeros as this node's rows all have one text, and what may follow."""
    if not (names := [column.name for column in inputs if column.zeros]):
        return ""
    return (
        f"zeros, as every row of this node has the same text: {', '.join(names)}; where another "
        "node has another text, give all the same schema, or leave it out on all with drop-columns"
    )


def _dependence(source: Source, schema: Schema) -> str:
    """Return the part of a row that depends on other records, and how to avoid it, if any."""
    if not schema.columns:
        return _FROM_RECORDS
    return _MARKED if schema.from_records else _OF_GAPS.get(source.missing, "")


# ------------------------------------------------------------------ values


def _typed(table: Any, source: Source, schema: Schema, names: list[str]) -> Any:
    """Return the columns that are used, and that of the ids, None where a value is missing."""
    import pyarrow as pa

    columns = typed(table, names, schema.columns)
    if source.id_column:
        columns[source.id_column] = cells(table[source.id_column])
    return pa.table(columns)


def _kept(source: Source, rows: Rows, used: Any) -> Indices:
    """Return the positions of the rows to read: not of those without any value, which are no more
    than blank lines, nor of those that ``missing = drop`` leaves out.

    Raises
    ------
    DataError
        Where nothing is left of a file.
    """
    import pyarrow.compute as pc

    kept = np.zeros(len(rows.files), dtype=bool)
    for values in rows.table.columns:
        kept |= pc.is_valid(cells(values)).to_numpy()
    if source.missing == "drop":
        for values in used.columns:
            if values.null_count < len(values):  # an empty column is refused as one
                kept &= pc.is_valid(values).to_numpy()
    for name in np.unique(rows.files):
        if not kept[rows.files == name].any():
            of = f" of {name}" if name else ""
            raise DataError(f"{source.path}: every row{of} has missing values, none is left")
    return np.flatnonzero(kept)


# ------------------------------------------------------------------ columns


def _dropped(source: Source) -> list[str]:
    return [name.strip() for name in source.drop_columns.split(",") if name.strip()]


def _names(source: Source, rows: Rows, schema: Schema) -> list[str]:
    """Return the names of the columns that are used, that of the labels last.

    Raises
    ------
    DataError
        A column that is not there, or has two parts to play.
    """
    names = rows.table.column_names
    dropped = _dropped(source)
    label = source.label_column or _usual_label(source.path, names)
    for key, named in (
        ("label-column", [label]),
        ("id-column", [source.id_column] if source.id_column else []),
        ("drop-columns", dropped),
        (f"schema {source.schema}", list(schema.columns)),
    ):
        for name in named:
            if name in rows.repeated and named is not dropped:
                raise DataError(f"{source.path}: {key} names {name!r}, and several columns are")
            if name not in (*names, *rows.repeated):
                near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"{source.path}: {key} names {name!r}, not a column{near}")
    if schema.columns and label not in schema.columns:
        raise DataError(f"schema {source.schema}: expected {label}, the column of the labels, too")
    if label in (source.id_column, *dropped):
        raise DataError(f"{source.path}: {label} is the column of the labels already")
    others = (label, source.id_column, *dropped)
    inputs = [name for name in schema.columns or names if name not in others]
    if not inputs:
        raise DataError(f"{source.path}: expected a column beside {label}")
    return [*inputs, label]


def _usual_label(path: str, names: list[str]) -> str:
    labels = [name for name in names if name.lower() in LABELS]
    if len(labels) == 1:
        return labels[0]
    raise DataError(
        f"{path}: which column has the labels? Give label-column, one of {', '.join(names)}"
    )


def _columns(
    source: Source,
    table: Any,
    schema: Schema,
    names: list[str],
    repeated: list[str],
    positions: Indices,
) -> tuple[list[SourceColumn], dict[str, Any]]:
    """Return the contents of the columns, the labels last, and the values of each.

    Raises
    ------
    TableError
        All that cannot be used.
    """
    *_, label = names
    read: dict[str, Any] = {}
    columns: list[SourceColumn] = []
    faults: list[Fault] = []
    if not schema.columns:
        for name in sorted(set(repeated) - set(_dropped(source))):
            faults.append(Fault(f"several columns are called {name!r}", drop=name))
    for name in names:
        public = schema.columns.get(name)
        try:
            values = table[name]
            read[name] = values if public and public.categories else with_point(values)
            column = _column(name, read[name], public)
            if name == label:
                column = _label_column(read[name], column)
            elif source.alone and not public and column.categories and column.constant:
                column = replace(column, zeros=True)
            columns.append(column)
        except UnfitError as error:
            where = "" if error.row is None else f"row {positions[error.row] + 1}: "
            droppable = error.drop and name != label
            faults.append(Fault(f"column {name}: {where}{error}", drop=name if droppable else ""))
    if source.id_column and (count := table[source.id_column].null_count):
        faults.append(Fault(f"{count} rows have no {source.id_column}", missing="drop"))
    faults += _faults_of_gaps(source, columns, label)
    if faults:
        raise TableError(source, faults)
    if source.missing == "category" and not schema.columns:
        columns = [replace(column, gap=column.missing > 0) for column in columns]
    if not any(column.width for column in columns[:-1]):
        raise DataError(
            f"{source.path}: expected a column beside {label} that is not the same text in every "
            "row"
        )
    return columns, read


def _column(name: str, values: Any, public: SourceColumn | None) -> SourceColumn:
    """Return the contents of a column (raises ``UnfitError`` where it cannot be used)."""
    import pyarrow as pa

    kind, missing = values.type, values.null_count
    if missing == len(values):
        raise UnfitError("every value is missing")
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or pa.types.is_boolean(kind) or pa.types.is_string(kind)):
        raise UnfitError(f"of type {kind}; expected numbers or texts")
    if public and not public.categories and not numeric:
        raise UnfitError("holds texts, but the schema gives a range of numbers", drop=False)
    if public and public.categories:
        codes_of(values, public)
        return replace(public, missing=missing)
    if numeric:
        numbers = as_numbers(values.drop_null())
        low, high = float(numbers.min()), float(numbers.max())
        if not -LARGEST <= low <= high <= LARGEST:
            raise UnfitError(f"expected finite numbers, of at most {LARGEST:g}")
        if not public:
            return SourceColumn(name, missing, low=low, high=high)
        if not public.low <= low <= high <= public.high:
            raise UnfitError(
                f"values outside of [{public.low:g}, {public.high:g}], the range in the schema",
                drop=False,
            )
        return replace(public, missing=missing)
    categories = sorted(as_texts(values).unique().drop_null().to_pylist())
    _check_categories(categories, len(values) - missing)
    return SourceColumn(name, missing, tuple(categories))


def _check_categories(categories: list[str], rows: int) -> None:
    """Raise ``UnfitError`` for texts of so many rows that are no categories, or that look alike."""
    first = repr(categories[0][:40])
    if all(re.fullmatch(_DATE, text) for text in categories):
        raise UnfitError(f"dates or times, such as {first}; expected numbers or categories")
    folded: dict[str, str] = {}
    for text in categories:
        if (other := folded.setdefault(text.casefold(), text)) != text:
            raise UnfitError(
                f"{other!r} and {text!r} differ by case alone: write them alike", drop=False
            )
    if len(categories) <= MOST_CLASSES:
        return
    odd = [text for text in categories if not re.fullmatch(_NUMBER, text)]
    if 0 < len(odd) < len(categories) / 2:
        raise UnfitError(
            f"numbers, but for {odd[0][:40]!r}: write it as one, or nothing if a value is missing"
        )
    if len({re.sub(r"\d+([.,]\d+)*", "", text) for text in categories}) == 1:
        raise UnfitError(
            f"many numbers with a text, such as {first}: write the numbers alone, list the texts "
            "in a schema if they are categories, or leave it out if it tells whose a row is"
        )
    if len(categories) > min(MOST_CATEGORIES, rows / 2):
        raise UnfitError(
            f"{len(categories)} different texts in {rows} rows, such as {first}, are too many "
            "categories"
        )


def _label_column(values: Any, label: SourceColumn) -> SourceColumn:
    """Return the contents of a column of labels: classes, where it has few whole numbers."""
    if label.gap:
        raise UnfitError(f"a label may not be missing, and the schema lists {GAP!r}", drop=False)
    if not label.categories and not label.public:
        classes = np.unique(as_numbers(values.drop_null()))
        if len(classes) <= MOST_CLASSES and (classes == np.floor(classes)).all():
            label = replace(label, categories=tuple(str(int(one)) for one in classes))
    if label.constant:
        raise UnfitError("every row has the same label", drop=False)
    return label


def _faults_of_gaps(source: Source, columns: list[SourceColumn], label: str) -> list[Fault]:
    """Return the faults of missing values, as the key ``missing`` treats them."""
    if source.missing == "category" and source.alone and not source.schema:
        return [
            Fault(
                "missing = category needs schema where a node reads its own file: other nodes may "
                "lack other values, and have other columns"
            )
        ]
    faults = []
    gaps = {column.name: column for column in columns if column.missing}
    if of := gaps.pop(label, None):
        faults.append(Fault(f"{of.missing} rows have no label in column {label}", missing="drop"))
    for column in columns:
        if column.gap and source.missing != "category":
            text = f"column {column.name}: the schema lists {GAP!r}, a missing value"
            faults.append(Fault(f"{text}, which needs missing = category", missing="category"))
        elif column.name not in gaps:
            continue
        elif source.missing == "category" and source.schema and not column.gap:
            text = f"column {column.name}: {column.missing} values are missing"
            faults.append(Fault(f"{text}, and the schema does not list {GAP!r} among its values"))
        elif source.missing == "zero" and column.categories:
            text = f"column {column.name}: {column.missing} texts are missing"
            zero = f"which missing = zero would make {column.categories[0][:40]!r}"
            faults.append(Fault(f"{text}, {zero}", missing="category"))
    if gaps and source.missing == "refuse":
        where = ", ".join(f"{column.name} of {column.missing} rows" for column in gaps.values())
        faults.append(
            Fault(
                f"missing values, in {where} (fill them in, leave the columns out, or choose what "
                f"they become: missing = {', '.join(MISSING[1:-1])} or {MISSING[-1]})",
                missing="mean",
            )
        )
    return faults


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
    return 2 * codes - 1 if task == "binary" else codes


def _ids(source: Source, table: Any, files: LabelArray) -> LabelArray | None:
    """Return the natural ids: of a column, else the names of the files of a folder."""
    if not source.id_column:
        return files if len(set(files) - {TEST}) > 1 else None
    return np.asarray(as_texts(table[source.id_column]).to_pylist())


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
    if not len(known):
        return 0.0, 1.0
    # Of equal numbers, rounding makes a deviation that is not 0.
    constant = known.min() == known.max()
    return (float(known[0]), 1.0) if constant else (float(known.mean()), float(known.std()))


def _means(features: FloatArray) -> FloatArray:
    """Return the mean of the known values of each column, 0 where there are none."""
    known = ~np.isnan(features)
    means: FloatArray = np.where(known, features, 0.0).sum(axis=0) / np.maximum(
        known.sum(axis=0), 1
    )
    return means
