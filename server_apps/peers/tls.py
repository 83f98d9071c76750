"""Who a server is to another: the unit that its certificate names, ``unit-<name>``.

A certificate of the servers' own authority carries the name as a DNS entry of its subject
alternative names. A server asks for a client certificate and reads the unit from it; a client
checks the same entry before it sends anything, whatever address the server listens on.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.core import ConfigError

PREFIX = "unit-"
_UNIT = re.compile(r"[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths of a server's certificate, its key, and the authority of all servers' certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server_context(self) -> ssl.SSLContext:
        """Return a context that requires a client certificate (raises ``ConfigError``)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows the certificate and checks the server's name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.authority)
        except OSError as error:
            raise ConfigError(f"peer-ca = {str(self.authority)!r}: {_cause(error)}") from None
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ConfigError(
                f"peer-certificate = {str(self.certificate)!r} with peer-key = {str(self.key)!r}: "
                f"{_cause(error)}"
            ) from None


def _cause(error: OSError) -> str:
    return error.strerror or str(error)


def host_name(unit: str) -> str:
    """Return the name in a unit's certificate (raises ``ConfigError`` for an unusable unit)."""
    if not _UNIT.fullmatch(unit):
        raise ConfigError(
            f"unit = {unit!r}: a deployed unit's name is of a-z, 0-9 and inner hyphens, at most 57"
        )
    return PREFIX + unit


def units_named(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the units that a verified certificate names (as ``SSLSocket.getpeercert`` gives it).

    >>> sorted(units_named({"subjectAltName": (("DNS", "unit-2"), ("IP Address", "10.0.0.2"))}))
    ['2']
    """
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return frozenset(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
