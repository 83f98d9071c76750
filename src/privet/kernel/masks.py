"""Privacy-critical: pairwise masks. One upload looks random to the server, the sum does not.

Every two agents p < q of a round share a secret; p adds the words drawn from it to its upload and
q subtracts them, modulo 2^64. Over the whole roster the masks cancel exactly, whatever one is
missing leaves random numbers (Rizk, Vlaski, Sayed, "Privatized Graph Federated Learning",
eq. (48); the construction is that of Bonawitz et al., CCS 2017, without secret shares: a roster is
agreed on first, and a round that loses an agent is repeated with a new one).

    shared   = X25519(own private key, other's public key)            once per pair and experiment
    key      = HKDF-SHA256(shared; experiment | round, attempt, digests of roster and task, p, q)
    mask     = ChaCha20(key), read as little-endian 64-bit words

The digests cover the names *and the public keys* of the roster, and the settings and arrays that
the round's agents were sent, so that agents who were shown different ones share no mask.

What it protects: one agent's upload from a server that follows the protocol and is curious. What
it does not: the keys pass through the server, and one that replaces them reads everything; the
sum itself is released; the agents of a roster together can uncover one of them.

Pinned keys. A node whose operator has pinned the long-lived keys of peers (`privet.kernel.trust`)
masks an upload only where each of those on the roster has signed the `statement` of the sum: a
server that replaces their keys, or shows agents different rosters, gets no upload at all.

Explicit masks. ``GivenMasks`` stands in for the key agreement when a worked instance is replayed::

    words = {("0", "1"): ring.encode({"psi": mask}, 2).words}      # of the pair "0" < "1"
    client_app(..., mask_factory=lambda agent, round_: GivenMasks(words))

"0" adds the words and "1" subtracts them. Such a run is not private.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import MaskError
from .trust import KEY_BYTES, KeyPair

LEAST_MEMBERS = 3
"""With two agents, each reads the other's upload from the sum."""
MOST_MEMBERS = 10_000
"""Each further agent takes a key agreement of some 50 microseconds, of whoever is on the list."""

_CHUNK = 1 << 14
"""Words that are worked on at a time: they stay in the processor's cache."""

Words: TypeAlias = NDArray[np.uint64]

MOST_SECRETS = 1 << 17
"""Pairs whose secrets are kept: those of 1,000 agents with neighbours of their own, twice."""
_secrets: dict[tuple[bytes, bytes, str], bytes | None] = {}


@dataclass(frozen=True)
class Binding:
    """The context that a mask is bound to; a mask is used once.

    Attributes
    ----------
    experiment : str
        The run.
    round, attempt : int
        Counted from 1.
    roster : tuple of (name, public key)
        The agents whose uploads are added.
    task : bytes
        Digest (32 bytes) of the agents' instruction: the settings and the broadcast.
    """

    experiment: str
    round: int
    attempt: int
    roster: tuple[tuple[str, bytes], ...]
    task: bytes = b""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names on the roster."""
        return tuple([name for name, _ in self.roster])


class MaskSource(Protocol):
    """The source of an agent's masks."""

    @property
    def private(self) -> bool:
        """False where the masks are known to others."""
        ...

    def require(self, me: str, binding: Binding) -> None:
        """Refuse a roster that this agent's upload must not be summed with.

        Raises
        ------
        MaskError
        """
        ...

    def apply(self, words: Words, me: str, binding: Binding) -> None:
        """Add this agent's mask to its encoded upload, in place (raises ``MaskError``)."""
        ...


def is_usable(public: bytes) -> bool:
    """Return whether X25519 can agree on a secret with a public key: not with one of low order.

    That is so of every private key or of none.
    """
    return _agreed(_any_key(), public, "") is not None


@lru_cache(maxsize=1)
def _any_key() -> bytes:
    return key_pair().private


def key_pair() -> KeyPair:
    """Return a fresh key pair from the operating system's entropy."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.generate()
    return KeyPair(private.private_bytes_raw(), private.public_key().public_bytes_raw())


@dataclass(frozen=True, slots=True)
class PairwiseMasks:
    """Masks by key agreement, as the module's page describes.

    Attributes
    ----------
    keys : KeyPair
        Those of the run.
    """

    keys: KeyPair

    @property
    def private(self) -> bool:
        """True: only the two agents of a pair know its mask."""
        return True

    def require(self, me: str, binding: Binding) -> None:
        """Refuse a roster of fewer than three, of doubtful names or keys, or without this agent."""
        require_roster(binding.roster, me, self.keys.public)
        for other, public in binding.roster:
            if other != me:
                secret_with(self.keys, other, public, binding.experiment)

    def apply(self, words: Words, me: str, binding: Binding) -> None:
        """Add the masks shared with later names, subtract those shared with earlier ones."""
        self.require(me, binding)
        keys = self.pair_keys(me, binding)
        apply_streams(words, [(me < other, key_stream(key)) for other, key in keys.items()])

    def pair_keys(self, me: str, binding: Binding) -> dict[str, bytes]:
        """Return the 32-byte key of the mask shared with every other agent of the roster.

        Raises
        ------
        MaskError
            If a public key is not usable.
        """
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        number = f"privet-mask {binding.round} {binding.attempt} ".encode()
        bound = number + roster_digest(binding.roster) + binding.task
        derived: dict[str, bytes] = {}
        for other, public in binding.roster:
            if other == me:
                continue
            secret = secret_with(self.keys, other, public, binding.experiment)
            pair = (me, other) if me < other else (other, me)
            info = bound + json.dumps(pair).encode()
            derived[other] = HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret)
        return derived


@dataclass(frozen=True, slots=True)
class GivenMasks:
    """Masks handed in from outside, by pair of names in order: not private.

    A roster of two is allowed.
    """

    pairs: Mapping[tuple[str, str], Words]

    @property
    def private(self) -> bool:
        """False: whoever gave the masks knows them."""
        return False

    def require(self, me: str, binding: Binding) -> None:
        """Refuse a roster without this agent, or with a pair that no mask is given for."""
        _require_names(binding.names, me, 2)
        for other in binding.names:
            pair = (min(me, other), max(me, other))
            if other != me and pair not in self.pairs:
                raise MaskError(f"no mask is given for agents {pair[0]} and {pair[1]}")

    def apply(self, words: Words, me: str, binding: Binding) -> None:
        """Add or subtract the given words; words beyond the mask's length stay as they are."""
        self.require(me, binding)
        for other in binding.names:
            if other == me:
                continue
            pair = (min(me, other), max(me, other))
            mask = self.pairs[pair]
            part = words[: mask.size]
            (np.add if me < other else np.subtract)(part, mask, out=part)


def require_roster(roster: Sequence[tuple[str, bytes]], me: str, public: bytes) -> None:
    """Refuse a roster that an upload must not be summed with.

    Raises
    ------
    MaskError
        With fewer than three agents, a name or a key twice, or without this agent under its own
        key.
    """
    names = [name for name, _ in roster]
    _require_names(names, me, LEAST_MEMBERS)
    keys = dict(roster)
    for name, key in roster:
        if len(key) != KEY_BYTES:
            raise MaskError(f"roster: public key of agent {name} has {len(key)} bytes, not 32")
    if keys[me] != public:
        raise MaskError(f"roster: agent {me} is listed with a public key that is not its own")
    if len(set(keys.values())) != len(keys):
        raise MaskError("roster: two agents are listed with one public key")


def _require_names(names: Sequence[str], me: str, least: int) -> None:
    if not least <= len(names) <= MOST_MEMBERS:
        raise MaskError(
            f"roster of {len(names)} agents: a secure sum needs at least {least}"
            if len(names) < least
            else f"roster of {len(names)} agents: at most {MOST_MEMBERS}"
        )
    if len(set(names)) != len(names):
        raise MaskError("roster: an agent is listed twice")
    if me not in names:
        raise MaskError(f"agent {me} is not on the roster")


def roster_digest(roster: Sequence[tuple[str, bytes]]) -> bytes:
    """Return SHA-256 of the names and public keys, whatever their order."""
    listed = sorted((name, key.hex()) for name, key in roster)
    return hashlib.sha256(json.dumps(listed).encode()).digest()


@lru_cache(maxsize=64)  # it is the same for all shares of a sum
def statement(binding: Binding) -> bytes:
    """Return what the nodes with pinned keys sign before a sum: all that it is bound to.

    Two bindings have one statement only where they agree in everything but the order of names.
    """
    number = json.dumps([binding.experiment, binding.round, binding.attempt]).encode()
    return b"privet-roster" + roster_digest(binding.roster) + binding.task + number


def pair_secret(keys: KeyPair, public: bytes, experiment: str) -> bytes | None:
    """Return HKDF-Extract of the Diffie-Hellman secret of two keys.

    None for a key of low order. Kept, because it is the same in every round and costs more than a
    short key stream: by the two public keys, so that a process that plays both agents of a pair
    agrees once.
    """
    mine = keys.public
    pair = (mine, public, experiment) if mine < public else (public, mine, experiment)
    try:
        return _secrets[pair]
    except KeyError:
        secret = _agreed(keys.private, public, experiment)
    if len(_secrets) >= MOST_SECRETS:
        _secrets.clear()
    _secrets[pair] = secret
    return secret


def secret_with(keys: KeyPair, other: str, public: bytes, experiment: str) -> bytes:
    """Return `pair_secret`, refused for a key of low order with a line that names its agent.

    Raises
    ------
    MaskError
    """
    secret = pair_secret(keys, public, experiment)
    if secret is None:
        raise MaskError(f"roster: public key of agent {other} is not usable with X25519")
    return secret


def _agreed(private: bytes, public: bytes, experiment: str) -> bytes | None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        agreed = private_key(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return None
    return hmac.digest(experiment.encode(), agreed, "sha256")


@lru_cache(maxsize=1 << 10)
def private_key(private: bytes) -> Any:
    """Return a private key of X25519; reading it takes as long as an agreement: it is kept."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def key_stream(key: bytes) -> Any:
    """Return the ChaCha20 key stream; a key is used for one stream only, so its nonce is zero."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()


def apply_streams(words: Words, streams: Sequence[tuple[bool, Any]]) -> None:
    """Add (True) or subtract (False) key streams to words modulo 2^64, in place, part by part."""
    steps: list[tuple[Callable[..., Any], Any]] = [
        (np.add if adds else np.subtract, stream.update_into) for adds, stream in streams
    ]
    size = min(_CHUNK, words.size)
    nothing, drawn = memoryview(bytes(8 * size)), bytearray(8 * size)
    mask = np.frombuffer(drawn, "<u8")
    for start in range(0, words.size, _CHUNK):
        part = words[start : start + _CHUNK]
        zeros, here = nothing[: part.nbytes], mask[: part.size]
        for combine, draw in steps:
            draw(zeros, drawn)
            combine(part, here, out=part)
