"""An operator's file of cohorts, the SQLite database beside it, and a node that reads them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

QUERY = "select age, sodium, ward, died from patients order by id"


def database(file: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a site's patients into a new SQLite database."""
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as opened:
        opened.execute("create table patients (id integer, age real, sodium real, ward, died)")
        values = zip(*columns.values(), strict=True)
        numbered = [(number, *row) for number, row in enumerate(values)]
        opened.executemany("insert into patients values (?, ?, ?, ?, ?)", numbered)
    opened.close()


def cohorts(folder: Path, query: str = QUERY, more: str = "", head: str = "") -> Path:
    """Write an operator's file with the cohort ``stroke`` of the database beside it."""
    file = folder / "cohorts.toml"
    first = head or 'url = "sqlite:///site.db"'
    file.write_text(f'{first}\n[cohorts.stroke]\nquery = """{query}"""\n{more}\n')
    return file


def node(site: Path, run: int = 7, cohort: str = "stroke", **keys: Any) -> Context:
    """Return the context of a node, of which a run names a cohort."""
    config = {
        "partition-id": 0,
        "num-partitions": 1,
        "partition": "none",
        "dataset": "sql",
        "data-path": str(site),
        "label-column": "died",
        "state-path": str(site.parent / "state"),
        **keys,
    }
    given = {key: value for key, value in config.items() if value != ""}
    return Context(run, 1, given, RecordDict(), {"cohort": cohort})
