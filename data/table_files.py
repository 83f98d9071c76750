"""The files of a table: CSV, TSV and Parquet, one or a folder of them, and tables of the hub."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet.core.errors import near_path
from privet.data import hub
from privet.data.dataset import DataError, LabelArray, brief
from privet.data.table_mixed import of_one_kind
from privet.data.table_values import normal

EXPECTED = "a .csv, .csv.gz, .tsv or .parquet file, a folder of them, or an hf: table"
_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_NOT_UTF_8 = "expected text in UTF-8: save it with that encoding (in Excel, CSV UTF-8)"


def is_table(name: str) -> bool:
    """Whether a text is the name of a table's file."""
    return name.lower().endswith(_SUFFIXES)


class Rows(NamedTuple):
    """All rows of the files.

    Attributes
    ----------
    table : pyarrow.Table
        Of text files all columns are texts.
    files : array of shape (rows,)
        Name of the file, or split, that each row is of; "" where there is one file alone.
    repeated : dict
        By each name that several columns of a file have, what they are called here, as pandas
        does: BMI, BMI.1, BMI.2.
    unnamed : tuple of str
        Columns without a name, which are called "column 2" by their place.
    counts : dict
        Rows of each file, by its name.
    faults : dict
        What is unclear in the numbers of one file, by column.
    """

    table: Any
    files: LabelArray
    repeated: dict[str, list[str]]
    unnamed: tuple[str, ...]
    counts: dict[str, int]
    faults: dict[str, str]


def read_rows(source: str, public: Collection[str] = ()) -> Rows:
    """Return the rows of a file, of a folder of files with the same columns, or of a hub's table.

    ``public`` are the columns of a schema, whose cells are each read by themselves.

    Raises
    ------
    DataError
        A missing or damaged file, different columns, no rows: names the file.
    """
    import pyarrow as pa

    tables: dict[str, Any] = {}
    repeated: dict[str, list[str]] = {}
    unnamed: set[str] = set()
    for name, one in _tables(source):
        heads = [normal(head) for head in one.column_names]
        kept = [at for at, head in enumerate(heads) if head or not _is_blank(one[at])]
        given = [heads[at] or f"column {at + 1}" for at in kept]
        names = _unique(given)
        unnamed |= {made for at, made in zip(kept, names, strict=True) if not heads[at]}
        for head in {head for head in given if given.count(head) > 1}:
            alike = [made for was, made in zip(given, names, strict=True) if was == head]
            repeated[head] = list(dict.fromkeys([*repeated.get(head, []), *alike]))
        tables[name] = one.select(kept).rename_columns(names)
    files = np.repeat(list(tables), [one.num_rows for one in tables.values()])
    first, *others = tables
    for name in others:
        odd = set(tables[name].column_names) ^ set(tables[first].column_names)
        if odd:
            raise DataError(
                f"{source}: {first} and {name} do not both have {', '.join(sorted(odd))}"
            )
    faults: dict[str, str] = {}
    counts = {name: one.num_rows for name, one in tables.items()}
    if len(tables) > 1:
        tables, faults = of_one_kind(tables, public)
    try:
        table = pa.concat_tables(tables.values(), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{source}: files of different types ({brief(error)})") from None
    if not len(files):
        raise DataError(f"{source}: expected rows below the header, found none")
    return Rows(table, files, repeated, tuple(sorted(unnamed)), counts, faults)


def _unique(names: list[str]) -> list[str]:
    """Return names of which no two are equal: a second BMI is called BMI.1, as pandas does."""
    unique: list[str] = []
    for name in names:
        made, number = name, 0
        while made in unique or (number and made in names):
            number += 1
            made = f"{name}.{number}"
        unique.append(made)
    return unique


def _is_blank(values: Any) -> bool:
    """Return whether a column holds no more than stray delimiters make."""
    import pyarrow.compute as pc

    return not pc.any(pc.greater(pc.utf8_length(values.cast("string")), 0)).as_py()


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
            below = next((one for one in path.rglob("*") if one.name.endswith(_SUFFIXES)), None)
            where = f"; there is one in {below.parent}: give that folder" if below else ""
            raise DataError(f"{path}: found no file {', '.join(_SUFFIXES)}{where}")
    elif path.is_file() and path.name.endswith(_SUFFIXES):
        yield "", _read(path)
    else:
        what = "is of another kind" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}; expected {EXPECTED}{near_path(path)}")


def _name(file: Path) -> str:
    return next(file.name.removesuffix(end) for end in _SUFFIXES if file.name.endswith(end))


def _read(path: Path) -> Any:
    """Return one file; of a text file all columns are texts, None where a value is missing."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                return _named(path, file.read())
        delimiter, names, above = _header(path)
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=above),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string())
            ),
        )
        return _named(path, table)
    except (pa.ArrowException, OSError, EOFError) as error:
        why = _NOT_UTF_8 if "UTF8" in str(error) else f"cannot be read ({brief(error)})"
        if odd := re.search(r"Expected (\d+) columns, got (\d+): (.*)", brief(error)):
            header, cells, row = odd.groups()
            why = f"the first row names {header} columns, and this row has {cells}: {row[:80]!r}"
        raise DataError(f"{path}: {why}") from None


def _header(path: Path) -> tuple[str, list[str], int]:
    """Return the delimiter of a text file, the names of its columns, and the lines above the rows.

    A first line ``sep=;``, as Excel writes it, names the delimiter.
    """
    import pyarrow as pa

    with pa.input_stream(str(path), compression="detect") as stream:
        head = stream.read(1 << 20).removeprefix(b"\xef\xbb\xbf").splitlines()
    if not head:
        raise DataError(f"{path}: expected a header and rows, found nothing")
    declared = re.fullmatch(rb'"?sep=([,;|\t])"?[,;]*', head[0], re.IGNORECASE)
    above = 2 if declared and len(head) > 1 else 1
    try:
        line = head[above - 1].decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: {_NOT_UTF_8}") from None
    unquoted = re.sub(r'"[^"]*"', "", line)
    delimiter = declared[1].decode() if declared else max(",;\t|", key=unquoted.count)
    return delimiter, next(csv.reader([line], delimiter=delimiter), [""]), above


def _named(path: Path, table: Any) -> Any:
    """Return a table whose first row has names, stripped, some of which may be empty."""
    names = [name.strip() for name in table.column_names]
    if all(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", name) for name in names):
        raise DataError(
            f"{path}: expected names of columns in the first row, found {names[0]} ...: put "
            "a row with the names above it"
        )
    return table.rename_columns(names)
