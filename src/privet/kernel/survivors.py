"""Privacy-critical: a secure sum that opens without the agents that dropped out of it.

Double masking with shared secrets (Bonawitz et al., CCS 2017). For every sum an agent draws a key
pair of X25519 for its pairwise masks, one of Ed25519, and a seed b of a mask of its own; it shares
b and the seed k of its X25519 key by Shamir's scheme over GF(2^128), so that t of the n agents of
the roster find either, and fewer nothing of it. Its upload is

    encoding + ChaCha20(HKDF(b)) + masks of the pairs (`privet.kernel.masks`)     modulo 2^64

The coordinator then states one list U of the agents whose uploads it adds. Each of them signs one
list, and gives its own b, and of every other agent one share: that of b where the agent is on the
list, that of k where it is not (`share_to_give`); once, and only for a list of at least t agents
that t of them have signed. So b and k of one agent are never both found: with c agents that help
the coordinator two lists have 2 t - 2 c honest signatures of n - c honest agents at most, each of
whom signs once, and `require_threshold` has 2 t > n + c. The upload of an agent that is not on the
list stays masked by its b, also one that comes late; and as all keys are drawn for this sum, what
is found opens no other. docs/privacy-proofs.md has the proof with the rest of the protocol.

Shamir's scheme is pycryptodome's, of 16 bytes, as Flower's own secure aggregation takes it; a
share is bound to its giver's place on the roster, counted from 1. Seeds become keys by HKDF-SHA256.
On their way through the coordinator shares are sealed with ChaCha20-Poly1305 under a key of the two
agents' keys of the run, which no share is of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from .errors import MaskError
from .masks import (
    LEAST_MEMBERS,
    Binding,
    PairwiseMasks,
    Words,
    apply_streams,
    key_stream,
    pair_secret,
    private_key,
    statement,
)
from .shares import split
from .trust import KEY_BYTES, KeyPair, is_signed

SEED_BYTES = 16
"""Bytes of a seed, and of a share of one."""
SHARE_BYTES = 2 * SEED_BYTES
"""Bytes of what an agent is given of another: a share of b, then one of k."""
SEALED_BYTES = SHARE_BYTES + 16
"""Bytes of them as they travel."""
SUM_KEY_BYTES = 2 * KEY_BYTES
"""Bytes of an agent's public keys of a sum: of X25519, then of Ed25519."""
LEAST_COLLUDERS = 1
"""Agents of any roster that are taken to be in league with the coordinator, at least."""
MOST_SHARING = 100
"""Agents of such a sum at most: to find n secrets takes a coordinator n t^2 products, some 20 s."""


@dataclass(frozen=True, slots=True)
class SumSecrets:
    """What an agent draws for one sum: b (16 bytes), k (16), and a key of Ed25519 (32)."""

    own: bytes
    pair: bytes
    signing: bytes

    def __repr__(self) -> str:
        return "SumSecrets()"

    @classmethod
    def fresh(cls) -> SumSecrets:
        """Draw them from the operating system's entropy."""
        return cls(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES), os.urandom(KEY_BYTES))

    @property
    def public(self) -> bytes:
        """The public keys (64 bytes)."""
        return _public(self.pair, self.signing)

    def sign(self, said: bytes) -> bytes:
        """Return the signature (64 bytes) of a list of survivors."""
        signature: bytes = _signing_key(self.signing).sign(said)
        return signature

    def shares(self, threshold: int, count: int) -> list[bytes]:
        """Return what each of ``count`` agents is given (32 bytes each), in the roster's order."""
        own, pair = (split(threshold, count, secret) for secret in (self.own, self.pair))
        return [b"".join(both) for both in zip(own, pair, strict=True)]


@dataclass(frozen=True)
class SharedSum:
    """What the agents of one sum have agreed on before they upload.

    Attributes
    ----------
    run : Binding
        The sum, with the agents' keys of the run.
    threshold : int
        t, the shares that find a secret.
    keys : tuple of bytes
        The public keys of the sum (64 bytes each), in the roster's order.
    """

    run: Binding
    threshold: int
    keys: tuple[bytes, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the roster; the places of `marks` and of shares are theirs."""
        return self.run.names

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it, the order of the names included."""
        listed = json.dumps([self.threshold, *self.names]).encode()
        head = len(listed).to_bytes(8, "big") + listed
        return hashlib.sha256(head + b"".join(self.keys) + statement(self.run)).digest()

    @cached_property
    def binding(self) -> Binding:
        """What the pairwise masks of this sum are bound to: the keys drawn for it, and the rest."""
        run = self.run
        roster = ((n, key[:KEY_BYTES]) for n, key in zip(self.names, self.keys, strict=True))
        return Binding(run.experiment, run.round, run.attempt, tuple(roster), self.digest)

    def marks(self, survivors: Collection[str]) -> bytes:
        """Return a list of survivors as it is signed and sent: a byte 1 or 0 for each name."""
        listed = set(survivors)
        return bytes(name in listed for name in self.names)

    def listed(self, marks: bytes) -> tuple[str, ...]:
        """Return the survivors of ``marks`` (raises ``MaskError``)."""
        if len(marks) != len(self.names) or not set(marks) <= {0, 1}:
            raise MaskError("survivors: the list is none of this sum's agents")
        return tuple(name for name, mark in zip(self.names, marks, strict=True) if mark)

    def said(self, survivors: Collection[str]) -> bytes:
        """Return the statement of a list of survivors, which each of them signs."""
        return b"privet-survivors" + self.digest + self.marks(survivors)

    def require_survivors(self, me: str, survivors: Collection[str]) -> None:
        """Refuse a list without this agent, or of fewer agents than find a secret.

        Raises
        ------
        MaskError
        """
        if me not in survivors:
            raise MaskError(f"survivors: agent {me} is not on the list")
        if len(survivors) < self.threshold:
            raise MaskError(
                f"survivors: {len(survivors)} are listed, and sum-threshold is {self.threshold}"
            )

    def require_signed(self, survivors: Collection[str], signed: Sequence[bytes]) -> None:
        """Refuse a list that fewer than t of its agents have signed.

        Parameters
        ----------
        signed : sequence of bytes
            What came as the signature (64 bytes) of each name on the roster.

        Raises
        ------
        MaskError
        """
        said, listed = self.said(survivors), set(survivors)
        have = 0
        for name, key, signature in zip(self.names, self.keys, signed, strict=True):
            have += name in listed and is_signed(key[KEY_BYTES:], said, signature)
            if have == self.threshold:  # each takes as long as some 70,000 numbers of a mask
                return
        raise MaskError(
            f"survivors: {have} of those listed have signed this list, and sum-threshold is "
            f"{self.threshold}"
        )


@dataclass(frozen=True, slots=True)
class DoubleMasks:
    """An agent's masks of one sum: those of its pairs, and its own."""

    shared: SharedSum
    secrets: SumSecrets

    @property
    def private(self) -> bool:
        """True: fewer than t agents know nothing of its own mask."""
        return True

    def require(self, me: str, binding: Binding) -> None:
        """Refuse what `PairwiseMasks` refuses, and any sum but this one."""
        if binding != self.shared.binding:
            raise MaskError("the masks are of another sum")
        PairwiseMasks(pair_keys_of(self.secrets.pair)).require(me, binding)

    def apply(self, words: Words, me: str, binding: Binding) -> None:
        """Add the agent's own mask and the masks of its pairs, in place."""
        self.require(me, binding)
        keys = PairwiseMasks(pair_keys_of(self.secrets.pair)).pair_keys(me, binding)
        streams = [(me < other, key_stream(key)) for other, key in keys.items()]
        apply_streams(words, [*streams, (True, _own_stream(self.secrets.own, self.shared))])


def require_threshold(threshold: int, count: int, colluders: int) -> None:
    """Refuse a t with which two lists of one sum could both be signed: 2 t > n + c.

    Parameters
    ----------
    count : int
        n, the agents on the roster.
    colluders : int
        c, those of them that may help the coordinator.

    Raises
    ------
    MaskError
    """
    if count > MOST_SHARING:
        raise MaskError(
            f"sum-threshold = {threshold}: of at most {MOST_SHARING} agents, and the roster has "
            f"{count}"
        )
    least = max((count + colluders) // 2 + 1, LEAST_MEMBERS)
    if not least <= threshold <= count:
        raise MaskError(
            f"sum-threshold = {threshold}: of {count} agents of whom {colluders} may help the "
            f"coordinator, "
            + (f"it is {least} to {count}" if least <= count else "no number of them is enough")
        )


def keys_statement(run: Binding, threshold: int, public: bytes) -> bytes:
    """Return what a node with pinned keys signs of its public keys of a sum (64 bytes)."""
    return b"privet-sum-keys" + threshold.to_bytes(4, "big") + public + statement(run)


@lru_cache(maxsize=1 << 10)
def _public(pair: bytes, signing: bytes) -> bytes:
    signs: bytes = _signing_key(signing).public_key().public_bytes_raw()
    return pair_keys_of(pair).public + signs


@lru_cache(maxsize=1 << 10)  # it is read once, and signs what is said of the keys and of the list
def _signing_key(signing: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(signing)


@lru_cache(maxsize=1 << 10)  # an upload takes it three times, and it is an agreement's work
def pair_keys_of(seed: bytes) -> KeyPair:
    """Return the key pair of X25519 of the seed k."""
    private = _derived(seed, b"privet-sum-pair")
    return KeyPair(private, private_key(private).public_key().public_bytes_raw())


def share_to_give(shares: bytes, *, survives: bool) -> bytes:
    """Return the one share (16 bytes) that an agent gives of another: of b, or else of k."""
    return shares[:SEED_BYTES] if survives else shares[SEED_BYTES:SHARE_BYTES]


@dataclass(frozen=True)
class Boxes:
    """What an agent seals the shares for others in, and opens those for itself with.

    Attributes
    ----------
    keys : KeyPair
        The agent's own, of the run.
    run : Binding
        The sum.
    """

    keys: KeyPair
    run: Binding

    def sealed(self, public: bytes, shares: Mapping[str, bytes]) -> list[bytes]:
        """Return the shares that this agent gives (48 bytes each), in the roster's order.

        Parameters
        ----------
        public : bytes
            Its public keys of the sum: drawn for it, so that no key seals twice.
        shares : mapping of str to bytes
            By name (32 bytes each); who is given none has zeros.

        Raises
        ------
        MaskError
            If a public key on the roster is not usable.
        """
        return [
            self._box(public, name, self._me, name).encrypt(bytes(12), shares[name], None)
            if name in shares
            else bytes(SEALED_BYTES)
            for name in self.run.names
        ]

    def opened(self, giver: str, public: bytes, sealed: bytes) -> bytes | None:
        """Return the shares (32 bytes) that ``giver`` has sealed for this agent, None if none.

        ``public`` are the giver's public keys of the sum.
        """
        from cryptography.exceptions import InvalidTag

        try:
            box = self._box(public, giver, giver, self._me)
            shares: bytes = box.decrypt(bytes(12), sealed, None)
        except InvalidTag:
            return None
        return shares if len(shares) == SHARE_BYTES else None

    @cached_property
    def _me(self) -> str:
        return next((name for name, key in self.run.roster if key == self.keys.public), "")

    @cached_property
    def _roster(self) -> dict[str, bytes]:
        return dict(self.run.roster)

    @cached_property
    def _said(self) -> bytes:
        return statement(self.run)

    def _box(self, public: bytes, other: str, giver: str, taker: str) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        secret = pair_secret(self.keys.private, self._roster[other], self.run.experiment)
        if secret is None:
            raise MaskError("roster: a public key is not usable with X25519")
        names = f"{len(giver)} {giver}{taker}".encode()  # read in one way only
        info = b"privet-share" + public + names + self._said
        return ChaCha20Poly1305(HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret))


def open_sum(
    words: Words,
    shared: SharedSum,
    survivors: Collection[str],
    given: Mapping[str, Mapping[str, bytes]],
    own: Mapping[str, bytes],
) -> None:
    """Take the masks off the sum of the survivors' uploads, in place, as the coordinator does.

    Parameters
    ----------
    words : uint64 array
        The sum modulo 2^64.
    given : mapping of str to (mapping of str to bytes)
        By giver, the share (16 bytes) of each other agent.
    own : mapping of str to bytes
        By giver, b itself: shares find those of the survivors who gave nothing.

    Raises
    ------
    MaskError
        If fewer than t shares of an agent came, or they do not give the key that it shared.
    """
    listed, streams = set(survivors), []
    places = {name: place for place, name in enumerate(shared.names, 1)}
    for name, public in zip(shared.names, shared.keys, strict=True):
        if name in listed and name in own:
            streams.append((False, _own_stream(own[name], shared)))
            continue
        shares = [(places[giver], of[name]) for giver, of in given.items() if name in of]
        if len(shares) < shared.threshold:
            raise MaskError(
                f"{len(shares)} agents gave a share of agent {name}, and sum-threshold is "
                f"{shared.threshold}"
            )
        seed = _combined(shares[: shared.threshold])
        if name in listed:
            streams.append((False, _own_stream(seed, shared)))
            continue
        keys = pair_keys_of(seed)
        if keys.public != public[:KEY_BYTES]:
            raise MaskError(f"the shares of agent {name} do not give its key")
        for other, key in PairwiseMasks(keys).pair_keys(name, shared.binding).items():
            if other in listed:
                streams.append((name < other, key_stream(key)))
    apply_streams(words, streams)


def _combined(shares: list[tuple[int, bytes]]) -> bytes:
    from Crypto.Protocol.SecretSharing import Shamir

    seed: bytes = Shamir.combine(shares, ssss=False)
    return seed


def _own_stream(seed: bytes, shared: SharedSum) -> Any:
    return key_stream(_derived(seed, b"privet-own-mask" + shared.digest))


def _derived(seed: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, None, info).derive(seed)
