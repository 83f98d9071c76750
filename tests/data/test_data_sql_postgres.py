"""Cohorts of a real PostgreSQL: types, the bits of an export, faults, and no credentials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.client_apps import client_app
from privet.core import RunError
from privet.data import DataError, problem_from_context, table_from_context
from privet.data.sql.cohorts import NamedCohort, cohort_of
from privet.data.sql.databases import batches
from privet.data.sql.writing import write_table
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import FedPLT
from privet.wire.flower_internals import packed_content
from support.cli import privet
from support.cohorts import QUERY, cohorts, node
from support.extras import extra
from support.postgres import OWNER, Postgres
from support.sites import SCHEMA, rows, table, turned_away

psycopg: Any = extra("psycopg", "sql")


STROKE = {"cohort": "stroke"}
"""All that a run says of its data."""
START = ArrayRecord({"x": Array(np.zeros(4))})


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Iterator[Postgres]:
    """Return the server with an empty database ``study``, removed afterwards."""
    postgres.drop("study")
    postgres.create("study")
    yield postgres
    postgres.drop("study")


def patients(server: Postgres, columns: dict[str, list[Any]]) -> None:
    """Write a site's patients into the database, in no order."""
    server.execute(
        "drop table if exists patients cascade; create table patients (id int, age numeric(6, 2), "
        "sodium float8, ward text, died boolean)",
        "study",
    )
    with psycopg.connect(server.url("study")) as opened:
        values = list(enumerate(zip(*columns.values(), strict=True)))
        with opened.cursor().copy("copy patients from stdin") as copy:
            for number, (age, sodium, ward, died) in reversed(values):
                copy.write_row((number, age, sodium, ward, died == "1"))


NUMBERED = QUERY.replace("died from", "died::int as died from")


def read(server: Postgres, query: str, folder: Path, timeout: float = 30.0) -> Any:
    """Return the rows of a query."""
    import pyarrow as pa

    cohort = NamedCohort("stroke", query, server.url("study"), timeout, folder)
    return pa.Table.from_batches(batches(cohort))


# ---------------------------------------------------------------------------- types and bits


def test_columns_have_the_types_of_tables(server: Postgres, tmp_path: Path) -> None:
    server.execute("create type mood as enum ('sad', 'happy')", "study")
    made = read(
        server,
        "select 1::int2 as small, 9007199254740993::int8 as large, 0.1::float4 as single, "
        "0.30000000000000004::float8 as double, 0.30000000000000004440892098500626::numeric as n, "
        "true as b, date '2020-02-29' as day, timestamp '2020-01-01 10:30:00.5' as local, "
        "timestamptz '2020-01-01 10:30+02' as moment, 'happy'::mood as mood, E'a, \"q\"\\nb' as s, "
        "'' as empty, null::int as none, time '10:00' as hour, "
        "'00000000-0000-0000-0000-000000000001'::uuid as u "
        "union all select null, null, 'nan', 'infinity', 'nan', false, null, null, null, null, "
        "null, null, null, null, null",
        tmp_path,
    )
    kinds = {one.name: str(one.type) for one in made.schema}
    assert kinds == {
        **dict.fromkeys(("small", "large", "none"), "int64"),
        **dict.fromkeys(("single", "double", "n"), "double"),
        **dict.fromkeys(("mood", "s", "empty", "hour", "u"), "string"),
        "b": "bool",
        "day": "date32[day]",
        "local": "timestamp[us]",
        "moment": "timestamp[us, tz=UTC]",
    }
    first, second = made.to_pylist()
    assert (first["large"], first["single"]) == (9007199254740993, 0.1)
    assert first["double"] == first["n"] == 0.30000000000000004
    assert (first["s"], first["empty"], first["none"]) == ('a, "q"\nb', "", None)
    assert (first["moment"].hour, first["local"].microsecond) == (8, 500_000)
    assert second["s"] is None
    assert second["b"] is False
    assert second["double"] == np.inf
    assert np.isnan(second["n"])


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("select array[1, 2] as many", r"column many is of type int4\[\]"),
        ("select '{}'::json as tree", "column tree is of type json"),
        ("select '{}'::jsonb as tree", "column tree is of type jsonb"),
        ("select ''::bytea as picture", "column picture is of type bytea"),
        ("select interval '1 day' as gap", "column gap is of type interval"),
        ("select 'infinity'::date as last", "column last: 'infinity' is no value"),
        ("select nothing", 'column "nothing" does not exist'),
        ("select * from nobody", 'relation "nobody" does not exist'),
        ("select 1 / 0 as x", "division by zero"),
        ("select 1; select 2", "expected one SELECT, and nothing else: syntax error"),
        ("delete from pg_class returning oid", "expected one SELECT, and nothing else"),
        ("insert into counter values (1)", "expected one SELECT, and nothing else"),
        ("select nextval('counter')", "cannot execute nextval.* in a read-only transaction"),
        ("select pg_sleep(60)::text as s", "longer than timeout = 0.3 seconds"),
    ],
)
def test_a_query_that_cannot_be_run_is_one_line(
    server: Postgres, tmp_path: Path, query: str, line: str
) -> None:
    server.execute("create sequence if not exists counter", "study")
    with pytest.raises(DataError, match=f"cohort stroke: .*{line}") as caught:
        read(server, query, tmp_path, 0.3 if "sleep" in query else 30.0)
    assert caught.value.told == Told.DATABASE
    assert "\n" not in str(caught.value)


def test_batches_are_bounded_and_in_order(server: Postgres, tmp_path: Path) -> None:
    query = "select i, i * 0.25 as x from generate_series(1, 150000) i order by i desc"
    cohort = NamedCohort("stroke", query, server.url("study"), 60.0, tmp_path)
    parts = list(batches(cohort))
    assert max(one.num_rows for one in parts) <= 1 << 16
    numbers = np.concatenate([one["i"].to_numpy() for one in parts])
    np.testing.assert_array_equal(numbers, np.arange(150_000, 0, -1))


def test_a_run_has_the_bits_of_one_on_the_export(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = rows(90, 1)
    patients(server, columns)
    (tmp_path / "export.csv").write_text(table(columns))
    monkeypatch.setenv("PGPASSFILE", str(server.passfile()))
    url = server.url("study", password=None)
    file = cohorts(tmp_path, NUMBERED, head=f'url = "{url}"')
    models = []
    for keys in (
        {"dataset": "csv", "data-path": str(tmp_path / "export.csv")},
        {"dataset": "sql", "data-path": str(file), "cohort": "stroke"},
    ):
        given = {"algorithm": "fed-plt", "label-column": "died", "num-agents": 3, **keys}
        given |= {"num-server-rounds": 10, "output-dir": str(tmp_path / "runs")}
        models.append(run_inline(given, str(keys["dataset"])).result.arrays["x"].numpy())
    np.testing.assert_array_equal(models[1], models[0])
    formula = {"algorithm": "glm", "formula": "died ~ age + sodium + ward", "num-agents": 2}
    formula |= {"output-dir": str(tmp_path / "runs")}
    of_file = run_inline({**formula, "data-path": str(tmp_path / "export.csv")}, "g1")
    kept = {"dataset": "sql", "data-path": str(file), "cohort": "stroke"}
    of_rows = run_inline({**formula, **kept}, "g2")
    assert of_rows.result.table["coef"] == of_file.result.table["coef"]


def test_a_service_file_and_a_password_file_give_the_credentials(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "service.conf"
    where = f"host=127.0.0.1\nport={server.port}\nuser={OWNER}\ndbname=study\n"
    service.write_text(f"[study]\n{where}")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    monkeypatch.setenv("PGPASSFILE", str(server.passfile()))
    file = cohorts(tmp_path, "select 42 as age", head='url = "postgresql:///?service=study"')
    (batch,) = batches(cohort_of(str(file), "stroke"))
    assert batch.to_pydict() == {"age": [42]}


# ---------------------------------------------------------------------------- faults


def test_a_server_that_is_away_and_wrong_credentials_are_one_line(
    server: Postgres, tmp_path: Path
) -> None:
    for url, line in (
        (server.url("study", password="planted"), "password authentication failed"),
        (server.url("nowhere"), 'database "nowhere" does not exist'),
        (server.url("study", "nobody", "planted"), "password authentication failed"),
        ("postgresql://me@127.0.0.1:1/study", "Connection refused"),
        ("postgresql://me@host.invalid/study", "host.invalid"),
        ("postgresql://me@[half/study", "IPv6 host address in URI"),
    ):
        with pytest.raises(DataError, match=f"cohort stroke: .*{line}") as caught:
            list(batches(NamedCohort("stroke", "select 1", url, 30.0, tmp_path)))
        said = str(caught.value)
        assert "planted" not in said
        assert server.password not in said
        assert "\n" not in said


def test_a_connection_that_drops_in_mid_stream_leaves_no_half_of_the_rows(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (
        "select i, 1 as died, pg_sleep(0.0001)::text is null as b from generate_series(1, 90000) i"
    )
    monkeypatch.setenv("RECORDS", server.url("study"))
    file = cohorts(tmp_path, slow, head='url-env = "RECORDS"')
    stopping = threading.Timer(1.0, server.disconnect, ["study"])
    stopping.start()
    with pytest.raises(DataError, match="cohort stroke: ") as caught:
        table_from_context(node(file))
    stopping.join()
    assert caught.value.told == Told.DATABASE
    assert [one.name for one in (tmp_path / "state.cohorts").iterdir()] == ["lock"]
    cohorts(
        tmp_path, slow.replace("0.0001", "0").replace("90000", "20"), head='url-env = "RECORDS"'
    )
    assert table_from_context(node(file)).frame.rows == 20


def test_a_view_that_changed_is_a_line_and_the_node_is_back_by_itself(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patients(server, rows(60, 1))
    server.execute("create view seen as select * from patients", "study")
    monkeypatch.setenv("RECORDS", server.url("study"))
    query = NUMBERED.replace("patients", "seen")
    file = cohorts(tmp_path, query, head='url-env = "RECORDS"')

    def left_out() -> list[str]:
        strategy = FedPLT(num_agents=2, min_agents=1)
        first, second = ({**node(file, cohort="").node_config, "agent": f"n{i}"} for i in (0, 1))
        first |= {"data-path": str(tmp_path / "export.csv"), "dataset": "csv"}
        first["num-partitions"] = second["num-partitions"] = 2
        second["partition-id"] = 1
        grid = InlineGrid(client_app("fed-plt", problem_from_context), [first, second], STROKE)
        strategy.start(grid, START, num_rounds=1, log_rounds=False)
        return turned_away(strategy)

    (tmp_path / "export.csv").write_text(table(rows(60, 1)))
    assert left_out() == []
    server.execute("drop view seen; create view seen as select id, age from patients", "study")
    assert left_out() == [f"agent n1: {Told.DATABASE}"]
    server.execute("drop view seen; create view seen as select * from patients", "study")
    assert left_out() == []


def test_no_fault_of_a_database_is_charged_and_the_node_is_back_by_itself(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A private run goes on without the node, whose ledger and rules stay the same throughout."""
    patients(server, rows(60, 1))
    (tmp_path / "export.csv").write_text(table(rows(60, 1)))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    ledgers = [tmp_path / f"{at}.jsonl" for at in range(2)]
    configs = [
        {
            **node(tmp_path / "cohorts.toml", cohort="").node_config,
            "agent": f"n{at}",
            "partition-id": at,
            "num-partitions": 2,
            "max-epsilon": 1e6,
            "delta": 1e-5,
            "ledger-path": str(ledgers[at]),
            "schema": str(tmp_path / "schema.toml"),
            "state-path": str(tmp_path / f"state{at}"),
        }
        for at in range(2)
    ]
    configs[0] |= {"data-path": str(tmp_path / "export.csv"), "dataset": "csv"}
    noise: dict[str, Any] = {"local_solver": "noisy-gd", "clip": 1.0, "row_norm": 4.0}

    def charged(url: str, query: str = NUMBERED, seconds: float = 30.0) -> tuple[list[str], str]:
        """Return whom a run turned away, and the log."""
        monkeypatch.setenv("RECORDS", url)
        cohorts(tmp_path, query, head=f'url-env = "RECORDS"\ntimeout = {seconds}')
        caplog.clear()
        strategy = FedPLT(num_agents=2, min_agents=1, noise_variance=1.0, **noise)
        grid = InlineGrid(client_app("fed-plt", problem_from_context), configs, STROKE)
        strategy.start(grid, START, num_rounds=1, log_rounds=False)
        return turned_away(strategy), caplog.text

    fine = server.url("study")
    broken = "select age, sodium, ward, 1 / (id - 40) as died from patients order by id"
    dropped = "select *, pg_terminate_backend(pg_backend_pid()) as died from patients"
    for url, query, seconds, line in (
        ("postgresql://me@127.0.0.1:1/study", NUMBERED, 30.0, "Connection refused"),
        (server.url("study", password="planted"), NUMBERED, 30.0, "authentication failed"),
        (fine, NUMBERED.replace("patients", "nobody"), 30.0, 'relation "nobody" does not exist'),
        (fine, NUMBERED.replace("sodium", "salt"), 30.0, 'column "salt" does not exist'),
        (fine, "select pg_sleep(60)::text as died", 0.3, "longer than timeout = 0.3 seconds"),
        (fine, broken, 30.0, "division by zero"),
        (fine, dropped, 30.0, "terminating connection"),
    ):
        left, log = charged(url, query, seconds)
        assert left == [f"agent n1: {Told.DATABASE}"]
        (said,) = [one for one in log.splitlines() if "cohort stroke: " in one]
        assert line in said
        assert not ledgers[1].exists() or not ledgers[1].read_text()
    assert len(ledgers[0].read_text().splitlines()) == 7  # the other site paid in each
    assert charged(fine)[0] == []
    assert len(ledgers[1].read_text().splitlines()) == 1


# ---------------------------------------------------------------------------- credentials


def test_a_password_is_in_nothing_that_runs_write_send_or_log(
    server: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither of a variable's whole URL nor of a password file, in runs that work or fail."""
    caplog.set_level(logging.DEBUG)
    patients(server, rows(60, 1))
    monkeypatch.setenv("RECORDS", server.url("study"))
    sent: list[bytes] = []
    app = client_app(None, problem_from_context, table_fn=table_from_context)

    def seen(message: Any, context: Any) -> Any:
        answer = app(message, context)
        content = packed_content(answer.content) if answer.has_content() else b""
        sent.extend([content, str(answer).encode(), str(context).encode()])
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may have ended
                sent.append((process / "cmdline").read_bytes())
        return answer

    for name, query in (("works", NUMBERED), ("fails", "select nothing from patients")):
        folder = tmp_path / name
        folder.mkdir()
        file = cohorts(folder, query, head='url-env = "RECORDS"')
        config = {**node(file, cohort="").node_config, "agent": name}
        grid = InlineGrid(seen, [config], STROKE)
        strategy = FedPLT(num_agents=1, min_agents=1)
        if name == "fails":
            with pytest.raises(RunError, match="cannot be read from its database"):
                strategy.start(grid, START, num_rounds=1)
        else:
            strategy.start(grid, START, num_rounds=1)
        words = ("data", file, "--cohort", "stroke", "num-agents=2")
        privet(*words)
    more = 'write = "told"\n[cohorts.fails]\nquery = "select nothing from patients"'
    works, runs = cohorts(tmp_path, NUMBERED, more, 'url-env = "RECORDS"'), tmp_path / "runs"
    own = ("dataset=sql", f"data-path={works}", f"output-dir={runs}", "label-column=died")
    fit = ("num-agents=2", "num-server-rounds=2")
    assert privet("describe", works, "--cohort", "stroke", f"output-dir={runs}").code == 0
    assert privet("run", *own, *fit, "cohort=stroke").code == 0
    assert privet("run", *own, *fit, "cohort=fails").code == 2
    (trained,) = runs.glob("*-fed-plt")
    new = ("predict", trained, works, "--cohort", "stroke", "--out")
    assert privet(*new, "told").code == privet(*new, tmp_path / "told.csv").code == 0
    wrong = server.url("study", password=f"{server.password}x")
    with pytest.raises(DataError, match="password authentication failed"):
        list(batches(NamedCohort("stroke", "select 1", wrong, 30.0, tmp_path)))
    out, err = capfd.readouterr()
    texts = [caplog.text.encode(), out.encode(), err.encode(), *sent]
    texts += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(texts) > 20
    assert not any(server.password.encode() in text for text in texts)


# ---------------------------------------------------------------------------- writing


def test_predictions_go_into_the_named_table_alone_and_whole(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDS", server.url("study"))
    server.execute("create schema results", "study")
    file = cohorts(tmp_path, "select 1 as a", 'write = "results.risk"', 'url-env = "RECORDS"')
    cohort = cohort_of(str(file), "stroke")
    columns = {"id": np.array([1, 2]), "risk": np.array([0.25, np.nan]), "to": np.array(["a", "b"])}
    assert write_table(cohort, columns, "first") == 0
    assert write_table(cohort, columns, "second") == 0
    found = server.execute('select id, risk, "to", run from results.risk', "study").split()
    assert found == [f"{row}|{run}" for run in ("first", "second") for row in ("1|0.25|a", "2||b")]
    fewer = {name: values[1:] for name, values in columns.items()}
    assert write_table(cohort, fewer, "first") == 2
    other = replace(cohort, name="others")
    assert write_table(other, fewer, "first") == 0
    ordered = "select id, run, cohort from results.risk order by run, cohort, id"
    assert server.execute(ordered, "study").split() == [
        "2|first|others", "2|first|stroke", "1|second|stroke", "2|second|stroke"
    ]  # fmt: skip
    server.execute("create unique index on results.risk (id) where risk = 0.5", "study")
    again = {**columns, "id": np.array([5, 5]), "risk": np.array([0.5, 0.5])}
    with pytest.raises(DataError, match="cohort stroke: duplicate key"):
        write_table(cohort, again, "first")  # what was to be replaced stays, too
    assert server.execute("select count(*) from results.risk", "study").strip() == "4"
    plain = cohort_of(str(cohorts(tmp_path, "select 1 as a", "", 'url-env = "RECORDS"')), "stroke")
    with pytest.raises(DataError, match="no table is named to write predictions to"):
        write_table(plain, columns, "first")
    hostile = replace(cohort, write="results.told")
    name = 'no" text); drop table results.risk; --'  # names longer than 63 bytes are cut
    for replaced in (0, 2):
        assert write_table(hostile, {name: np.array([0.25, 0.75])}, "first") == replaced
    assert server.execute("select count(*) from results.risk", "study").strip() == "4"
