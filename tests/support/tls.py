"""Certificates and node keys for a deployment on loopback, made with openssl and ssh-keygen."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIGURATION = """\
[req]
prompt = no
distinguished_name = name
req_extensions = req_ext
[name]
C = DE
O = Privet tests
CN = localhost
[req_ext]
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of a certificate authority and of a server certificate it signed for loopback."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server certificate, valid for a day.

    2048 bits rather than the 4096 of a real deployment: making the keys takes a tenth of the time.
    """
    (folder / "certificate.conf").write_text(_CONFIGURATION)
    for command in (
        "openssl genrsa -out ca.key 2048",
        "openssl req -new -x509 -key ca.key -sha256 -subj /C=DE/O=CA -days 1 -out ca.crt",
        "openssl genrsa -out server.key 2048",
        "openssl req -new -key server.key -out server.csr -config certificate.conf",
        "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial"
        " -out server.pem -days 1 -sha256 -extfile certificate.conf -extensions req_ext",
    ):
        _make(command.split(), folder)
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def make_node_key(folder: Path, name: str) -> Path:
    """Make a node's key pair; return the private key, beside which `name`.pub is the public one."""
    _make(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name], folder)
    return folder / name


def _make(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
