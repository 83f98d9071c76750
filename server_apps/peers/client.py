"""The way to one neighbour: requests over mutual TLS, with the server's unit checked first.

Only a peer service imports this module: it loads httpx.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from privet.core.errors import one_line, said_of

from .edge import Answer
from .messages import Outcome
from .tls import host_name

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection at most: one into nothing must not take a round's whole time."""
ANSWER_LIMIT = 4096
"""Bytes of an answer at most."""


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


class Link:
    """Requests to one neighbour, on one connection that is kept while it lasts.

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
        self._name = {"sni_hostname": host_name(unit)}
        # No proxy of the environment: the connection is to the neighbour and nobody else.
        self._client = httpx.Client(
            base_url=address, verify=context, trust_env=False, follow_redirects=False
        )

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def post(self, path: str, body: bytes, timeout: float) -> Answer:
        """Return the neighbour's answer (raises ``LinkError`` where none came in time)."""
        status, content = self._request("POST", path, body, timeout)
        said = content.get("outcome")
        outcome = Outcome(said) if said in tuple(Outcome) else None
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
        limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT))
        try:
            answer = self._client.request(
                method, path, content=body, timeout=limits, extensions=self._name
            )
            content = answer.json() if len(answer.content) <= ANSWER_LIMIT else None
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise LinkError(said_of(error)) from None
        if not isinstance(content, dict):
            raise LinkError(f"answer of status {answer.status_code} is not ours")
        return answer.status_code, content

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
