"""Cohorts of a database: the rows of a run, the operator's file, faults, and what is never told."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from privet.data import DataError, load, problem_from_context, table_from_context
from privet.data.frames import table_from_config
from privet.data.sql.cohorts import NamedCohort, cohort_names, cohort_of
from privet.data.sql.databases import batches
from privet.data.sql.snapshots import COHORT_RECORD, IDLE, held
from privet.data.sql.writing import write_table
from privet.kernel import Told
from support.cohorts import QUERY, cohorts, database, node
from support.extras import extra
from support.sites import rows, table


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the file of cohorts of a site with 80 patients, whose folder has them as CSV, too."""
    columns = rows(80, 1)
    database(tmp_path / "site.db", columns)
    (tmp_path / "site.csv").write_text(table(columns))
    return cohorts(tmp_path)


def ages(context: Context) -> list[float]:
    return list(table_from_context(context).frame.numbers["age"])


# ---------------------------------------------------------------------------- as a file's rows


def test_a_cohort_is_read_as_the_file_with_the_same_rows(site: Path) -> None:
    kept = load("sql", data_path=site, cohort="stroke", label_column="died")
    file = load("csv", data_path=site.parent / "site.csv", label_column="died")
    for name in ("train_features", "train_labels", "test_features", "test_labels"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(file, name))
    assert kept.meaning is not None
    assert file.meaning is not None
    assert kept.meaning.text == file.meaning.text
    assert kept.doubts == file.doubts


def test_a_node_of_a_database_and_one_of_a_file_have_one_problem(site: Path) -> None:
    own = problem_from_context(node(site))
    file = {"dataset": "csv", "data-path": str(site.parent / "site.csv"), "state-path": ""}
    of_file = problem_from_context(node(site, **file))
    np.testing.assert_array_equal(own.features, of_file.features)
    np.testing.assert_array_equal(own.labels, of_file.labels)
    assert own.meaning.text == of_file.meaning.text  # so they may be nodes of one run
    assert own.data_dependent == of_file.data_dependent


def test_what_the_file_says_of_a_cohort_goes_before_the_nodes_config(site: Path) -> None:
    cohorts(site.parent, more='label-column = "ward"')
    assert [*problem_from_context(node(site)).meaning.label["classes"]] == ["a", "b"]


def test_a_schema_stands_beside_the_file(site: Path) -> None:
    schema = '[columns]\nage = [0, 120]\nsodium = [100, 180]\ndied = ["0", "1"]\n'
    (site.parent / "public.toml").write_text(schema)
    cohorts(site.parent, more='schema = "public.toml"')
    assert problem_from_context(node(site)).data_dependent == ""


# ---------------------------------------------------------------------------- a run's rows


def test_rows_change_between_runs_and_never_within_one(site: Path) -> None:
    first = node(site, run=1)
    before = ages(first)
    database(site.parent / "site.db", rows(50, 2))
    assert ages(first) == before  # a process of its own for each message: nothing is remembered
    assert ages(node(site, run=2)) != before
    assert len(ages(node(site, run=2))) == 50
    assert ages(first) == before


def test_a_runs_rows_are_their_owners_alone(site: Path) -> None:
    os.umask(0o022)
    ages(node(site))
    folder = site.parent / "state.cohorts"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {0o600}


def test_the_next_run_removes_the_rows_of_others_and_what_a_crash_left(site: Path) -> None:
    folder = site.parent / "state.cohorts"
    ages(node(site, run=1))
    (old,) = folder.glob("*-1-*.parquet")
    left = folder / ".stroke-1-ab.parquet.0123.tmp"
    left.write_text("half of it")
    ages(node(site, run=2))
    assert old.exists()
    assert not left.exists()
    past = time.time() - IDLE - 1
    os.utime(old.with_suffix(".json"), (past, past))
    ages(node(site, run=3))
    assert not old.exists()
    assert not old.with_suffix(".json").exists()
    assert len(list(folder.glob("*.parquet"))) == 2


def test_rows_that_were_written_by_half_are_read_again(site: Path) -> None:
    context = node(site)
    before = ages(context)
    folder = site.parent / "state.cohorts"
    (about,) = folder.glob("*.json")
    about.unlink()
    assert ages(context) == before


def test_a_run_whose_rows_are_gone_goes_on_with_the_same_alone(site: Path) -> None:
    context = node(site)
    before = ages(context)
    folder = site.parent / "state.cohorts"
    for file in folder.iterdir():
        file.unlink()
    assert ages(context) == before
    for file in folder.iterdir():
        file.unlink()
    database(site.parent / "site.db", rows(50, 2))
    for _ in range(2):
        with pytest.raises(DataError, match="the rows of this run are gone") as caught:
            ages(context)
        assert caught.value.told == Told.DATABASE
    assert len(ages(node(site, run=8))) == 50


def test_another_query_in_mid_run_is_no_other_cohort(site: Path) -> None:
    context = node(site)
    ages(context)
    cohorts(site.parent, QUERY.replace("order", "where age > 60 order"))
    with pytest.raises(DataError, match="the rows of this run are gone"):
        ages(context)


def test_one_block_asks_a_database_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(cohort: NamedCohort) -> Any:
        asked.append(cohort.name)
        return batches(cohort)

    monkeypatch.setattr("privet.data.sql.snapshots.batches", counted)
    config = {"dataset": "sql", "data-path": str(site), "cohort": "stroke"}
    with held(config):
        table_from_config(config)
        table_from_config(config)
    assert asked == ["stroke"]
    table_from_config(config)
    assert asked == ["stroke"] * 2


def test_rows_of_a_command_are_gone_with_it(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    of_dead = temporary / "privet-cohort-4194304-abc"  # above the largest process id of Linux
    of_dead.mkdir()
    config = {"dataset": "sql", "data-path": str(site), "cohort": "stroke"}
    with held(config) as found:
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert found["dataset"] == "csv"
        assert Path(found["data-path"]).parent == folder
    assert list(temporary.iterdir()) == []


# ---------------------------------------------------------------------------- the run and the node


def test_a_run_names_a_cohort_and_nothing_else(site: Path) -> None:
    context = node(site, cohort="")
    with pytest.raises(DataError, match="no cohort is named") as caught:
        problem_from_context(context)
    assert caught.value.told == Told.COHORT
    with pytest.raises(DataError, match="no cohort strok; did you mean 'stroke'") as caught:
        problem_from_context(node(site, cohort="strok"))
    assert caught.value.told == Told.COHORT
    context = node(site)
    context.run_config |= {"data-path": "/etc/other.toml", "label-column": "ward", "dataset": "csv"}
    assert [*problem_from_context(context).meaning.label["classes"]] == ["0", "1"]


def test_a_nodes_own_cohort_is_the_only_one(site: Path) -> None:
    more = '[cohorts.other]\nquery = "select * from patients"'
    cohorts(site.parent, more=more)
    context = node(site, cohort="other")
    context.node_config["cohort"] = "stroke"
    with pytest.raises(DataError, match="cohort = other: this node's own config names stroke"):
        ages(context)
    context.run_config["cohort"] = ""
    assert len(ages(context)) == 80
    del context.run_config["cohort"]
    context.run_config["more"] = "cohort=other"
    with pytest.raises(DataError, match="cohort = other: this node's own config names stroke"):
        ages(context)


@pytest.mark.parametrize("allowed", [True, False])
def test_no_run_opens_a_database_of_its_choice(site: Path, allowed: bool) -> None:
    run = {"dataset": "sql", "data-path": str(site), "cohort": "stroke", "num-agents": 1}
    own = {"partition-id": 0, "num-partitions": 1, "allow-run-data": allowed}
    context = Context(1, 1, own, RecordDict(), run)
    with pytest.raises(DataError, match="is not read on this node") as caught:
        problem_from_context(context)
    assert caught.value.told == Told.RUN_DATA


def test_flowers_own_simulation_says_that_it_reads_no_database(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes have no config of their own; what tells them from others is in no test of files."""
    monkeypatch.setattr("privet.data.context._simulated_by_flower", lambda config: True)
    keys = {"partition-id": 0, "num-partitions": 2}
    asked = {"dataset": "sql", "data-path": str(site), "cohort": "stroke"}
    with pytest.raises(DataError, match="simulate with privet run") as caught:
        problem_from_context(Context(7, 1, keys, RecordDict(), asked))
    assert caught.value.told == Told.NO_DATABASE


def test_a_node_names_a_file_of_cohorts_and_no_database(site: Path) -> None:
    url = f"sqlite:///{site.parent / 'site.db'}"
    with pytest.raises(DataError, match="a run could name any table"):
        problem_from_context(node(site, cohort="patients", **{"data-path": url}))


def test_rows_need_a_place_beside_a_state(site: Path) -> None:
    with pytest.raises(DataError, match="needs state-path"):
        problem_from_context(node(site, **{"state-path": ""}))


def test_the_context_says_of_which_query_how_many_rows_are(site: Path) -> None:
    context = node(site)
    ages(context)
    said = context.state[COHORT_RECORD]
    assert (said["cohort"], said["rows"]) == ("stroke", 80)
    assert said["query"] == cohort_of(str(site), "stroke").digest


# ---------------------------------------------------------------------------- the operator's file


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("url = 'sqlite:///x.db'", "expected a table \\[cohorts.NAME\\]"),
        ("[cohorts.a]\nquery = 'q'", "expected url, or url-env"),
        ("url = 'sqlite:///x.db'\nurl-env = 'X'\n[cohorts.a]\nquery = 'q'", "are both given"),
        ("url-env = 'NO_SUCH_ONE'\n[cohorts.a]\nquery = 'q'", "no such environment variable"),
        ("url = 'oracle://x'\n[cohorts.a]\nquery = 'q'", "expected a URL that begins with"),
        ("url = 'sqlite:///x.db'\ntimeout = 0\n[cohorts.a]\nquery = 'q'", "timeout = 0: expected"),
        ("url = 'sqlite:///x.db'\ntime = 1\n[cohorts.a]\nquery = 'q'", "unknown key 'time'; did"),
        ("url = 'sqlite:///x.db'\n[cohorts.a]", "cohort a: expected query, or query-file"),
        ("url = 'sqlite:///x.db'\n[cohorts.a]\nquery-file = 'no.sql'", "cohort a: query-file"),
        ("url = 'sqlite:///x.db'\n[cohorts.a]\nquery = 'q'\nlabel = 'x'", "unknown key 'label'"),
        ("url = 'sqlite:///x.db'\n[cohorts.a]\nquery = 3", "cohort a: query = 3: expected a text"),
        ("url = 'sqlite:///x.db'\n[cohorts.'a b']\nquery = 'q'", "expected a name of letters"),
        ("url = 'sqlite:///x.db'\n[cohorts.a]\nquery = 'q'\nwrite = 'a b'", "expected the name of"),
        ("url = ", "expected TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_key(
    tmp_path: Path, text: str, line: str
) -> None:
    file = tmp_path / "cohorts.toml"
    file.write_text(text)
    with pytest.raises(DataError, match=line) as caught:
        cohort_names(str(file))
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    assert caught.value.told == Told.DATABASE


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        cohort_of(str(tmp_path / "cohorts.toml"), "stroke")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:planted@host/db",
        "postgresql://me@host/db?password=planted",
        "postgresql://me@host/db?sslpassword=planted",
        "postgresql://me:pl%61nted@[half/db",
    ],
)
def test_a_password_in_a_file_or_a_command_is_refused_and_not_repeated(
    tmp_path: Path, url: str
) -> None:
    file = cohorts(tmp_path, head=f'url = "{url}"')
    for source in (str(file), url):
        with pytest.raises(DataError, match=r"holds a password.*pgpass.*PGPASSWORD") as caught:
            cohort_of(source, "stroke")
        assert "planted" not in str(caught.value)
        assert "pl%61nted" not in str(caught.value)


def test_a_url_of_the_environment_may_hold_a_password_that_nothing_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDS", "postgresql://me:pla%6Eted@127.0.0.1:1/db")
    cohort = cohort_of(str(cohorts(tmp_path, head='url-env = "RECORDS"')), "stroke")
    assert "pla" not in repr(cohort)
    for text in ("pla%6Eted is wrong", "planted is wrong", f"cannot open {cohort.url}"):
        said = str(cohort.unusable(ValueError(text)))
        assert "pla" not in said
        assert "***" in said


@pytest.mark.parametrize(
    "password",
    [
        "R3a@derPw-58",
        "R3@a:derPw-58",
        "R3a@derPw-58%zz",
        "R3a/derPw-58",
        "R3a#derPw-58",
        "R3a derPw-58",
    ],
)
def test_a_password_that_parts_its_url_is_refused_and_no_part_of_it_repeated(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver would take a part of it for the host, look it up and name it."""
    monkeypatch.setenv("RECORDS", f"postgresql://reader:{password}@127.0.0.1:1/records")
    with pytest.raises(DataError, match="percent-encode it") as refused:
        cohort_of(str(cohorts(tmp_path, head='url-env = "RECORDS"')), "stroke")
    assert not [part for part in ("R3", "derPw", password) if part in str(refused.value)]
    encoded = quote(password, safe="")
    monkeypatch.setenv("RECORDS", f"postgresql://reader:{encoded}@127.0.0.1:1/records")
    cohort = cohort_of(str(cohorts(tmp_path, head='url-env = "RECORDS"')), "stroke")
    for said in (f"no host {encoded}@127.0.0.1", f"no {password}", "token derPw-58 is odd"):
        assert "derPw" not in str(cohort.unusable(said))


def test_the_digest_of_rows_does_not_hang_on_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for password in ("one", "two"):
        monkeypatch.setenv("RECORDS", f"postgresql://me:{password}@127.0.0.1:1/db")
        found.add(cohort_of(str(cohorts(tmp_path, head='url-env = "RECORDS"')), "stroke").identity)
    assert len(found) == 1


# ---------------------------------------------------------------------------- SQLite


def read(folder: Path, query: str, *, url: str = "sqlite:///site.db", timeout: float = 30) -> Any:
    """Return the columns of a query."""
    import pyarrow as pa

    return pa.Table.from_batches(batches(NamedCohort("stroke", query, url, timeout, folder)))


def test_columns_of_sqlite_have_the_types_of_their_values(site: Path) -> None:
    made = read(
        site.parent,
        "select id, age, null as none, case when id < 2 then 'x' else id end as both, "
        "case when id < 2 then 1 else 0.5 end as numbers from patients order by id limit 3",
    )
    kinds = [str(one) for one in made.schema.types]
    assert kinds == ["int64", "double", "string", "string", "double"]
    assert made["both"].to_pylist() == ["x", "x", "2"]
    assert made["numbers"].to_pylist() == [1.0, 1.0, 0.5]
    assert made["none"].to_pylist() == [None] * 3


def test_no_rows_are_refused_as_those_of_a_file(site: Path) -> None:
    cohorts(site.parent, "select age, died from patients where age > 1000")
    with pytest.raises(DataError, match="found none"):
        load("sql", data_path=site, cohort="stroke", label_column="died")


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("select x'00' as picture", "column picture is of type blob"),
        ("select * from nobody", "no such table: nobody"),
        ("select pulse from patients", "no such column: pulse"),
        ("delete from patients", "expected a query that reads"),
        ("insert into patients values (1, 2, 3, 4, 5) returning id", "expected a query that reads"),
        ("attach 'other.db' as other", "expected a query that reads"),
        ("pragma writable_schema = 1", "expected a query that reads"),
        ("select 1; select 2", "one statement at a time"),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n",
            "longer than timeout = 0.2 seconds",
        ),
    ],
)
def test_a_query_that_sqlite_cannot_run_is_one_line(site: Path, query: str, line: str) -> None:
    with pytest.raises(DataError, match=f"cohort stroke: .*{line}") as caught:
        read(site.parent, query, timeout=0.2 if "recursive" in query else 30)
    assert caught.value.told == Told.DATABASE
    assert "\n" not in str(caught.value)
    assert not (site.parent / "other.db").exists()
    assert len(read(site.parent, QUERY)) == 80


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unable to open database file"):
        read(tmp_path, "select 1")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------- DuckDB


@pytest.fixture
def duckdb() -> Any:
    return extra("duckdb", "sql")


def test_duckdb_reads_files_beside_the_cohorts(site: Path, duckdb: Any) -> None:
    made = read(site.parent, "select * from 'site.csv'", url="duckdb:///")
    assert made["age"].to_pylist() == rows(80, 1)["age"]


def test_duckdb_opens_a_database_to_read_alone(tmp_path: Path, duckdb: Any) -> None:
    with duckdb.connect(str(tmp_path / "site.duckdb")) as opened:
        opened.execute("create table patients as select range as id, 0.25 as x from range(100000)")
    made = read(tmp_path, "select * from patients order by id", url="duckdb:///site.duckdb")
    assert made["id"].to_pylist() == list(range(100_000))
    assert set(made["x"].to_pylist()) == {0.25}
    with pytest.raises(DataError, match="expected one query that gives rows"):
        read(tmp_path, "drop table patients", url="duckdb:///site.duckdb")


def test_duckdb_takes_predictions_whole_and_in_place_of_the_same_runs(
    tmp_path: Path, duckdb: Any
) -> None:
    with duckdb.connect(str(tmp_path / "site.duckdb")) as opened:
        opened.execute("create table told (id bigint primary key, run text, cohort text)")
    file = cohorts(tmp_path, "select 1 as a", 'write = "told"', 'url = "duckdb:///site.duckdb"')
    cohort = cohort_of(str(file), "stroke")

    def there() -> list[Any]:
        with duckdb.connect(str(tmp_path / "site.duckdb"), read_only=True) as opened:
            found: list[Any] = opened.sql("select id, run, cohort from told order by id").fetchall()
            return found

    assert write_table(cohort, {"id": np.array([1, 2])}, "first") == 0
    assert write_table(cohort, {"id": np.array([3])}, "second") == 0
    both = [(1, "first", "stroke"), (2, "first", "stroke"), (3, "second", "stroke")]
    assert there() == both
    with pytest.raises(DataError, match=r"cohort stroke: .*[Dd]uplicate key"):
        write_table(cohort, {"id": np.array([4, 3])}, "first")
    assert there() == both
    assert write_table(cohort, {"id": np.array([2, 4])}, "first") == 2
    changed = [(2, "first", "stroke"), (3, "second", "stroke"), (4, "first", "stroke")]
    assert there() == changed


HOSTILE = 'no" text); drop table patients; create table if not exists z ("y'


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_name_of_a_class_is_a_column_whatever_it_says(tmp_path: Path, kind: str) -> None:
    """Names of classes come from a model's file, and so from a coordinator or a site's labels."""
    connect = pytest.importorskip("duckdb" if kind == "duckdb" else "sqlite3").connect
    opened = connect(str(tmp_path / "site.db"))
    opened.execute("create table patients (id bigint)")
    opened.commit()
    opened.close()
    url = f'url = "{kind}:///site.db"'
    file = cohorts(tmp_path, "select 1 as a", 'write = "told"', url)
    cohort = cohort_of(str(file), "stroke")
    name = f"probability {HOSTILE}"
    for replaced in (0, 2):
        assert write_table(cohort, {name: np.array([0.25, 0.75])}, "first") == replaced
    with pytest.raises(DataError, match="is no name of a column: it has characters that do not"):
        write_table(cohort, {"probability a\x00b": np.array([0.25])}, "first")
    opened = connect(str(tmp_path / "site.db"))
    assert opened.execute("select * from patients").fetchall() == []
    told = opened.execute("select * from told")
    assert [one[0] for one in told.description] == [name, "run", "cohort"]
    assert [row[0] for row in told.fetchall()] == [0.25, 0.75]
    opened.close()


def test_columns_of_duckdb_have_their_types(tmp_path: Path, duckdb: Any) -> None:
    made = read(
        tmp_path,
        "select 1::tinyint a, 0.1::decimal(9,3) d, 12345678901234567890123::hugeint h, true b, "
        "date '2020-02-29' as day, timestamptz '2020-01-01 10:00+02' as moment, "
        "'happy'::enum('sad','happy') e, time '10:00' as hour, null as n",
        url="duckdb:///",
    )
    kinds = [str(one) for one in made.schema.types]
    assert kinds == [
        *("int8", "double", "double", "bool", "date32[day]", "timestamp[us, tz=UTC]"),
        *("string", "string", "string"),
    ]
    (row,) = made.to_pylist()
    assert (row["d"], row["h"]) == (0.1, 12345678901234567890123.0)
    assert row["moment"].hour == 8
    assert row["e"] == "happy"


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("select [1, 2] as many", r"column many is of type INTEGER\[\]"),
        ("select 'x'::blob as picture", "column picture is of type BLOB"),
        ("select '{}'::json as tree", "column tree is of type JSON"),
        ("select {'a': 1} as tree", "column tree is of type STRUCT"),
        ("select interval 1 day as gap", "column gap is of type INTERVAL"),
        ("select * from nobody", "nobody does not exist"),
        ("select * from 'nobody.parquet'", "No files found"),
        ("copy (select 1) to 'written.csv'", "expected one query"),
        ("select 1; select 2", "expected one query"),
        ("select * from made", "made does not exist"),  # a variable of the process
        (
            "select count(*) from range(100000000000) a(i), range(1000000) b(j)",
            "longer than timeout = 0.2 seconds",
        ),
    ],
)
def test_a_query_that_duckdb_cannot_run_is_one_line(
    tmp_path: Path, duckdb: Any, query: str, line: str
) -> None:
    made = read(tmp_path, "select 1 as x", url="duckdb:///")
    with pytest.raises(DataError, match=f"cohort stroke: .*{line}") as caught:
        read(tmp_path, query, url="duckdb:///", timeout=0.2 if "100000000000" in query else 30)
    assert caught.value.told == Told.DATABASE
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert len(made) == 1


def test_a_driver_that_is_not_installed_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(DataError, match=r"pip install 'flwr-privet\[sql\]'"):
        read(tmp_path, "select 1", url="duckdb:///")
