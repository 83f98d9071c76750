"""The files of a table: CSV, TSV and Parquet, one or a folder of them, and tables of the hub."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet.data import hub
from privet.data.dataset import DataError, LabelArray, brief

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
    repeated : list of str
        Names that several columns of one file have; the table has none of these columns.
    """

    table: Any
    files: LabelArray
    repeated: list[str]


def read_rows(source: str) -> Rows:
    """Return the rows of a file, of a folder of files with the same columns, or of a hub's table.

    Raises
    ------
    DataError
        A missing or damaged file, different columns, no rows: names the file.
    """
    import pyarrow as pa

    tables = dict(_tables(source))
    files = np.repeat(list(tables), [one.num_rows for one in tables.values()])
    repeated = {
        name
        for one in tables.values()
        for name in one.column_names
        if one.column_names.count(name) > 1
    }
    tables = {name: _without(one, repeated) for name, one in tables.items()}
    first, *others = tables
    for name in others:
        odd = set(tables[name].column_names) ^ set(tables[first].column_names)
        if odd:
            raise DataError(
                f"{source}: {first} and {name} do not both have {', '.join(sorted(odd))}"
            )
    try:
        table = pa.concat_tables(tables.values(), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{source}: files of different types ({brief(error)})") from None
    if not len(files):
        raise DataError(f"{source}: expected rows below the header, found none")
    return Rows(table, files, sorted(repeated))


def _without(table: Any, names: set[str]) -> Any:
    return table.select([at for at, name in enumerate(table.column_names) if name not in names])


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
        delimiter, names = _header(path)
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=1),
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


def _named(path: Path, table: Any) -> Any:
    """Return a table whose columns all have names, without empty ones at stray delimiters."""
    import pyarrow.compute as pc

    names = table.column_names
    if all(re.fullmatch(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", name) for name in names):
        raise DataError(f"{path}: expected names of columns in the first row, found {names[0]} ...")
    kept = []
    for at, name in enumerate(names):
        if name.strip():
            kept.append(at)
        elif not pc.all(pc.equal(pc.utf8_length(table[at].cast("string")), 0)).as_py():
            raise DataError(f"{path}: column {at + 1} has no name: give it one, or take it out")
    return table.select(kept)
