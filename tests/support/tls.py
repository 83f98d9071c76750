"""Certificates and node keys for deployments and servers on loopback, valid for a day."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_CONFIGURATION = """\
[req]
prompt = no
distinguished_name = name
[name]
C = DE
O = Privet tests
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
"""
_KEY_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


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
        "openssl req -new -x509 -key ca.key -sha256 -subj /C=DE/O=CA -days 1 -out ca.crt"
        " -config certificate.conf -extensions authority",
        "openssl genrsa -out server.key 2048",
        "openssl req -new -key server.key -out server.csr -config certificate.conf",
        "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial"
        " -out server.pem -days 1 -sha256 -extfile certificate.conf -extensions server",
    ):
        _make(command.split(), folder)
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def make_node_key(folder: Path, name: str) -> Path:
    """Make a node's key pair; return the private key, beside which `name`.pub is the public one."""
    _make(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name], folder)
    return folder / name


def make_unit_certificates(
    folder: Path, names: Iterable[str], authority: str = "peer-ca"
) -> dict[str, Certificates]:
    """Make an authority and, for each unit, a certificate with the DNS name `unit-<name>`.

    They carry no address: who a server is does not depend on where it listens.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    root = ec.generate_private_key(ec.SECP256R1())
    ca = folder / f"{authority}.crt"
    ca.write_bytes(_certificate(authority, root, authority, root))
    made = {}
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        paths = Certificates(ca, folder / f"unit-{name}.pem", folder / f"unit-{name}.key")
        paths.certificate.write_bytes(_certificate(f"unit-{name}", key, authority, root))
        paths.key.write_bytes(_private(key))
        made[name] = paths
    return made


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    pem: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return pem


def _certificate(name: str, key: Any, issuer: str, signer: Any) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    own, now = key is signer, datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=own, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if own:
        uses = dict.fromkeys(_KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        builder = builder.add_extension(x509.KeyUsage(**uses), critical=True)
    else:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
    signed = builder.sign(signer, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def _make(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
