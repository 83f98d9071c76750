"""The synthetic hospitals: what the cohort query answers, against a loop over the records."""

from __future__ import annotations

import datetime
import importlib.util
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.paths import ROOT
from support.postgres import Postgres

FOLDER = ROOT / "examples" / "omop"
NAMES = ("north", "south", "west")
COLUMNS = ("age", "sex", "creatinine", "diabetes", "lisinopril", "died_1y", "days", "died")


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("omop_cdm", FOLDER / "cdm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["omop_cdm"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cdm = _module()


def _records(tables: Any) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [dict(zip(cdm.COLUMNS[name], row, strict=True)) for row in rows]
        for name, rows in tables.rows.items()
    }


def _of_persons(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["person_id"]].append(row)
    return found


def expected(name: str, first: str, last: str) -> list[tuple[Any, ...]]:
    """Return the cohort of a hospital, found person by person."""
    records = _records(cdm.generate(name))
    conditions, measured, drugs, deaths, observed = (
        _of_persons(records[table])
        for table in (
            *("condition_occurrence", "measurement", "drug_exposure", "death"),
            "observation_period",
        )
    )
    rows = []
    for person in records["person"]:
        number = person["person_id"]
        sick = [
            one["condition_start_date"]
            for one in conditions[number]
            if one["condition_concept_id"] == 316139
        ]
        (period,) = observed[number]
        start = period["observation_period_start_date"]
        if not sick or not first <= str(min(sick)) <= last:
            continue
        index = min(sick)
        if index < start + datetime.timedelta(days=183):
            continue
        diabetes = any(
            one["condition_concept_id"] == 201826 and one["condition_start_date"] <= index
            for one in conditions[number]
        )
        treated = any(
            one["drug_concept_id"] == 1308216
            and index - datetime.timedelta(days=180) <= one["drug_exposure_start_date"] <= index
            for one in drugs[number]
        )
        values = [
            (one["measurement_date"], one["measurement_id"], one)
            for one in measured[number]
            if one["measurement_concept_id"] == 3016723
            and one["measurement_date"] <= index
            and one["value_as_number"] is not None
        ]
        creatinine = None
        if values:
            _, _, last_one = max(values, key=lambda found: found[:2])
            creatinine = last_one["value_as_number"]
            if last_one["unit_concept_id"] == 8749:
                creatinine = round(creatinine / 88.42, 2)
        died = [one["death_date"] for one in deaths[number]]
        end = died[0] if died else period["observation_period_end_date"]
        rows.append(
            (
                number,
                index.year - person["year_of_birth"],
                {8507: "M", 8532: "F"}[person["gender_concept_id"]],
                creatinine,
                "yes" if diabetes else "no",
                "yes" if treated else "no",
                int(bool(died) and (end - index).days <= 365),
                (end - index).days,
                int(bool(died)),
            )
        )
    return sorted(rows)


def _query(dialect: str = "") -> str:
    return (FOLDER / f"heart-failure{dialect}.sql").read_text()


def _plain(rows: Any) -> list[tuple[Any, ...]]:
    """Return rows with plain numbers: PostgreSQL's are decimals."""
    return [
        tuple(one if one is None or isinstance(one, str) else float(one) for one in row)
        for row in rows
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_query_answers_as_a_loop_over_the_records_does(name: str, tmp_path: Path) -> None:
    found = expected(name, "2016-01-01", "2022-12-31")
    assert len(found) > 300
    path = str(tmp_path / "hospital.db")
    cdm.load_sqlite(path, cdm.generate(name))
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(_query(".sqlite")).fetchall()
    assert _plain(rows) == _plain(found)


def test_postgresql_answers_as_sqlite_does(postgres: Postgres) -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: the extra sql")
    for name in NAMES:
        postgres.drop(name)
        postgres.create(name)
        cdm.load_postgresql(postgres.url(name), cdm.generate(name))
        with psycopg.connect(postgres.url(name)) as connection:
            rows = connection.execute(_query()).fetchall()
        assert _plain(rows) == _plain(expected(name, "2016-01-01", "2022-12-31"))


def test_duckdb_answers_as_sqlite_does() -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: the extra sql")
    with closing(duckdb.connect()) as connection:
        for statement in cdm.statements():
            connection.execute(statement)
        for table, rows in cdm.generate("west").rows.items():
            columns = dict(zip(cdm.COLUMNS[table], zip(*rows, strict=True), strict=True))
            connection.register("given", pa.table({name: list(v) for name, v in columns.items()}))
            connection.execute(f"insert into {table} select * from given")
        rows = connection.execute(_query()).fetchall()
    assert _plain(rows) == _plain(expected("west", "2016-01-01", "2022-12-31"))


def test_the_two_dialects_differ_in_dates_alone() -> None:
    one, another = (
        [line for line in _query(dialect).splitlines() if not line.startswith("--")]
        for dialect in ("", ".sqlite")
    )
    assert len(one) == len(another)
    differ = [(a, b) for a, b in zip(one, another, strict=True) if a != b]
    assert len(differ) == 5
    for line, in_sqlite in differ:
        assert "_date" in line
        assert "julianday" in in_sqlite or "strftime" in in_sqlite


def test_hospitals_differ_as_they_are_said_to() -> None:
    cohorts = {name: expected(name, "2016-01-01", "2022-12-31") for name in NAMES}
    for place, (name, least) in enumerate((("north", 0.17), ("south", 0.29), ("west", 0.42))):
        share = np.mean([row[4] == "yes" for row in cohorts[name]])
        assert least < share < least + 0.1, (place, name)
    assert len({row[0] for rows in cohorts.values() for row in rows}) == sum(
        map(len, cohorts.values())
    )
    # The same seed gives the same records, another one others.
    assert cdm.generate("west").rows == cdm.generate("west").rows
    assert cdm.generate("west", 1).rows != cdm.generate("west").rows
