"""Certificates and node keys for deployments and servers on loopback, valid for a day."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey
LOOPBACK = ("127.0.0.1", "::1")
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
    """Make an authority and a certificate of a server on loopback."""
    local = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(a)) for a in LOOPBACK)]
    return _make(folder, "ca", {"server": local})["server"]


def make_node_key(folder: Path, name: str) -> Path:
    """Make a node's key pair; return the private key, beside which `name`.pub is the public one."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name]
    subprocess.run(command, cwd=folder, check=True)
    return folder / name


def make_unit_certificates(
    folder: Path, names: Iterable[str], authority: str = "peer-ca"
) -> dict[str, Certificates]:
    """Make an authority and, for each unit, a certificate with the DNS name `unit-<name>`.

    They carry no address: who a server is does not depend on where it listens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = _make(folder, authority, {f"unit-{n}": [x509.DNSName(f"unit-{n}")] for n in names})
    return {name.removeprefix("unit-"): paths for name, paths in made.items()}


def _make(
    folder: Path, authority: str, names: Mapping[str, list[x509.GeneralName]]
) -> dict[str, Certificates]:
    root = ec.generate_private_key(ec.SECP256R1())
    ca = folder / f"{authority}.crt"
    ca.write_bytes(_certificate(authority, root, authority, root))
    made = {}
    for name, known_as in names.items():
        key = ec.generate_private_key(ec.SECP256R1())
        paths = Certificates(ca, folder / f"{name}.pem", folder / f"{name}.key")
        paths.certificate.write_bytes(_certificate(name, key, authority, root, known_as))
        paths.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        made[name] = paths
    return made


def _certificate(
    name: str, key: Key, issuer: str, signer: Key, known_as: Iterable[x509.GeneralName] = ()
) -> bytes:
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
        builder = builder.add_extension(x509.SubjectAlternativeName(known_as), critical=False)
    signed = builder.sign(signer, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)
