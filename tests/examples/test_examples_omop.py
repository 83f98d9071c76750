"""The synthetic hospitals: what the cohort query answers, against a loop over the records."""

from __future__ import annotations

import csv
import datetime
import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from privet.server_apps import read_config
from privet.sim import InlineGrid, quiet
from privet.sim.inline import configured_app, played
from support.cli import privet
from support.paths import ROOT
from support.postgres import OWNER, Postgres, postgres_server, programs

FOLDER = ROOT / "examples" / "omop"
NAMES = ("north", "south", "west")
COLUMNS = ("age", "sex", "creatinine", "diabetes", "lisinopril", "died_1y", "days", "died")


sys.path.insert(0, str(FOLDER))
cdm, study = import_module("cdm"), import_module("study")
sys.path.remove(str(FOLDER))


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


class Played(NamedTuple):
    """A study that was played: its folder, and what asks a hospital's database."""

    folder: Path
    printed: str
    ask: Callable[[str, str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Play the whole study, over PostgreSQL where it is installed."""
    folder = tmp_path_factory.mktemp("study")
    lines: list[str] = []

    def command(*arguments: str) -> None:
        done = privet(*arguments)
        assert done.code == 0, (arguments, done)
        lines.append(done.out)

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "privet", command)
        server = ""
        if programs() is not None and find_spec("psycopg"):
            postgres = stack.enter_context(postgres_server())
            server = f"postgresql://{OWNER}@127.0.0.1:{postgres.port}"
            patch.setenv("PGPASSFILE", str(postgres.passfile()))
            for name in NAMES:
                postgres.create(name)

        def ask(name: str, query: str) -> list[tuple[Any, ...]]:
            if server:
                lines = postgres.execute(query, name).splitlines()
                return [tuple(line.split("|")) for line in lines]
            with closing(sqlite3.connect(folder / name / "records.db")) as connection:
                return connection.execute(query).fetchall()

        study.study(folder, server)
        yield Played(folder, "".join(lines), ask)


def _table(folder: Path, run: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "runs" / run / "1" / "table.json").read_text())
    return table


def _design(rows: list[tuple[Any, ...]]) -> tuple[Any, Any]:
    """Return the columns and the outcome of the study's formula, of the complete rows."""
    complete = [row for row in rows if row[3] is not None]
    columns = [
        [1.0, row[2] == "M", row[4] == "yes", row[5] == "yes", row[1], np.log(row[3])]
        for row in complete
    ]
    return np.array(columns, float), np.array([row[6] for row in complete], float)


def test_the_regression_is_that_of_the_pooled_records(whole: Played) -> None:
    rows = [row for name in NAMES for row in expected(name, "2016-01-01", "2022-12-31")]
    x, y = _design(rows)
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        mean = 1.0 / (1.0 + np.exp(-x @ beta))
        information = (x * (mean * (1.0 - mean))[:, None]).T @ x
        beta = beta + np.linalg.solve(information, x.T @ (y - mean))
    table = _table(whole.folder, "glm")
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    assert np.abs((np.array(table["coef"]) - beta) / errors).max() < 1e-8
    assert np.allclose(table["se"]["nonrobust"], errors, rtol=1e-8)


def test_the_coefficients_are_those_of_csv_files_bit_for_bit(whole: Played, tmp_path: Path) -> None:
    """The query orders its rows."""
    names = ("person_id", *COLUMNS)
    nodes = []
    for place, name in enumerate(NAMES):
        file = tmp_path / f"{name}.csv"
        with file.open("w", newline="") as opened:
            csv.writer(opened).writerows([names, *expected(name, "2016-01-01", "2022-12-31")])
        nodes.append(
            {
                "agent": name,
                "dataset": "csv",
                "data-path": str(file),
                "schema": str(FOLDER / "schema.toml"),
                "person-column": "person_id",
                "partition": "none",
                "partition-id": place,
                "num-partitions": len(NAMES),
            }
        )
    told = {"algorithm": "glm", "formula": study.FORMULA, "num-agents": len(NAMES)}
    quiet()
    config = read_config({**told, "output-dir": str(tmp_path)})
    played(InlineGrid(configured_app(), nodes, told), config, "glm")
    of_files = json.loads((tmp_path / "glm" / "table.json").read_text())
    of_databases = _table(whole.folder, "glm")
    for key in ("coef", "se", "cov", "loglik", "n", "left_out", "by_site"):
        assert of_files[key] == of_databases[key], key


def test_what_the_commands_print_is_of_the_cohort(whole: Played) -> None:
    rows = [row for name in NAMES for row in expected(name, "2016-01-01", "2022-12-31")]
    assert f"{len(rows)} rows of 3 sites" in whole.printed
    assert whole.printed.count("as the others") == 3
    age = np.array([row[1] for row in rows], float)
    died = np.array([row[6] for row in rows], bool)
    (line,) = [one for one in whole.printed.splitlines() if one.startswith("age, mean (sd)")]
    shown = re.findall(r"([\d.]+) \(([\d.]+)\)", line)
    for group, (mean, deviation) in zip((age, age[~died], age[died]), shown, strict=True):
        # Three digits or more are shown.
        assert float(mean) == pytest.approx(group.mean(), abs=0.051)
        assert float(deviation) == pytest.approx(group.std(ddof=1), abs=0.051)


def test_the_private_model_costs_what_it_was_given(whole: Played) -> None:
    summary = json.loads((whole.folder / "runs" / "private" / "1" / "summary.json").read_text())
    assert summary["privacy"].startswith("epsilon 4 at delta 1e-05")
    with (whole.folder / "private-risk.csv").open() as file:
        predicted = list(csv.DictReader(file))
    assert len(predicted) == len(expected("north", "2023-01-01", "2023-12-31")) > 50


def test_predictions_are_in_the_table_that_the_operator_names(whole: Played) -> None:
    new = [row for row in expected("north", "2023-01-01", "2023-12-31") if row[3] is not None]
    x, _ = _design(new)
    mean = 1.0 / (1.0 + np.exp(-x @ np.array(_table(whole.folder, "glm")["coef"])))
    known = {str(row[0]): one for row, one in zip(new, mean, strict=True)}
    found = whole.ask("north", "select person_id, mean from predicted_risk where mean is not null")
    assert {str(person) for person, _ in found} == known.keys()
    for person, one in found:
        assert float(one) == pytest.approx(known[str(person)], rel=1e-9)
