"""A run seen from outside: a Prometheus endpoint with health checks, and log lines as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from privet.core import ConfigError
from privet.core.errors import said_of
from privet.core.library import library_version
from privet.strategies import Observer, Round, Run

from .control import Alarms

log = logging.getLogger("flwr.privet")


class Metrics(Observer):
    """The figures of a run as Prometheus metrics.

    Nothing in them is said of an agent but its name, its absences and its library's version.
    """

    def __init__(self, target_epsilon: float, alarms: Alarms) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = CollectorRegistry()
        self.alarms = alarms
        self.ready = False

        def gauge(name: str, doc: str, *labels: str) -> Any:
            return Gauge(f"privet_{name}", doc, labels, registry=self.registry)

        def counter(name: str, doc: str, *labels: str) -> Any:
            return Counter(f"privet_{name}", doc, labels, registry=self.registry)

        self.round = gauge("round", "Rounds that have ended.")
        self.agents = gauge("agents", "Agents on the roster.")
        self.participants = gauge("participants", "Agents whose upload is in the last round.")
        self.seconds = gauge("round_seconds", "Wall time of the last round.")
        self.residual = gauge("residual", "Squared fixed-point residual of the last round.")
        self.epsilon = gauge("epsilon", "Largest epsilon that an agent has spent.")
        self.tries = gauge("round_failed_tries", "How often the round under way has failed.")
        self.absences = gauge("absences", "Rounds in a row that an agent missed.", "agent")
        self.alarm = gauge("alarm", "1 where a threshold is passed.", "kind")
        self.versions = gauge("library_agents", "Agents by version of their library.", "version")
        self.saved = gauge("checkpoint_round", "Round of the last checkpoint.")
        self.saved_at = gauge("checkpoint_timestamp_seconds", "When it was written or read.")
        self.unsaved = gauge("checkpoint_failures", "Checkpoints that could not be written.")
        self.failures = counter("failures", "Agents asked and not folded.", "reason")
        self.bytes = counter("bytes", "Bytes of messages, without transport.", "direction")
        gauge("target_epsilon", "Epsilon that is not to be passed, 0 for none.").set(target_epsilon)
        gauge("server", "1; the server's library.", "version").labels(library_version()).set(1)

    def on_begin(self, run: Run) -> None:
        """Say that the agents are enrolled."""
        self.round.set(run.session.round)
        self.tries.set_function(lambda: run.failed_tries)
        self.saved.set(run.saved.round)
        self.unsaved.set(run.saved.failures)
        self.saved_at.set(time.time())  # a run that never ends its first round is stalled as well
        self._roster(run)
        self.ready = True

    def on_round(self, run: Run, done: Round) -> str | None:
        """Take a round over."""
        self.round.set(done.round)
        self.participants.set(len(done.participants))
        self.seconds.set(done.seconds)
        self.residual.set(done.residual)
        self.epsilon.set(done.epsilon)
        for why in done.failures.values():
            self.failures.labels(why.code).inc()
        self.bytes.labels("up").inc(done.bytes_up)
        self.bytes.labels("down").inc(done.bytes_down)
        if run.saved.round == done.round:
            self.saved_at.set(time.time())
        self.saved.set(run.saved.round)
        self.unsaved.set(run.saved.failures)
        for agent, count in self.alarms.absences.items():
            self.absences.labels(agent).set(count)
        for kind, raised in self.alarms.raised.items():
            self.alarm.labels(kind).set(raised)
        self._roster(run)
        return None

    def _roster(self, run: Run) -> None:
        agents = run.session.roster.agents.values()
        self.agents.set(len(agents))
        for version, count in Counts(agent.library or "unknown" for agent in agents).items():
            self.versions.labels(version).set(count)

    def answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer ``/metrics``, ``/healthz`` (200 while the process lives) and ``/readyz`` (200 once
        the agents are enrolled), as a WSGI application."""
        from prometheus_client import make_wsgi_app

        path = environ.get("PATH_INFO", "")
        if path not in ("/healthz", "/readyz"):
            answered: Iterable[bytes] = make_wsgi_app(self.registry)(environ, start_response)
            return answered
        fine = path == "/healthz" or self.ready
        start_response(
            "200 OK" if fine else "503 Service Unavailable", [("Content-Type", "text/plain")]
        )
        return [b"ok\n" if fine else b"the agents are not enrolled yet\n"]


IDLE_TIMEOUT = 5.0
"""Seconds that a connection may be silent before it is closed."""
END_TIMEOUT = 5.0
"""Seconds that the endpoint may take to end with the run."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection: a silent one holds up nobody else."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that is silent, cut or leaves: health checks open such."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # timeouts and cut connections are such
            log.warning("metrics endpoint: %s", said_of(error) if error else "unknown error")


class _Silent(WSGIRequestHandler):
    timeout = IDLE_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:
        """Do not write requests to the run's log."""


@contextmanager
def served(metrics: Metrics, host: str, port: int) -> Iterator[None]:
    """Answer on a port while the block runs.

    ``host`` is the address to listen on, then with commas the names that requests may be for beside
    it. A page of another site can let its own name resolve to this machine and read what it is
    answered; the Host header of its requests has that name, and is refused.

    Raises
    ------
    ConfigError
        If the port cannot be had.
    """
    address, *names = (name.strip() for name in host.split(","))
    try:
        server = make_server(
            address, port, _for([address, *names], metrics.answer), _Server, _Silent
        )
    except OSError as error:
        where = f"metrics-host = {address}, metrics-port = {port}"
        raise ConfigError(f"{where}: {error.strerror}") from None
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending = Thread(target=server.shutdown, name="metrics-end", daemon=True)
        ending.start()
        ending.join(END_TIMEOUT)
        if ending.is_alive():
            log.warning(
                "the metrics endpoint did not end in %g s: the run ends without", END_TIMEOUT
            )
        server.server_close()


def _for(names: Sequence[str], answer: Callable[..., Iterable[bytes]]) -> Callable[..., Any]:
    """Refuse requests for another host than an address, localhost or one of the names."""
    known = {"localhost", *(name.lower() for name in names)}

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "localhost")  # a browser never leaves it out
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""  # without brackets and port
            if name in known or _is_address(name):
                return answer(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"the endpoint has another name: add it to metrics-host\n"]

    return checked


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


class _JsonLines(logging.Formatter):
    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "run": self.run,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def json_log(run: str) -> Iterator[None]:
    """Write this library's log lines as JSON objects to stderr while the block runs."""
    log, handler = logging.getLogger("flwr.privet"), logging.StreamHandler()
    handler.setFormatter(_JsonLines(run))
    before, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield
    finally:
        log.handlers, log.propagate = before, propagate
