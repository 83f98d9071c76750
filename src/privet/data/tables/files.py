"""The files of a table: CSV, TSV and Parquet, one or a folder of them, and tables of the hub."""

from __future__ import annotations

import csv
import mmap
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet.core import mapped
from privet.core.errors import near_path

from .. import hub
from ..dataset import DataError, LabelArray, brief, some
from .mixed import of_one_kind
from .values import cells, normal, thousands_or_decimals

TEST = "test"
"""Name of the file, or split, that is the test set."""
EXPECTED = "a .csv, .csv.gz, .tsv or .parquet file, a folder of them, or an hf: table"
_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_OTHER_TABLES = (".txt", ".dat", ".xlsx", ".xls", ".xlsm", ".ods", ".zip", ".csv.bz2", ".csv.xz")
"""Ends of names of files that may hold rows, and are not read."""
_LOOKED_AT = 10_000
"""Names below a folder without tables among which one is looked for."""
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
    points : dict
        Of columns whose cells are each read by themselves, points that may separate thousands.
    headers : int
        Rows that repeat the names of the columns, where they were emptied.
    unread : tuple of str
        Names in the folder that may be tables as well, and were not read.
    """

    table: Any
    files: LabelArray
    repeated: dict[str, list[str]]
    unnamed: tuple[str, ...]
    counts: dict[str, int]
    faults: dict[str, str]
    points: dict[str, str]
    headers: int = 0
    unread: tuple[str, ...] = ()


def read_rows(
    source: str,
    *,
    public: Collection[str] = (),
    unused: Callable[[str], bool] = lambda name: False,
    empty_headers: bool = False,
) -> Rows:
    """Return the rows of a file, of a folder of files with the same columns, or of a hub's table.

    Parameters
    ----------
    source : str
        As ``data-path`` has it.
    public : collection of str
        The columns of a schema, whose cells are each read by themselves.
    unused : callable
        Says of a column's name that a file may lack the column: its values are missing there.
    empty_headers : bool
        Whether a row of a text file that repeats the names of the columns, as where files were
        joined, becomes one without values.

    Raises
    ------
    DataError
        A missing or damaged file, different columns, no rows: names the file.
    """
    import pyarrow as pa

    tables: dict[str, Any] = {}
    repeated: dict[str, list[str]] = {}
    unnamed: set[str] = set()
    headers = 0
    for name, given in _tables(source):
        one, found = _without_headers(given) if empty_headers else (given, 0)
        headers += found
        heads = [normal(head) for head in one.column_names]
        kept = [at for at, head in enumerate(heads) if head or not _is_blank(one[at])]
        called = [heads[at] or f"column {at + 1}" for at in kept]
        names = _unique(called)
        unnamed |= {made for at, made in zip(kept, names, strict=True) if not heads[at]}
        for head in {head for head in called if called.count(head) > 1}:
            alike = [made for was, made in zip(called, names, strict=True) if was == head]
            repeated[head] = list(dict.fromkeys([*repeated.get(head, []), *alike]))
        tables[name] = one.select(kept).rename_columns(names)
    files = _named_rows({name: one.num_rows for name, one in tables.items()})
    tables = _with_columns(tables, unused)
    first, *others = tables
    for name in others:
        own, before = (set(tables[file].column_names) for file in (name, first))
        if own != before:
            each = [(first, sorted(before - own)), (name, sorted(own - before))]
            (one, more), (other, less) = each if before - own else each[::-1]
            lacks = f"{other} {some(less)}" if less else f"{other} does not"
            raise DataError(
                f"{source}: {one} has {some(more)}, {lacks}: call columns alike, or leave them out "
                "with drop-columns"
            )
    unclear = _unclear_points(tables)
    points = {name: unclear.pop(name) for name in public if name in unclear}
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
    faults = {**unclear, **faults}
    made, unread = tuple(sorted(unnamed)), tuple(_unread(Path(source)))
    return Rows(table, files, repeated, made, counts, faults, points, headers, unread)


def _named_rows(counts: dict[str, int]) -> LabelArray:
    """Return the name of each row's file, read-only where one is that of all."""
    if len(counts) == 1:  # no memory for what is the same in all rows
        ((name, count),) = counts.items()
        return np.broadcast_to(np.asarray(name), count)
    return np.repeat(list(counts), list(counts.values()))


def _with_columns(tables: dict[str, Any], unused: Callable[[str], bool]) -> dict[str, Any]:
    """Return the tables, each with all columns that are not used, without values where a file
    lacks one."""
    import pyarrow as pa

    names = dict.fromkeys(name for one in tables.values() for name in one.column_names)
    for name in filter(unused, names):
        for file, one in tables.items():
            if name not in one.column_names:
                tables[file] = one.append_column(name, pa.nulls(one.num_rows, pa.string()))
    return tables


def _without_headers(table: Any) -> tuple[Any, int]:
    """Return a table without values in the rows that repeat the names of its columns, and how many
    they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [(at, name) for at, name in enumerate(table.column_names) if name]
    if len(names) < 2:
        return table, 0
    same: Any = None
    for at, name in names:
        if not pa.types.is_string(table[at].type):
            return table, 0
        one = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(table[at]), name), False)
        same = one if same is None else pc.and_(same, one)
        if not pc.any(same).as_py():
            return table, 0
    columns = [pc.if_else(same, None, values) for values in table.columns]
    return pa.table(columns, names=table.column_names), pc.sum(same).as_py()


def _unclear_points(tables: dict[str, Any]) -> dict[str, str]:
    """Return, by column, in which file a point may be decimal or separate thousands."""
    faults: dict[str, str] = {}
    for file, table in tables.items():
        for name in table.column_names:
            if found := thousands_or_decimals(cells(table[name])):
                faults.setdefault(name, f"{file}: {found}" if file else found)
            mapped.release()
    return faults


def _unread(path: Path) -> Iterator[str]:
    """Yield the names in a folder that may be tables, and are not read."""
    for one in sorted(path.iterdir()) if path.is_dir() else ():
        if not one.name.startswith(".") and not _may_be_read(one):
            below = any(map(_may_be_read, one.glob("*")))  # none of a file, or if unreadable
            if below or one.name.lower().endswith(_OTHER_TABLES):
                yield f"{one.name}{'/' if below else ''}"


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
        files = _files(path)
        names = [_name(file) for file in files]
        for file, name in zip(files, names, strict=True):
            if names.count(name) > 1:
                raise DataError(f"{path}: two files are called {name}")
            yield name, _read(file)
        if not files:
            looked_at = islice(path.rglob("*"), _LOOKED_AT)
            below = next(filter(_may_be_read, looked_at), None)
            where = f"; there is one in {below.parent}: give that folder" if below else ""
            raise DataError(f"{path}: found no file {', '.join(_SUFFIXES)}{where}")
    elif path.is_file() and is_table(path.name):
        yield "", _read(path)
    else:
        what = "is of another kind" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}; expected {EXPECTED}{near_path(path)}")


def node_files(folder: str) -> list[str]:
    """Return the tables of a folder but the test set, each of which a node may have of its own."""
    files = _files(Path(folder)) if Path(folder).is_dir() else []
    return [str(file) for file in files if _name(file) != TEST]


def site_name(path: str) -> str:
    """Return what a site is called whose table is this file, a folder, or a file of cohorts."""
    file = Path(path)
    return _name(file) if is_table(file.name) else file.name.removesuffix(".toml")


def _files(folder: Path) -> list[Path]:
    return sorted(filter(_may_be_read, folder.iterdir()))


def _may_be_read(file: Path) -> bool:
    """Return whether a file of a folder is one of its tables; systems hide some of other kinds."""
    return is_table(file.name) and not file.name.startswith(".")


def _name(file: Path) -> str:
    """Return what the rows of a file are called; ``test`` in any case are the test set."""
    end = next(end for end in _SUFFIXES if file.name.lower().endswith(end))
    name = file.name[: -len(end)]
    return name.lower() if name.lower() == TEST else name


def _read(path: Path) -> Any:
    """Return one file; of a text file all columns are texts, None where a value is missing."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    try:
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(path) as file:
                return _named(path, _read_parquet(file))
        delimiter, names, above = _header(path)
        table = arrow_csv.read_csv(
            _stream(path),
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


def _read_parquet(file: Any) -> Any:
    """Return the columns of a Parquet file; of a large one each is in a file without a name in the
    system's temporary folder, so that those are in memory that are worked on."""
    import pyarrow as pa

    names = file.schema_arrow.names
    if 8 * len(names) * file.metadata.num_rows <= mapped.LIMIT or len(set(names)) < len(names):
        return file.read()
    columns = []
    for name in names:
        read = file.read(columns=[name]).combine_chunks()
        with tempfile.TemporaryFile() as own:
            with pa.ipc.new_file(own, read.schema) as writer:
                writer.write_table(read)
            del read
            pa.default_memory_pool().release_unused()
            own.flush()
            pages = mmap.mmap(own.fileno(), 0, prot=mmap.PROT_READ)
        mapped.watch(pages)
        columns.append(pa.ipc.open_file(pa.py_buffer(pages)).read_all().column(0))
    return pa.table(columns, schema=file.schema_arrow)


def tidy(rows: int, columns: int) -> None:
    """Give memory that was freed back to the system where a table is large: numpy's and pyarrow's
    allocators keep what columns took, which adds up to a table."""
    import pyarrow as pa

    if 8 * rows * columns > mapped.LIMIT:
        pa.default_memory_pool().release_unused()
        mapped.trim()


def _stream(path: Path) -> Any:
    import pyarrow as pa

    zipped = path.suffix.lower() == ".gz"
    return pa.input_stream(str(path), compression="gzip" if zipped else None)


def _header(path: Path) -> tuple[str, list[str], int]:
    """Return the delimiter of a text file, the names of its columns, and the lines above the rows.

    A first line ``sep=;``, as Excel writes it, names the delimiter.
    """
    with _stream(path) as stream:
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
