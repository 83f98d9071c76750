"""Read the rows of a cohort's query: PostgreSQL, SQLite and DuckDB, each by its own driver.

Every way in is read-only, ends with the cohort's timeout and holds one batch of rows at a time. A
driver's own words are used and no layer above the three, for what matters here has no common one:
PostgreSQL streams a query by COPY, whose texts are parsed as those of a CSV file are, so that the
numbers of a query and of its export are the same bits; DuckDB hands Arrow's columns on as they are.

The types of columns become those of tables: whole numbers, numbers (float64; numeric is rounded
correctly), booleans, dates, timestamps (UTC where they have a zone) and texts (enum and uuid too).
Others, such as arrays, json and bytes, are refused by the column's name.
"""

from __future__ import annotations

import io
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from tempfile import TemporaryDirectory
from typing import Any

from ..dataset import DataError
from ..extras import optional
from .cohorts import NamedCohort

_CACHE = "256MB"
"""What DuckDB keeps in memory; beyond it sorts and joins go to its temporary folder."""
BATCH = 1 << 16
"""Rows of a batch at most."""
_BYTES = 1 << 24
"""Bytes of a batch's texts at most, but for its last row."""
_PATIENCE = {
    "connect_timeout": "30",
    # A server that is gone in mid-stream is noticed in about a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""What libpq waits for in seconds, where the URL does not say."""
_WHOLE, _NUMBERS, _TEXTS = (
    {"int2", "int4", "int8", "oid"},
    {"float4", "float8", "numeric"},
    {"text", "varchar", "bpchar", "char", "name", "uuid", "citext", "time", "timetz"},
)
"""Names of PostgreSQL's types."""


def batches(cohort: NamedCohort) -> Iterator[Any]:
    """Yield the rows of a cohort's query as pyarrow record batches of one schema, one at least.

    Raises
    ------
    DataError
        A server that is away, credentials that do not fit, a query that cannot be run or takes too
        long, a column of a type that tables do not have: one line for the node's own log, without
        credentials, and `Told.DATABASE` for the coordinator.
    """
    drivers: dict[str, Callable[[NamedCohort], Iterator[Any]]] = {
        "postgresql": _postgresql,
        "sqlite": _sqlite,
        "duckdb": _duckdb,
    }
    rows = drivers[cohort.scheme](cohort)
    with said_of(cohort):
        yield from rows


@contextmanager
def said_of(cohort: NamedCohort) -> Iterator[None]:
    """Make whatever a driver raises the one line of a cohort that cannot be used."""
    try:
        yield
    except DataError as error:
        raise cohort.unusable(str(error)) from None
    except Exception as error:  # the drivers' exceptions have no common class
        late = f"the query takes longer than timeout = {cohort.timeout:g} seconds"
        known = {
            "QueryCanceled": late,
            "InterruptException": late,
            "interrupted": late,
            "not authorized": "expected a query that reads, and does nothing else",
        }
        # PostgreSQL's first line: what follows it may quote a record.
        first = getattr(getattr(error, "diag", None), "message_primary", None)
        why = known.get(type(error).__name__) or known.get(str(error))
        raise cohort.unusable(why or first or error) from None


def refused(name: str, kind: str) -> DataError:
    """Return the error of a column of a type that tables do not have."""
    return DataError(
        f"column {name} is of type {kind}, which no table has: leave it out of the query, or cast "
        "it to a number, a text or a date"
    )


@contextmanager
def _ended_after(seconds: float, interrupt: Callable[[], object]) -> Iterator[None]:
    """Interrupt a query of a database in this process when its time is over."""
    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ---------------------------------------------------------------------------- PostgreSQL


@contextmanager
def postgresql(cohort: NamedCohort, *, read_only: bool = True) -> Iterator[Any]:
    """Open a transaction with the cohort's timeout; it is committed where nothing is raised."""
    psycopg = optional("psycopg", "sql")
    given = psycopg.conninfo.conninfo_to_dict(cohort.url)
    given = {**_PATIENCE, "application_name": "privet", **given}
    with psycopg.connect(**given) as connection:
        connection.read_only = read_only
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(f"SET LOCAL statement_timeout = {round(cohort.timeout * 1000)}")
        connection.execute(
            "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; "
            "SET LOCAL extra_float_digits = 1; SET LOCAL client_encoding = 'UTF8'"
        )
        yield connection


def _postgresql(cohort: NamedCohort) -> Iterator[Any]:
    with postgresql(cohort) as connection:
        try:
            cursor = connection.execute(f"SELECT * FROM (\n{cohort.query}\n) AS cohort LIMIT 0")
        except optional("psycopg", "sql").errors.SyntaxError as error:
            why = error.diag.message_primary
            raise DataError(f"expected one SELECT, and nothing else: {why}") from None
        schema = _of_postgresql(connection, cursor.description)
        parts: list[bytes] = []
        size, empty = 0, True
        with connection.cursor().copy(f"COPY (\n{cohort.query}\n) TO STDOUT (FORMAT csv)") as copy:
            for part in copy:  # each is a row
                parts.append(bytes(part))
                size += len(part)
                if size >= _BYTES or len(parts) >= BATCH:
                    yield _parsed(b"".join(parts), schema)
                    parts, size, empty = [], 0, False
        if parts or empty:
            yield _parsed(b"".join(parts), schema)


def _of_postgresql(connection: Any, columns: Sequence[Any]) -> Any:
    """Return the schema of a query's columns (raises ``DataError``)."""
    import pyarrow as pa

    kinds = dict(
        connection.execute(
            "SELECT oid, CASE typtype WHEN 'e' THEN 'text' ELSE typname::text END FROM pg_type "
            "WHERE oid = ANY(%s)",
            [[one.type_code for one in columns]],
        ).fetchall()
    )
    times = {
        "bool": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    of = {
        **dict.fromkeys(_WHOLE, pa.int64()),
        **dict.fromkeys(_NUMBERS, pa.float64()),
        **dict.fromkeys(_TEXTS, pa.string()),
        **times,
    }
    for one in columns:
        if kinds[one.type_code] not in of:
            raise refused(one.name, one.type_display)
    return pa.schema([(one.name, of[kinds[one.type_code]]) for one in columns])


def _parsed(text: bytes, schema: Any) -> Any:
    """Return the rows of a text that COPY wrote, as a record batch."""
    import pyarrow as pa
    from pyarrow import csv

    if not text:
        return pa.RecordBatch.from_pylist([], schema)
    names = [str(at) for at in range(len(schema))]  # those of a query may be equal
    try:
        table = csv.read_csv(
            io.BytesIO(text),
            read_options=csv.ReadOptions(column_names=names, block_size=len(text) + 1),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types=dict(zip(names, schema.types, strict=True)),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        if odd := re.search(r"CSV column #(\d+): .*invalid value ('.*')", str(error)):
            name = schema.names[int(odd[1])]
            raise DataError(f"column {name}: {odd[2]} is no value that a table has") from None
        raise
    arrays = [one.combine_chunks() for one in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---------------------------------------------------------------------------- SQLite


@contextmanager
def sqlite(cohort: NamedCohort, *, read_only: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a database file, with the cohort's timeout, in one transaction."""
    if cohort.file is None:
        raise DataError("expected the URL of a file, such as sqlite:////data/records.db")
    where = f"{cohort.file.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    connection = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
    with closing(connection), _ended_after(cohort.timeout, connection.interrupt):
        connection.execute("BEGIN")
        if read_only:
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
            )
        yield connection
        connection.execute("COMMIT")


_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}


def _sqlite(cohort: NamedCohort) -> Iterator[Any]:
    """Yield batches of a query that is run twice: SQLite gives types to values, not to columns."""
    import pyarrow as pa

    with sqlite(cohort) as connection:
        cursor = connection.execute(cohort.query)
        if cursor.description is None:
            raise DataError("expected a query that gives rows")
        names = [one[0] for one in cursor.description]
        kinds: list[set[type]] = [set() for _ in names]
        while rows := cursor.fetchmany(BATCH):
            for known, values in zip(kinds, zip(*rows, strict=True), strict=True):
                known.update(map(type, values))
        for name, known in zip(names, kinds, strict=True):
            if bytes in known:
                raise refused(name, "blob")
        made = [known - {type(None)} for known in kinds]
        types = [
            pa.int64() if one == {int} else pa.float64() if one in _OF_NUMBERS else pa.string()
            for one in made
        ]
        schema = pa.schema(zip(names, types, strict=True))
        cursor = connection.execute(cohort.query)
        rows = cursor.fetchmany(BATCH)
        while True:
            columns = zip_longest(types, zip(*rows, strict=True), fillvalue=())
            arrays = [_array(values, kind) for kind, values in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            if not (rows := cursor.fetchmany(BATCH)):
                return


_OF_NUMBERS = ({float}, {int, float})


def _array(values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string(kind):  # numbers beside texts, as a CSV file would have them
        values = [one if one is None or isinstance(one, str) else repr(one) for one in values]
    elif pa.types.is_floating(kind):
        values = [None if one is None else float(one) for one in values]
    return pa.array(values, kind)


# ---------------------------------------------------------------------------- DuckDB


@contextmanager
def duckdb(cohort: NamedCohort, *, read_only: bool = True) -> Iterator[Any]:
    """Open a database file, or one in memory for a query of files, with the cohort's timeout."""
    library = optional("duckdb", "sql")
    file = cohort.file
    where, kept = str(file or ":memory:"), file is not None
    with TemporaryDirectory(prefix="privet-duckdb-") as scratch:  # its owner's alone
        settings = {
            "file_search_path": str(cohort.folder.absolute()),
            "temp_directory": scratch,
            "memory_limit": _CACHE,
            "python_enable_replacements": False,  # a table is none of this process's variables
        }
        connection = library.connect(where, read_only=read_only and kept, config=settings)
        with closing(connection), _ended_after(cohort.timeout, connection.interrupt):
            yield connection


def _duckdb(cohort: NamedCohort) -> Iterator[Any]:
    import pyarrow as pa

    with duckdb(cohort) as connection:
        statements = connection.extract_statements(cohort.query)
        if len(statements) != 1 or statements[0].type.name != "SELECT":
            raise DataError("expected one query that gives rows")
        connection.execute("SET TimeZone = 'UTC'")
        relation = connection.sql(cohort.query)
        kinds = list(map(str, relation.types))
        reader = relation.to_arrow_reader(BATCH)
        columns = zip(reader.schema, kinds, strict=True)
        schema = pa.schema([(one.name, _of_duckdb(one, kind)) for one, kind in columns])
        empty = True
        for batch in reader:
            arrays = [_cast(values, one.type) for values, one in zip(batch, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            empty = False
        if empty:
            yield pa.RecordBatch.from_pylist([], schema)


def _of_duckdb(column: Any, name: str) -> Any:
    """Return the type that a column of DuckDB's becomes (raises ``DataError``)."""
    import pyarrow as pa

    kind = column.type if name != "JSON" else pa.binary()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return kind
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_time, pa.types.is_null)
    if any(one(kind) for one in texts) or str(kind) == "string_view":
        return pa.string()
    raise refused(column.name, name)


def _cast(values: Any, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_decimal(values.type):  # the nearest float, as that of its text
        values = values.cast(pa.string())
    return values.cast(kind)
