"""The run-config keys of a server that hosts one unit of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from privet.core import ConfigError

from .tls import Credentials, host_name


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Where this server listens, where its neighbours are, and how long it waits for them.

    Attributes
    ----------
    unit : str
        The unit hosted here.
    addresses : mapping of str to str
        ``https://host:port`` of each neighbour by unit.
    bind : (str, int)
        Own address; port 0 takes a free one.
    credentials : Credentials
        Certificate, key and authority.
    run : str
        Name all servers agreed on; messages of another run are refused.
    timeout : float
        Seconds that an exchange waits for a neighbour which does not answer.
    longest : float
        Seconds that it waits for one which does, but is not as far yet.
    """

    unit: str
    addresses: Mapping[str, str]
    bind: tuple[str, int]
    credentials: Credentials
    run: str
    timeout: float
    longest: float


def peer_settings(config: Mapping[str, Any]) -> PeerSettings:
    """Return what a run config says of this server and its neighbours.

    Raises
    ------
    ConfigError
        If a key is missing or malformed.
    """
    unit = config["unit"]
    host_name(unit)
    if not config["gfl-run"]:
        raise ConfigError("gfl-run = '': name the run, with the same name on all servers")
    credentials = Credentials(
        _file(config, "peer-certificate"), _file(config, "peer-key"), _file(config, "peer-ca")
    )
    addresses = parse_peers(config["peers"])
    addresses.pop(unit, None)  # so that all servers may be given the same list
    bind = parse_bind(config["peer-bind"])
    timeout = float(config["peer-timeout"])
    # A living server is late by one round of its agents and one wait of its own at most.
    longest = float(config["round-timeout"]) + timeout
    return PeerSettings(unit, addresses, bind, credentials, config["gfl-run"], timeout, longest)


def parse_peers(text: str) -> dict[str, str]:
    """Return address by unit of a list such as ``"1=https://b:9443,2=https://c:9443"``.

    Raises
    ------
    ConfigError
        If an entry is not ``unit=https://host:port``, or a unit comes twice.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        unit, _, address = (piece.strip() for piece in entry.partition("="))
        host_name(unit)
        if not _usable(address):
            raise ConfigError(f"peers: {entry!r} is not unit=https://host:port")
        if unit in found:
            raise ConfigError(f"peers: unit {unit} comes twice")
        found[unit] = address.rstrip("/")
    return found


def _usable(address: str) -> bool:
    try:
        parts = urlsplit(address)
        whole = bool(parts.hostname and parts.port)
        (parts.hostname or "").encode("idna")  # a name that no request could be sent to
    except ValueError:
        return False
    return whole and parts.scheme == "https" and parts.path in ("", "/") and not parts.query


def parse_bind(text: str) -> tuple[str, int]:
    """Return host and port of ``"127.0.0.1:9443"`` or ``"[::]:9443"`` (raises ``ConfigError``)."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"peer-bind = {text!r}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _file(config: Mapping[str, Any], key: str) -> Path:
    path = Path(config[key])
    if not config[key] or not path.is_file():
        raise ConfigError(f"{key} = {config[key]!r}: no such file; give an absolute path")
    return path
