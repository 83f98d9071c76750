"""Privacy-critical: the peers that a node trusts to share its noise, by keys its operator pinned.

An operator makes a long-lived X25519 key, and gives its public part to the other operators through
a separate channel, never through the coordinator::

    openssl genpkey -algorithm X25519 -out sum.key          # trust-key: this file, for no one else
    openssl pkey -in sum.key -pubout                        # what the others pin

The peers are a TOML file of agents' names and the line of base64 between the first and the last
of what the second command prints::

    "site-2" = "MCowBQYDK2VuAyEAi9..."

Next to the key the node keeps a file of the same name with the suffix ``.used``, an SQLite table of
the masks of all uploads: a mask in it is never used again, however many there are. Two uploads
under one mask would let a coordinator average the noise of a peer away at no cost to the others;
and what a node remembers in Flower's context can be lost by a process that is killed, or that has
sent its upload and not yet stored its context.
"""

from __future__ import annotations

import base64
import os
import sqlite3
import stat
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from .errors import MaskError
from .told import Told

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 key pair as raw bytes, 32 each."""

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
        t: of the peers in a sum at most so many help the observer, or add no noise.
    keys : KeyPair
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
        with Path(key).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"trust-key is open to others (mode {mode:04o}), expected 0600")
            text = file.read()
        trust = _read(colluders, text, Path(peers).read_bytes())
        return replace(trust, used=Path(f"{key}.used"))

    def use(self, mask: bytes) -> None:
        """Write down that a mask is used, once for all processes of the node.

        When it returns, that is on the disk.

        Parameters
        ----------
        mask : bytes
            An identifier of the mask, never the mask itself.

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
            raise MaskError(Told.MASKED_BEFORE) from None
        except sqlite3.Error as error:
            raise OSError(f"trust-key: the file of used masks: {error}") from error


@lru_cache(maxsize=1024)  # agents of one process have files of their own
def _read(colluders: int, key: bytes, peers: bytes) -> Trust:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.serialization import (
        load_der_public_key,
        load_pem_private_key,
    )

    private = load_pem_private_key(key, password=None)
    if not isinstance(private, X25519PrivateKey):
        raise ValueError("trust-key is not an X25519 private key")
    pinned: dict[str, bytes] = {}
    for name, text in tomllib.loads(peers.decode()).items():
        public = load_der_public_key(base64.b64decode(text, validate=True))
        if not isinstance(public, X25519PublicKey):
            raise ValueError(f"trust-peers: the key of {name} is not an X25519 public key")
        pinned[name] = public.public_bytes_raw()
    if len(set(pinned.values())) != len(pinned):
        raise ValueError("trust-peers: two agents have one key")
    public_bytes = private.public_key().public_bytes_raw()
    return Trust(colluders, KeyPair(private.private_bytes_raw(), public_bytes), pinned)
