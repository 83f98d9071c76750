"""The service a server offers its neighbours in the graph: three requests over mutual TLS.

``POST /psi`` takes in a vector, ``POST /commit`` asks that an edge count, ``GET /health`` says who
this is and how far. Every request must come with the certificate of a neighbour, and what it claims
must be what the certificate says. Only a peer service imports this module: it loads FastAPI.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from privet.core import ConfigError, RunError, WireError
from privet.core.errors import one_line

from .edge import Answer, Board
from .messages import Head, Identity, Shape, decode
from .tls import Credentials, units_named

log = logging.getLogger("flwr.privet")

START_PATIENCE = 10.0
CLOSE_PATIENCE = 3
"""Seconds that answers under way may take when the service ends."""
KEEP_ALIVE = 60
"""Seconds that an idle connection is kept, a round being much shorter."""


class PeerProtocol(H11Protocol):
    """HTTP/1.1 that tells the application which units the client's certificate names."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read the certificate, which TLS has verified by now."""
        super().connection_made(transport)  # type: ignore[arg-type]
        # asyncio does not do this for a socket it was given; without it an answer takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        certificate = transport.get_extra_info("peercert") or {}
        self.app_state = {**self.app_state, "units": units_named(certificate)}

    def shutdown(self) -> None:
        """Finish the answer under way; cut an idle connection, whose client may not be reading."""
        idle = self.cycle is None or self.cycle.response_complete
        super().shutdown()
        if idle:
            self.transport.abort()


def application(identity: Identity, board: Board, shape: Shape) -> FastAPI:
    """Return the service."""
    app = FastAPI(openapi_url=None)

    async def health(request: Request) -> Response:
        asking = request.state.units & board.edges.keys()
        if not asking:
            return say(_stranger(request, identity))
        return JSONResponse(
            {
                "unit": identity.unit,
                "run": identity.run,
                "agreement": identity.agreement,
                "attempt": identity.attempt,
                "closed": min(board.closed(unit) for unit in asking),
            }
        )

    async def psi(request: Request) -> Response:
        return await take(request, lambda head, data: _vector(board, shape, head, data))

    async def commit(request: Request) -> Response:
        return await take(request, lambda head, data: board.commit(head))

    async def take(request: Request, act: Callable[[Head, bytes], Answer]) -> Response:
        if not request.state.units & board.edges.keys():
            return say(_stranger(request, identity))
        body = await _body(request, shape.limit)
        if body is None:
            return say(Answer(413, None, f"body above {shape.limit} bytes"))
        try:
            head, data = decode(body)
        except WireError as error:
            return say(Answer(400, None, one_line(str(error))))
        refusal = _refusal(identity, board, head, request.state.units)
        return say(refusal or act(head, data))

    def say(answer: Answer) -> Response:
        content: dict[str, Any] = {"outcome": answer.outcome, "reason": one_line(answer.reason)}
        return JSONResponse(content | {"attempt": identity.attempt}, answer.status)

    app.add_route("/health", health, methods=["GET"])
    app.add_route("/psi", psi, methods=["POST"])
    app.add_route("/commit", commit, methods=["POST"])
    return app


async def _body(request: Request, limit: int) -> bytes | None:
    """Return the body, or None as soon as it is known to be above the limit."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _stranger(request: Request, identity: Identity) -> Answer:
    named = ", ".join(sorted(request.state.units)) or "no unit"
    log.warning("unit %s: refused a certificate of %s", identity.unit, one_line(named))
    return Answer(403, None, f"certificate names {named}: not a neighbour of {identity.unit}")


def _refusal(identity: Identity, board: Board, head: Head, named: frozenset[str]) -> Answer | None:
    """Return why a message is refused whatever it asks for, or None."""
    if head.unit not in named:
        return Answer(403, None, f"claims to be unit {head.unit}, the certificate does not")
    if head.unit not in board.edges:
        return Answer(403, None, f"unit {head.unit} is not a neighbour of {identity.unit}")
    if head.to != identity.unit:
        return Answer(409, None, f"message to unit {head.to}, this is unit {identity.unit}")
    if head.run != identity.run:
        return Answer(409, None, f"message of run {head.run!r}, this is {identity.run!r}")
    if head.agreement != identity.agreement:
        return Answer(409, None, "the two servers' graph, weights or model differ")
    return None


def _vector(board: Board, shape: Shape, head: Head, data: bytes) -> Answer:
    try:
        shape.read(data)
    except WireError as error:
        return Answer(400, None, one_line(str(error)))
    return board.receive(head, data)


class Service:
    """The application behind uvicorn in a thread of its own.

    Raises
    ------
    ConfigError
        If the address cannot be bound or the credentials cannot be used.
    """

    def __init__(self, app: FastAPI, bind: tuple[str, int], credentials: Credentials) -> None:
        context = credentials.server_context()
        family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(bind, family=family)
        except OSError as error:
            raise ConfigError(f"peer-bind = {bind[0]}:{bind[1]}: {error.strerror}") from None
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=PeerProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=CLOSE_PATIENCE,
            ssl_certfile=credentials.certificate,
            ssl_keyfile=credentials.key,
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="peers", daemon=True
        )

    def start(self) -> None:
        """Start the thread and return once it listens (raises ``RunError``)."""
        self._thread.start()
        for _ in range(int(START_PATIENCE / 0.01)):
            if self._server.started:
                return
            self._thread.join(0.01)
            if not self._thread.is_alive():
                break
        raise RunError("the peer service did not start")

    def close(self) -> None:
        """Answer what is under way and end the thread."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
