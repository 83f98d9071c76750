"""Privacy-critical: the peers that a node knows by keys its operator pinned, and what they sign.

An operator makes a long-lived Ed25519 key, and gives its public part to the other operators through
a separate channel, never through the coordinator::

    privet pin /etc/privet/sum.key --agent site-1   # trust-key: this file, for no one else

The peers are a TOML file of agents' names and public keys (base64 of DER, as openssl prints them);
the command prints the node's own line, and collects those of the others::

    "site-1" = "MCowBQYDK2VwAyEAi9..."

Before a sum every node with such a key signs its statement: the run, the round and the attempt, the
names and keys of the whole roster, and the task (`privet.kernel.masks.statement`). It signs one
for each attempt. A node masks its upload only for a roster of which all peers that it has pinned
have signed the statement that it makes itself of the message. So they hold the keys that are on the
roster, and were told the same: whoever replaces a key, repeats an older roster, or tells two nodes
of different rosters, rounds or settings lacks a signature.

Next to the key the node keeps a file of the same name with the suffix ``.used``, an SQLite table of
the masks of all uploads, and of the attempts that were signed: a mask in it is never used again,
however many there are. Two uploads under one mask would let a coordinator average the noise of a
peer away at no cost to the others; and what a node remembers in Flower's context can be lost by a
process that is killed, or that has sent its upload and not yet stored its context.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .errors import MaskError
from .told import Told

KEY_BYTES = 32
SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 or Ed25519 key pair as raw bytes, 32 each."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


@dataclass(frozen=True, slots=True)
class Trust:
    """The long-lived key of a node and the peers that it knows by theirs.

    Attributes
    ----------
    colluders : int
        t: of the peers in a sum at most so many help the observer, or add no noise; -1 where the
        node counts no noise of theirs.
    keys : KeyPair
        Of Ed25519, as the peers' public keys are.
    peers : mapping of str to bytes
        Public keys by agents' names; the node itself may be among them.
    used : Path, optional
        The file of the masks that were used.
    """

    colluders: int
    keys: KeyPair
    peers: Mapping[str, bytes]
    used: Path | None = None

    @classmethod
    def read(cls, colluders: int, key: str, peers: str) -> Trust:
        """Read the node's key and its peers from two files.

        Raises
        ------
        OSError
        ValueError
            Also for a key that others than its owner may read or write; the line names no path.
        """
        pinned = read_peers(Path(peers).read_bytes().decode())
        return cls(colluders, read_key(key), pinned, Path(f"{key}.used"))

    def sign(self, statement: bytes) -> bytes:
        """Return the signature (64 bytes) of a statement, by the node's long-lived key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.keys.private).sign(statement)

    def require_peers(self, me: str, names: Sequence[str], least: int) -> None:
        """Refuse a roster with fewer pinned peers than ``least`` beside this agent (``MaskError``).

        A coordinator may have made up any other agent of it.
        """
        strangers = [name for name in names if name != me and name not in self.peers]
        pinned = len(names) - 1 - len(strangers)
        if pinned < least:
            stranger = f"agent {strangers[0]} is no peer" if strangers else "there is no other peer"
            raise MaskError(
                f"roster: {stranger} whose key this node has pinned; {pinned} are, and this node "
                f"takes part in a sum with {least}"
            )

    def require_signed(
        self, names: Sequence[str], statements: Sequence[bytes], signed: Sequence[bytes]
    ) -> None:
        """Refuse a sum of which a pinned peer has not signed its statement (``MaskError``).

        Parameters
        ----------
        names : sequence of str
            The roster.
        statements : sequence of bytes
            Of each, as this node makes it of the message that asks for its upload.
        signed : sequence of bytes
            What came as the signature (64 bytes) of each; empty where none came.
        """
        for place, name in enumerate(names):
            if name not in self.peers:
                continue
            if not signed or not is_signed(self.peers[name], statements[place], signed[place]):
                raise MaskError(
                    f"roster: agent {name} has not signed these keys, this roster, round and "
                    "settings with the key that this node has pinned",
                    Told.UNSIGNED,
                )

    def use(self, mask: bytes, again: Told = Told.MASKED_BEFORE) -> None:
        """Write down that a mask is used, once for all processes of the node.

        When it returns, that is on the disk.

        Parameters
        ----------
        mask : bytes
            An identifier of the mask, or of an attempt that is signed; never the mask itself.
        again : Told
            What is said if it was used before.

        Raises
        ------
        MaskError
            If it was used before.
        OSError
            If the file cannot be read or written.
        """
        if self.used is None:
            return
        # SQLite would make it readable to all.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(self.used, flags, 0o600))
        try:
            with closing(sqlite3.connect(self.used, timeout=60, isolation_level=None)) as table:
                table.execute("PRAGMA synchronous = EXTRA")
                table.execute(
                    "CREATE TABLE IF NOT EXISTS used (mask BLOB PRIMARY KEY) WITHOUT ROWID"
                )
                table.execute("INSERT INTO used VALUES (?)", (mask,))
        except sqlite3.IntegrityError:
            raise MaskError(again) from None
        except sqlite3.Error as error:
            raise OSError(f"trust-key: the file of used masks: {error}") from error


def read_key(path: str) -> KeyPair:
    """Read a long-lived key.

    Raises
    ------
    OSError
    ValueError
        Also for a key that others than its owner may read or write; the line names no path.
    """
    with Path(path).open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"trust-key is open to others (mode {mode:04o}), expected 0600")
        return _key_pair(file.read())


@lru_cache(maxsize=1024)  # agents of one process have files of their own
def _key_pair(text: bytes) -> KeyPair:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(text, password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("trust-key is not an Ed25519 private key: privet pin makes one")
    return KeyPair(private.private_bytes_raw(), private.public_key().public_bytes_raw())


@lru_cache(maxsize=1024)
def read_peers(text: str) -> Mapping[str, bytes]:
    """Return the public keys of the text of a file of peers, by name.

    Raises
    ------
    ValueError, TypeError
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    pinned: dict[str, bytes] = {}
    for name, line in tomllib.loads(text).items():
        public = load_der_public_key(base64.b64decode(line, validate=True))
        if not isinstance(public, Ed25519PublicKey):
            raise ValueError(f"trust-peers: the key of {name} is not an Ed25519 public key")
        pinned[name] = public.public_bytes_raw()
    if len(set(pinned.values())) != len(pinned):
        raise ValueError("trust-peers: two agents have one key")
    return pinned


def known_by(trust: Trust | None, me: str) -> frozenset[str] | None:
    """Return the agents that no coordinator has made up: this one and its peers.

    None where no keys are pinned.
    """
    return None if trust is None else frozenset({me, *trust.peers})


@lru_cache(maxsize=1 << 14)  # agents of one process are sent the same, and it takes a millisecond
def is_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether a signature is that of a statement by the key of Ed25519."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except InvalidSignature:
        return False
    return True


def make_key(path: Path) -> None:
    """Write a fresh long-lived key into a new file that is its owner's alone.

    Raises
    ------
    OSError
        Also where the file is there: it is not replaced.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Ed25519PrivateKey.generate()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def peer_line(agent: str, public: bytes) -> str:
    """Return the line of an agent in a file of peers, with its raw public key (32 bytes)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PublicKey.from_public_bytes(public)
    written = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"{json.dumps(agent)} = {json.dumps(base64.b64encode(written).decode())}\n"
