"""The server that tests of databases start: who it lets in, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.keeper import listens
from support.postgres import OWNER, Postgres, PostgresError, postgres_server, programs


@pytest.fixture
def database(postgres: Postgres) -> str:
    """Return an empty database, removed before by whoever had it last."""
    postgres.drop("people")
    postgres.create("people")
    return "people"


def _ask(server: Postgres, database: str, passfile: Path) -> subprocess.CompletedProcess[str]:
    psql = str((programs() or Path()) / "psql")
    command = [psql, "-X", "-w", "-A", "-t", "-d", server.url(database, password=None)]
    environment = {**os.environ, "PGPASSFILE": str(passfile)}
    return subprocess.run(
        [*command, "-c", "select current_user, 6 * 7"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


def test_it_lets_in_who_has_the_password_alone(postgres: Postgres, database: str) -> None:
    done = _ask(postgres, database, postgres.passfile())
    assert done.stdout == f"{OWNER}|42\n"
    wrong = _ask(postgres, database, postgres.passfile("somebody", "wrong"))
    assert wrong.returncode != 0
    assert "no password supplied" in wrong.stderr


def test_statements_are_run_in_the_database_that_they_name(
    postgres: Postgres, database: str
) -> None:
    postgres.execute("create table person (age int); insert into person values (61)", database)
    assert postgres.execute("select age from person", database) == "61\n"
    with pytest.raises(PostgresError, match='relation "person" does not exist'):
        postgres.execute("select age from person")


def test_it_stops_and_starts_with_its_rows(postgres: Postgres, database: str) -> None:
    postgres.execute("create table person (age int); insert into person values (61)", database)
    postgres.stop()
    assert "refused" in _ask(postgres, database, postgres.passfile()).stderr
    postgres.start()
    assert postgres.execute("select age from person", database) == "61\n"


def test_nothing_is_left_of_a_server() -> None:
    with postgres_server() as server:
        folder, port = server.folder, server.port
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        assert listens(pid, port)
        assert os.stat(f"/proc/{pid}").st_uid != 0
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()


def test_it_ends_with_what_started_it(tmp_path: Path) -> None:
    """Killed in the middle, whoever started a server leaves none behind."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: Debian's package postgresql")
    code = (
        "import sys, time\n"
        "from support.postgres import postgres_server\n"
        "with postgres_server() as server:\n"
        "    print(server.folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        child.kill()
    deadline = time.monotonic() + 60.0
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
