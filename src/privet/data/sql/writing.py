"""Write predictions into the table that an operator names for them, and into no other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..dataset import DataError
from .cohorts import NamedCohort, quoted, quoted_table
from .databases import duckdb, postgresql, said_of, sqlite

_KINDS = {"f": "double precision", "i": "bigint", "u": "bigint", "b": "boolean"}
_TEXT = "text"
_WHOSE = ("run", "cohort")
"""The columns that say which rows are those of one command."""


def write_table(cohort: NamedCohort, columns: Mapping[str, Any], run: str) -> int:
    """Write a run's predictions to the table ``write`` of a cohort, made where it is not there.

    They stand in the place of those of this run and cohort that it has, as a file that is written
    again does; rows of other runs and cohorts stay. All rows are there, or none. A table that is
    there has columns of these names, and ``run`` and ``cohort``: predictions of another kind of
    model than those that it holds are refused.

    Parameters
    ----------
    cohort : NamedCohort
    columns : mapping of str to arrays of one length
        Missing values are NaN, or None.
    run : str
        The name of the run.

    Returns
    -------
    int
        Of how many rows they took the place.

    Raises
    ------
    DataError
        A cohort without such a table, or a database that does not take the rows: as
        `privet.data.sql.databases.batches`.
    """
    if not cohort.write:
        raise DataError(
            f"{cohort.called}: no table is named to write predictions to: its operator sets write"
        )
    listed = {name: [_cell(one) for one in values.tolist()] for name, values in columns.items()}
    whose = (run, cohort.name)
    rows = [(*row, *whose) for row in zip(*listed.values(), strict=True)]
    kinds = {name: _KINDS.get(one.dtype.kind, _TEXT) for name, one in columns.items()}
    kinds |= dict.fromkeys(_WHOSE, _TEXT)
    names = ", ".join(map(quoted, kinds))
    typed = ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())
    table = quoted_table(cohort.write)
    made = f"CREATE TABLE IF NOT EXISTS {table} ({typed})"
    marks = ", ".join("?" * len(kinds))
    erased = f'DELETE FROM {table} WHERE "run" = ? AND "cohort" = ?'
    with said_of(cohort):
        if cohort.scheme == "postgresql":
            with postgresql(cohort, read_only=False) as opened:
                # CREATE asks for a right that the operator need not give where the table is there.
                if opened.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
                    opened.execute(made)
                named = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)"
                there = opened.execute(f"{named} AND attnum > 0", [table]).fetchall()
                _require_columns([one for (one,) in there], cohort.write, kinds)
                replaced = opened.execute(erased.replace("?", "%s"), whose).rowcount
                with opened.cursor().copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
        elif cohort.scheme == "sqlite":
            with sqlite(cohort, read_only=False) as opened:
                opened.execute(made)
                there = opened.execute(f"SELECT * FROM {table} LIMIT 0").description
                _require_columns([one[0] for one in there], cohort.write, kinds)
                replaced = opened.execute(erased, whose).rowcount
                opened.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
        else:
            with duckdb(cohort, read_only=False) as opened:
                opened.begin()
                opened.execute(made)
                there = opened.execute(f"SELECT * FROM {table} LIMIT 0").description
                _require_columns([one[0] for one in there], cohort.write, kinds)
                replaced = opened.execute(erased, whose).fetchone()[0]
                opened.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
                opened.commit()
    return int(replaced)


def _require_columns(there: list[str], table: str, columns: Mapping[str, Any]) -> None:
    """Refuse a table that lacks some of the columns (raises ``DataError``)."""
    if lacks := [name for name in columns if name not in there]:
        raise DataError(
            f"table {table} has no column {', '.join(lacks)}, but {', '.join(there)}: predictions "
            "of another kind of model or cohort; name another table with write"
        )


def _cell(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
