"""The way to one neighbour: requests over mutual TLS, with the server's unit checked first.

Only a peer service imports this module: it loads httpcore.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore

from privet.core.errors import one_line, said_of

from .edge import Answer
from .messages import EdgeOutcome
from .tls import host_name

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection at most: one into nothing must not take a round's whole time."""
ANSWER_LIMIT = 4096
"""Bytes of an answer at most."""
KEEP_IDLE = 5.0
"""Seconds that an idle connection is kept."""


class LinkError(Exception):
    """No answer came: the request may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Health:
    """The identity that a neighbour states: its unit, run, agreement and attempt, see ``Identity``.

    ``closed`` is the last exchange that is over for it as far as this edge is concerned.
    """

    unit: str
    run: str
    agreement: str
    attempt: int
    closed: int


def _left(deadline: float | None, late: type[httpcore.TimeoutException]) -> float:
    """Return the seconds until a time of ``time.monotonic`` (raises ``late`` where it is past)."""
    left = (deadline or 0.0) - time.monotonic()
    if left <= 0:
        raise late("timed out")
    return left


class _Stream(httpcore.NetworkStream):
    """A connection whose ``timeout`` arguments are times of ``time.monotonic``, not seconds.

    httpcore hands each read of a request the same value. As seconds, a neighbour that sends one
    byte in each of them would never be late, be it in the head of its answer or in the body.
    """

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout, httpcore.WriteTimeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            left = _left(timeout, httpcore.ConnectTimeout)
        except httpcore.ConnectTimeout:
            self.close()
            raise
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Opens connections whose timeouts are deadlines, see ``_Stream``."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        opened = httpcore.SyncBackend().connect_tcp(host, port, left, local_address, socket_options)
        return _Stream(opened)


class EdgeConnection:
    """Requests to one neighbour, on one connection that is kept while it lasts.

    A request takes ``timeout`` seconds at most from its beginning to the last byte of the answer,
    and an answer has `ANSWER_LIMIT` bytes at most, uncompressed.

    Parameters
    ----------
    unit : str
        The neighbour; its certificate must name it, whatever the address.
    address : str
        ``https://host:port``.
    context : SSLContext
        Of ``Credentials.client_context``.
    """

    def __init__(self, unit: str, address: str, context: ssl.SSLContext) -> None:
        self.unit = unit
        self._name = host_name(unit)
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")
        port = parts.port
        self._place = (parts.scheme.encode(), host, port)
        named = b"[%b]:%d" if b":" in host else b"%b:%d"
        self._headers = [(b"Host", named % (host, port)), (b"Accept-Encoding", b"identity")]
        # httpcore follows no redirect and reads no proxy of the environment: the connection is to
        # the neighbour and nobody else.
        self._pool = httpcore.ConnectionPool(
            context, keepalive_expiry=KEEP_IDLE, network_backend=_Backend()
        )

    def __enter__(self) -> EdgeConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def post(self, path: str, body: bytes, timeout: float) -> Answer:
        """Return the neighbour's answer (raises ``LinkError`` where none came in time)."""
        status, content = self._request("POST", path, body, timeout)
        said = content.get("outcome")
        outcome = EdgeOutcome(said) if said in tuple(EdgeOutcome) else None
        attempt = content.get("attempt")
        return Answer(
            status,
            outcome,
            one_line(str(content.get("reason", ""))),
            attempt if type(attempt) is int else 0,
        )

    def health(self, timeout: float) -> Health:
        """Return what the neighbour says of itself (raises ``LinkError``)."""
        status, content = self._request("GET", "/health", b"", timeout)
        texts = [content.get(name) for name in ("unit", "run", "agreement")]
        numbers = [content.get(name) for name in ("attempt", "closed")]
        whole = all(type(n) is int for n in numbers) and all(type(t) is str for t in texts)
        if status != 200 or not whole:
            raise LinkError(one_line(str(content.get("reason", f"status {status}"))))
        unit, run, agreement = (one_line(str(text)) for text in texts)
        attempt, closed = (int(number or 0) for number in numbers)
        return Health(unit, run, agreement, attempt, closed)

    def _request(
        self, method: str, path: str, body: bytes, timeout: float
    ) -> tuple[int, dict[str, Any]]:
        scheme, host, port = self._place
        url = httpcore.URL(scheme=scheme, host=host, port=port, target=path.encode())
        now = time.monotonic()
        limits = {
            "pool": timeout,
            "connect": now + min(timeout, CONNECT_TIMEOUT),
            "write": now + timeout,
            "read": now + timeout,
        }
        extensions = {"timeout": limits, "sni_hostname": self._name}
        try:
            with self._pool.stream(
                method, url, headers=self._headers, content=body, extensions=extensions
            ) as answer:
                content = json.loads(_whole(answer))
        except (httpcore.ReadTimeout, httpcore.WriteTimeout):
            raise LinkError(f"no whole answer within {timeout:.3g} s") from None
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            ValueError,
            RecursionError,
        ) as error:
            raise LinkError(said_of(error)) from None
        if not isinstance(content, dict):
            raise LinkError(f"answer of status {answer.status} is not ours")
        return answer.status, content

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()


def _whole(answer: httpcore.Response) -> bytes:
    """Return an answer's body (raises ``LinkError`` as soon as it is too large or encoded)."""
    for name, value in answer.headers:
        if name.lower() == b"content-encoding" and value.strip().lower() != b"identity":
            said = one_line(value.decode("ascii", "replace"))
            raise LinkError(f"answer with Content-Encoding {said!r}, which is not read")
    body = b""
    for part in answer.iter_stream():
        body += part
        if len(body) > ANSWER_LIMIT:
            raise LinkError(f"answer above {ANSWER_LIMIT} bytes")
    return body
