"""A real PostgreSQL server on loopback, of Debian's package, for one test session. Linux only."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.keeper import Processes, free_ports, wait_until_listening

PACKAGE = "postgresql"
"""The Debian package with the server's programs."""

OWNER = "owner"
"""The role that owns the server; its password is drawn anew by each server."""


class PostgresError(AssertionError):
    """The server did not do what it was asked to, with what it said."""


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs, None where it is not installed."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    by_version = sorted(found, key=lambda path: float(path.parts[-3]))
    return by_version[-1].parent if by_version else None


class Postgres:
    """A server with password authentication on 127.0.0.1 and a port of its own.

    PostgreSQL refuses to be started by root: then it runs as the package's user ``postgres``, or
    as ``nobody``, and otherwise as who runs the tests. `postgres_server` starts one and ends it.

    Parameters
    ----------
    processes : Processes
        Which the server becomes one of.
    folder : Path
        An empty folder for its data and log, which its user can reach.
    bin : Path
        Folder of its programs.
    """

    def __init__(self, processes: Processes, folder: Path, bin: Path) -> None:
        self._processes = processes
        self._bin = bin
        self.folder = folder
        self.password = secrets.token_hex(12)
        (self.port,) = free_ports(1)
        # The files are the server's user's alone; programs are started in a folder that it can
        # read, which the one of the tests may not be.
        self._as_user = ["env", "-C", str(folder)]
        if os.geteuid() == 0:
            user = _plain_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
            groups = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            self._as_user += ["setpriv", *groups, "--"]
        self._child: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Make the data folder and start the server (raises ``PostgresError``)."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        command = ["initdb", "--pgdata", str(self.folder / "data"), "--username", OWNER]
        command += ["--auth", "scram-sha-256", "--pwfile", str(secret), "--encoding", "UTF8"]
        self._call([*self._as_user, *self._program(command), "--no-locale", "--no-sync"], 120.0)
        secret.unlink()
        self.start()

    def start(self) -> None:
        """Start the server, or start it again on the same port and data."""
        # Nothing that a test needs outlives the machine: without fsync it is three times as quick.
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": self.port,
            "fsync": "off",
            "max_connections": 40,
        }
        options = [text for key, value in settings.items() for text in ("-c", f"{key}={value}")]
        command = self._program(["postgres", "-D", str(self.folder / "data"), *options])
        log = self.folder / "server.log"
        self._child = self._processes.start([*self._as_user, *command], log)
        if not wait_until_listening(self._child, self.port):
            raise PostgresError(f"PostgreSQL does not listen: {log.read_text()[-3000:]}")
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the server at once: connections are dropped, committed rows stay."""
        if self._child is not None:
            self._child.send_signal(signal.SIGINT)
            self._child.wait(60.0)
            self._child = None

    def create(self, database: str) -> None:
        """Create an empty database."""
        self.execute(f'create database "{database}"')

    def drop(self, database: str) -> None:
        """Remove a database, with whoever is connected to it."""
        self.execute(f'drop database if exists "{database}" with (force)')

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run statements as the owner and return what they print, a row a line, ``|`` between.

        Raises
        ------
        PostgresError
            If one fails.
        """
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", OWNER, "-c", statement]
        # psql, and what is on its command line, is seen by others: the password is not there.
        return self._call(["env", f"PGPASSFILE={self.passfile()}", *self._program(command)], 60.0)

    def passfile(self, role: str = OWNER, password: str | None = None) -> Path:
        """Write a password file, as libpq reads it, for a role on this server; return its path."""
        path = self.folder / f"pgpass-{role}"
        path.write_text(f"127.0.0.1:{self.port}:*:{role}:{password or self.password}\n")
        path.chmod(0o600)
        return path

    def url(self, database: str, role: str = OWNER, password: str | None = "") -> str:
        """Return the URL of a database.

        Parameters
        ----------
        database, role : str
        password : str, optional
            The role's; by default the owner's, and with None the URL has none.
        """
        secret = "" if password is None else f":{password or self.password}"
        return f"postgresql://{role}{secret}@127.0.0.1:{self.port}/{database}"

    def disconnect(self, database: str) -> None:
        """End the sessions of a database in the middle of what they do."""
        self.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            f"where datname = '{database}' and pid <> pg_backend_pid()"
        )

    def _wait_until_ready(self) -> None:
        """Wait until it takes connections: it listens before its start-up is over."""
        command = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "60"]
        for _ in range(600):
            done = self._processes.call(self._program(command))
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise PostgresError(f"PostgreSQL takes no connections on port {self.port}")

    def _program(self, command: list[str]) -> list[str]:
        return [str(self._bin / command[0]), *command[1:]]

    def _call(self, command: list[str], timeout: float) -> str:
        done = self._processes.call(command, timeout)
        if done.returncode:
            raise PostgresError(f"{Path(command[0]).name}: {done.stdout}{done.stderr}")
        return done.stdout


def _plain_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresError("PostgreSQL does not run as root, and no user postgres or nobody is there")


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start a PostgreSQL server and end it, with its data; skip the test where there is none."""
    bin = programs()
    if bin is None:
        pytest.skip(f"PostgreSQL is not installed: Debian's package {PACKAGE}")
    folder = Path(tempfile.mkdtemp(prefix="privet-postgres-"))
    with Processes(os.environ, folder) as processes:
        server = Postgres(processes, folder, bin)
        try:
            server.begin()
            yield server
        finally:
            server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return a server for all tests of a session, each of which creates databases of its own."""
    with postgres_server() as server:
        yield server
