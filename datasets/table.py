"""The user's own tables: CSV, TSV and Parquet files, read by the types of their columns."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privet.datasets import hub
from privet.datasets.dataset import (
    DENSE_BYTES,
    DataError,
    Dataset,
    FloatArray,
    LabelArray,
    Part,
    Source,
    SourceColumn,
    Task,
    brief,
)
from privet.datasets.partitions import split
from privet.wire.errors import did_you_mean

EXPECTED = "a .csv, .csv.gz, .tsv or .parquet file, a folder of them, or an hf: table"
LABELS = ("label", "labels", "target", "outcome", "class", "y")
"""Names by which the column of the labels is found where nobody says it, in any case."""
MISSING = ("refuse", "zero")
MOST_CLASSES = 20
"""Whole numbers of more values than this are a quantity, not classes."""
MOST_CATEGORIES = 100
TEST = "test"
_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_NO_VALUE = ["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
_DECIMAL_COMMA = r"^[-+]?\d+(,\d+)?([eE][-+]?\d+)?$"
_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_SEPARATED = r"^[-+]?(\d+|\d{1,3}([,.' ]\d{3})+)([.,]\d+)?([eE][-+]?\d+)?$"
_FROM_RECORDS = (
    "scaling, categories and classes are read from the records: give schema, a file of public ones "
    "(privet data FILE --schema OUT writes a first one)"
)

_NOT_UTF_8 = "expected text in UTF-8: save it with that encoding (in Excel, CSV UTF-8)"

Schema = Mapping[str, list[Any]]


def load_table(source: Source) -> Dataset:
    """Read a table with a header into numbers, one-hot categories and labels.

    ``source`` is one file; a folder of files with the same columns, of which a file's name is the
    natural id of its rows, and one called ``test`` the test set; or an ``hf:`` table. Without a
    test set a fifth of the rows is held out. A column in which every value is a number, with a
    decimal point or comma, is one of numbers, any other one of categories; separators of thousands
    are refused. Labels are classes where they are texts or at most
    `MOST_CLASSES` whole numbers, else a quantity.

    Numbers, and targets of a regression, are standardised with the training rows' mean and
    deviation; k categories, in the order of the alphabet, become k - 1 columns, the first is the
    zero row. A ``schema`` names the columns that are used: a range [low, high] is scaled to
    [-1, 1], or the categories; what lies outside is refused. A missing value is refused, or with
    ``missing = zero`` 0 in every column that its own becomes.

    Privacy: with a schema, which is public, each row depends on its own record alone. Without one
    private runs are refused.

    Raises
    ------
    DataError
        A missing or damaged file, no such column, a value that cannot be used: names the file and,
        where there are, column and row.
    """
    schema = _schema(source.schema)
    table, files = _table(source, schema)
    *inputs, label = columns = _columns(source, table, schema)
    task, classes = _task(source, label)
    width = sum(column.width for column in inputs)
    if table.num_rows * width * 8 > DENSE_BYTES:
        raise DataError(
            f"{source.path}: {table.num_rows} rows of {width} columns are too many to hold densely"
        )
    whole = Part(
        np.hstack([_encoded(source, table, column) for column in inputs]),
        _labels(source, table, label, task),
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
    origin, unit = np.hstack(list(_scales(inputs, train.features)))
    train, test = (
        part._replace(features=np.nan_to_num((part.features - origin) / unit))
        for part in (train, test)
    )
    if task == "regression":
        origin, unit = _scale(label, train.labels)
        train, test = (
            part._replace(labels=(part.labels - origin) / unit) for part in (train, test)
        )
    how = "scaled as the schema says" if schema else "standardised with training statistics"
    return Dataset.of(
        "csv",
        train,
        test,
        classes=classes,
        task=task,
        description=f"{Path(source.path).name}: {width} columns, numbers {how}, categories one-hot",
        data_dependent="" if schema else _FROM_RECORDS,
        source_columns=tuple(columns),
    )


# ------------------------------------------------------------------ reading


def _table(source: Source, schema: Schema) -> tuple[Any, LabelArray]:
    """Return all rows, numbers and texts, and the file or split that each of them is of."""
    import pyarrow as pa

    tables = dict(_tables(source.path))
    first, *others = tables
    for name in others:
        odd = set(tables[name].column_names) ^ set(tables[first].column_names)
        if odd:
            raise DataError(
                f"{source.path}: {first} and {name} do not both have {', '.join(sorted(odd))}"
            )
    try:
        table = pa.concat_tables(tables.values(), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{source.path}: files of different types ({brief(error)})") from None
    if not table.num_rows:
        raise DataError(f"{source.path}: expected rows below the header, found none")
    files = np.repeat(list(tables), [one.num_rows for one in tables.values()])
    texts = [name for name, values in schema.items() if not _is_range(values)]
    typed = {name: _typed(table[name]) for name in table.column_names}
    for name in typed.keys() - {*texts, source.id_column, *_dropped(source)}:
        typed[name] = _with_point(f"{source.path}: column {name}", typed[name])
    return pa.table(typed), files


def _tables(source: str) -> Iterator[tuple[str, Any]]:
    """Yield the files of a path, or the splits of a table of the hub, by name."""
    path = Path(source)
    if source.startswith(hub.PREFIX):
        for name, rows in hub.splits(source).items():
            yield str(name), rows.with_format("arrow")[:]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        names = [_name(file) for file in files]
        for file, name in zip(files, names, strict=True):
            if names.count(name) > 1:
                raise DataError(f"{path}: two files are called {name}")
            yield name, _read(file)
        if not files:
            raise DataError(f"{path}: found no file {', '.join(_SUFFIXES)}")
    elif path.is_file() and path.name.endswith(_SUFFIXES):
        yield "", _read(path)
    else:
        what = "is of another kind" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}; expected {EXPECTED}")


def is_table(name: str) -> bool:
    """Whether a text is the name of a table's file."""
    return name.lower().endswith(_SUFFIXES)


def _name(file: Path) -> str:
    return next(file.name.removesuffix(end) for end in _SUFFIXES if file.name.endswith(end))


def _read(path: Path) -> Any:
    """Return one file; of a text file all columns are texts, None where a value is missing."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            table = parquet.read_table(path)
            _check_names(path, table.column_names)
            return table
        delimiter, names = _header(path)
        _check_names(path, names)
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string())
            ),
        )
    except (pa.ArrowException, OSError, EOFError) as error:
        why = _NOT_UTF_8 if "UTF8" in str(error) else f"cannot be read ({brief(error)})"
        raise DataError(f"{path}: {why}") from None


def _header(path: Path) -> tuple[str, list[str]]:
    """Return the delimiter of a text file and the names of its columns."""
    import pyarrow as pa

    with pa.input_stream(str(path), compression="detect") as stream:
        head = stream.read(1 << 20).removeprefix(b"\xef\xbb\xbf").splitlines()
    if not head:
        raise DataError(f"{path}: expected a header and rows, found nothing")
    try:
        line = head[0].decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: {_NOT_UTF_8}") from None
    unquoted = re.sub(r'"[^"]*"', "", line)
    delimiter = max(",;\t|", key=unquoted.count)
    names = next(csv.reader([line], delimiter=delimiter), [""])
    return delimiter, [name.strip() for name in names]


def _check_names(path: Path, names: list[str]) -> None:
    if all(re.fullmatch(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", name) for name in names):
        raise DataError(f"{path}: expected names of columns in the first row, found {names[0]} ...")
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(f"{path}: column {number} has no name")
        if name in names[: number - 1]:
            raise DataError(f"{path}: two columns are called {name!r}")


def _typed(values: Any) -> Any:
    """Return a column of texts as numbers where all of them are; None is a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), None, values)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values
    trimmed = pc.utf8_trim_whitespace(values.cast(pa.string()))
    trimmed = pc.if_else(pc.is_in(trimmed, pa.array(_NO_VALUE)), None, trimmed)
    try:
        return trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        return trimmed


def _with_point(where: str, values: Any) -> Any:
    """Return numbers with decimal commas as numbers, any other column as it is.

    Raises
    ------
    DataError
        Where the separator may be that of thousands.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return values
    known = values.drop_null()
    if not pc.all(pc.match_substring_regex(known, _SEPARATED)).as_py():
        return values
    decimal = pc.all(pc.match_substring_regex(known, _DECIMAL_COMMA)).as_py()
    separated = known.filter(pc.match_substring(known, ","))
    if decimal and not pc.all(pc.match_substring_regex(separated, _THOUSANDS)).as_py():
        return pc.replace_substring(values, ",", ".").cast(pa.float64())
    one = known.filter(pc.match_substring_regex(known, "[,' ]|[.].*[.]"))[0].as_py()
    raise DataError(
        f"{where}: {one!r} may have separators of thousands: write numbers without them, and with "
        "a decimal point"
    )


def _dropped(source: Source) -> list[str]:
    return [name.strip() for name in source.drop_columns.split(",") if name.strip()]


def _texts(values: Any) -> Any:
    """Return a column as texts, of whole numbers without a point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(values.type) and pc.all(pc.equal(pc.floor(values), values)).as_py():
        values = values.cast(pa.int64())
    return values.cast(pa.string())


# ------------------------------------------------------------------ columns


def _schema(path: str) -> Schema:
    """Return the public ranges and categories of a schema file, by column; {} without a path."""
    if not path:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"schema {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"schema {path}: expected TOML ({brief(error)})") from None
    columns = found.get("columns")
    if set(found) != {"columns"} or not isinstance(columns, dict) or not columns:
        raise DataError(f"schema {path}: expected one table [columns]")
    for name, values in columns.items():
        if not (_is_range(values) or _are_categories(values)):
            raise DataError(
                f"schema {path}: {name} = {values!r}: expected [low, high], or a list of at least "
                "two different texts"
            )
    return columns


def _is_range(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) == 2
        and all(type(value) in (int, float) for value in values)
        and -np.inf < values[0] < values[1] < np.inf
    )


def _are_categories(values: Any) -> bool:
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return texts and 1 < len(set(values)) == len(values)


def _columns(source: Source, table: Any, schema: Schema) -> list[SourceColumn]:
    """Return the columns that are used, that of the labels last.

    Raises
    ------
    DataError
        A column that is not there, or cannot be used.
    """
    names = table.column_names
    label = source.label_column or _usual_label(source.path, names)
    dropped = _dropped(source)
    for key, named in (
        ("label-column", [label]),
        ("id-column", [source.id_column] if source.id_column else []),
        ("drop-columns", dropped),
        (f"schema {source.schema}", list(schema)),
    ):
        for name in named:
            if name not in names:
                near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"{source.path}: {key} names {name!r}, not a column{near}")
    if schema and label not in schema:
        raise DataError(f"schema {source.schema}: expected {label}, the column of the labels, too")
    if label in (source.id_column, *dropped):
        raise DataError(f"{source.path}: {label} is the column of the labels already")
    inputs = [n for n in schema or names if n not in (label, source.id_column, *dropped)]
    if not inputs:
        raise DataError(f"{source.path}: expected a column beside {label}")
    found = [_column(source, name, table[name], schema.get(name)) for name in (*inputs, label)]
    found[-1] = _classes(table[label], found[-1])
    if found[-1].missing:
        raise DataError(f"{source.path}: {found[-1].missing} rows have no label in column {label}")
    gaps = ", ".join(f"{one.name} of {one.missing} rows" for one in found if one.missing)
    if gaps and source.missing == "refuse":
        raise DataError(
            f"{source.path}: missing values, in {gaps}: fill them in, leave columns out with "
            "drop-columns, or set missing=zero"
        )
    return found


def _usual_label(path: str, names: list[str]) -> str:
    found = [name for name in names if name.lower() in LABELS]
    if len(found) == 1:
        return found[0]
    raise DataError(
        f"{path}: which column has the labels? Give label-column, one of {', '.join(names)}"
    )


def _column(source: Source, name: str, values: Any, public: list[Any] | None) -> SourceColumn:
    """Return what a column holds (raises ``DataError`` where it cannot be used)."""
    import pyarrow as pa

    where = f"{source.path}: column {name}"
    kind, missing = values.type, values.null_count
    if missing == len(values):
        raise DataError(f"{where} is empty: leave it out with drop-columns")
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or pa.types.is_boolean(kind) or pa.types.is_string(kind)):
        raise DataError(
            f"{where} is of type {kind}; expected numbers or texts: leave it out with drop-columns"
        )
    is_range = public is not None and _is_range(public)
    if numeric and (public is None or is_range):
        numbers = values.drop_null().cast(pa.float64()).to_numpy()
        bounds = (float(numbers.min()), float(numbers.max()))
        if not np.isfinite(bounds).all():
            raise DataError(f"{where}: expected finite numbers")
        if public and not public[0] <= bounds[0] <= bounds[1] <= public[1]:
            raise DataError(f"{where}: values outside of {public}, the range in the schema")
        low, high = public or bounds
        return SourceColumn(name, missing, low=low, high=high, public=is_range)
    if is_range:
        raise DataError(f"{where}: holds texts, but the schema gives a range of numbers")
    if public is not None:
        return SourceColumn(name, missing, tuple(public), public=True)
    found = sorted(_texts(values).unique().drop_null().to_pylist())
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"{where}: {len(found)} different texts, such as {found[0][:40]!r}, are too many "
            "categories: leave it out with drop-columns"
        )
    return SourceColumn(name, missing, tuple(found))


def _classes(values: Any, label: SourceColumn) -> SourceColumn:
    """Return a column of labels as one of classes, where it is one of few whole numbers."""
    if label.categories or label.public:
        return label
    found = np.unique(_numbers(values.drop_null()))
    if len(found) > MOST_CLASSES or (found != np.floor(found)).any():
        return label
    return SourceColumn(label.name, label.missing, tuple(str(int(one)) for one in found))


def _task(source: Source, label: SourceColumn) -> tuple[Task, int]:
    """Return what there is to learn, and the number of classes."""
    count = len(label.categories)
    if count == 1 or (not count and label.low == label.high):
        raise DataError(f"{source.path}: column {label.name}: every row has the same label")
    if not count:
        return "regression", 0
    return ("binary", 2) if count == 2 else ("multinomial", count)


# ------------------------------------------------------------------ encoding


def _encoded(source: Source, table: Any, column: SourceColumn) -> FloatArray:
    """Return a column's numbers of shape (rows, width), NaN where a number is missing."""
    if not column.categories:
        return _numbers(table[column.name])[:, None]
    codes = _codes(source, table[column.name], column)
    one_hot: FloatArray = np.eye(len(column.categories) + 1)[codes][:, 1:-1]
    return one_hot


def _numbers(values: Any) -> FloatArray:
    import pyarrow as pa

    return np.asarray(values.cast(pa.float64()).to_numpy(), dtype=float)


def _codes(source: Source, values: Any, column: SourceColumn) -> LabelArray:
    """Return the numbers of a column's categories; a missing value has the next after them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _texts(values)
    codes = pc.index_in(texts, pa.array(column.categories))
    row = pc.index(pc.and_(codes.is_null(), texts.is_valid()), True).as_py()
    if row >= 0:
        raise DataError(
            f"{source.path}, row {row + 1}: {column.name} is {texts[row].as_py()!r}, which is not "
            "a category of the schema"
        )
    return np.asarray(codes.fill_null(len(column.categories)).to_numpy(), dtype=np.int64)


def _labels(source: Source, table: Any, label: SourceColumn, task: Task) -> LabelArray:
    values = table[label.name]
    if task == "regression":
        return _numbers(values)
    codes = _codes(source, values, label)
    return 2 * codes - 1 if task == "binary" else codes


def _ids(source: Source, table: Any, files: LabelArray) -> LabelArray | None:
    """Return the natural ids: of a column, else the names of the files of a folder."""
    if not source.id_column:
        return files if len(set(files) - {TEST}) > 1 else None
    values = table[source.id_column]
    if values.null_count:
        raise DataError(f"{source.path}: {values.null_count} rows have no {source.id_column}")
    return np.asarray(_texts(values).to_pylist())


def _scales(columns: list[SourceColumn], features: FloatArray) -> Iterator[FloatArray]:
    """Yield for each column what is taken off the columns it becomes, and their divisors."""
    at = 0
    for column in columns:
        scale = (0.0, 1.0) if column.categories else _scale(column, features[:, at])
        yield np.repeat(np.array(scale)[:, None], column.width, axis=1)
        at += column.width


def _scale(column: SourceColumn, values: FloatArray) -> tuple[float, float]:
    """Return the middle and half the width of a public range, else mean and deviation."""
    if column.public:
        return (column.low + column.high) / 2, (column.high - column.low) / 2
    known = values[~np.isnan(values)]
    mean, deviation = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return mean, deviation if deviation > 0 else 1.0
