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

Of more than `MOST_COMPLETE` agents each has neighbours that it draws (`NeighbourSum`,
`privet.kernel.neighbours`): they share masks with it, and hold its shares. t is of these, and an
agent gives what it holds where t of those that hold its own shares have signed the list that it
has. Its own b it gives after that, where t of them say that they have given theirs: signatures
alone do not tell that their keys are not found by another list. Who has given shares takes part in
no further attempt of the round.

Shamir's scheme is pycryptodome's, of 16 bytes, as Flower's own secure aggregation takes it; a
share is bound to its holder's place among those who are given one, counted from 1. Seeds become
keys by HKDF-SHA256. On their way through the coordinator shares are sealed with ChaCha20-Poly1305
under a key of the two agents' keys of the run, which no share is of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress, repeat
from typing import Any

from .errors import MaskError
from .masks import (
    LEAST_MEMBERS,
    Binding,
    PairwiseMasks,
    Words,
    apply_streams,
    key_stream,
    private_key,
    secret_with,
    statement,
)
from .neighbours import MOST_CHOOSERS, MOST_COMPLETE, NEIGHBOURS, draw, least_threshold
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
OTHER_KEYS = "secure sum: this agent has drawn no keys for this sum, or other ones"
MOST_CHECKED = 25_000
"""n t^2 of a sum whose agents' own seeds are compared with shares, at 40 microseconds each."""
LEAST_COLLUDERS = 1
"""Agents of any roster that are taken to be in league with the coordinator, at least."""


class SpoiltError(MaskError):
    """The shares of one agent, of which the sum needs a secret, do not give it.

    Attributes
    ----------
    name : str
        That agent. It has sealed wrong shares, or who holds one has given another.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


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
        """Return what each of ``count`` holders is given (32 bytes each), in their order."""
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
        The public keys of the sum (64 bytes each), in the roster's order; empty before they are
        known.
    """

    run: Binding
    threshold: int
    keys: tuple[bytes, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the roster; the places of `marks` are theirs."""
        return self.run.names

    def holders(self, name: str) -> tuple[str, ...]:
        """Return who is given shares of an agent, in the order of their points: all."""
        return self.names

    def givers(self, name: str) -> tuple[str, ...]:
        """Return of whom an agent is given shares, itself possibly among them."""
        return self.names

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return whose keys of the sum an agent is told, in this order."""
        return self.names

    def told(self, agent: str, public: bytes, keys: Sequence[bytes], choosers: bytes) -> SharedSum:
        """Return the sum as an agent uploads to it.

        Parameters
        ----------
        agent : str
        public : bytes
            The public keys that it has drawn.
        keys : sequence of bytes
            Those of its `neighbours`, as it is told.
        choosers : bytes
            Who has drawn it, of `NeighbourSum` alone.

        Raises
        ------
        MaskError
            If they are not of the sum that the agent has drawn keys for.
        """
        place = self.names.index(agent)
        if choosers or len(keys) != len(self.names) or keys[place] != public:
            raise MaskError(OTHER_KEYS)
        return _complete(self.run, self.threshold, tuple(keys))

    def key_of(self, name: str) -> bytes:
        """Return an agent's public keys of the sum."""
        return self._keys[name]

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        return dict(zip(self.names, self.keys, strict=True))

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

    def require_usable(self, me: str, pair: KeyPair) -> None:
        """Refuse keys that no masks can be made of (raises ``MaskError``)."""
        PairwiseMasks(pair).require(me, self.binding)

    def mask_keys(self, name: str, pair: KeyPair) -> dict[str, bytes]:
        """Return the keys (32 bytes) of the masks that an agent shares, by its key pair."""
        return PairwiseMasks(pair).pair_keys(name, self.binding)

    def marks(self, survivors: Collection[str]) -> bytes:
        """Return a list of survivors as it is signed and sent: a byte 1 or 0 for each name."""
        return bytes(map(set(survivors).__contains__, self.names))

    def listed(self, marks: bytes) -> tuple[str, ...]:
        """Return the survivors of ``marks`` (raises ``MaskError``)."""
        if len(marks) != len(self.names) or not set(marks) <= {0, 1}:
            raise MaskError("survivors: the list is none of this sum's agents")
        return tuple(compress(self.names, marks))

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

    def require_signed(self, me: str, survivors: Collection[str], signed: Sequence[bytes]) -> None:
        """Refuse a list that fewer than t of its agents, who hold this one's shares, have signed.

        Parameters
        ----------
        signed : sequence of bytes
            What came as the signature (64 bytes) of each of `holders`.

        Raises
        ------
        MaskError
        """
        said, listed, have = self.said(survivors), set(survivors), 0
        for name, signature in zip(self.holders(me), signed, strict=True):
            have += name in listed and is_signed(self.key_of(name)[KEY_BYTES:], said, signature)
            if have == self.threshold:  # each takes as long as some 70,000 numbers of a mask
                return
        raise MaskError(
            f"survivors: {have} of those listed have signed this list, and sum-threshold is "
            f"{self.threshold}"
        )

    @property
    def gave(self) -> bytes:
        """The statement of an agent that it has given its shares of this sum."""
        return b"privet-gave-shares" + self.digest


@dataclass(frozen=True)
class NeighbourSum(SharedSum):
    """A sum of more than `MOST_COMPLETE` agents, each with the neighbours that it has drawn.

    An agent knows its own, and who has drawn it; the coordinator all. ``keys`` are empty of agents
    that are not known.

    Attributes
    ----------
    drawn : mapping of str to tuple of str
        By name in the roster's order, whom an agent has drawn, in the same; at an agent, of those
        who have drawn it, itself alone, and its own last.
    """

    drawn: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def holders(self, name: str) -> tuple[str, ...]:
        """Return who is given shares of an agent, in the order of their points: whom it drew."""
        return self.drawn[name]

    def givers(self, name: str) -> tuple[str, ...]:
        """Return of whom an agent is given shares: who drew it, in the roster's order."""
        return self._givers.get(name, ())

    @cached_property
    def _givers(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name, holders in self.drawn.items():
            for holder in holders:
                found.setdefault(holder, []).append(name)
        return {holder: tuple(names) for holder, names in found.items()}

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return with whom an agent shares masks: whom it drew, then who drew it, each once."""
        return tuple(dict.fromkeys((*self.holders(name), *self.givers(name))))

    def told(
        self, agent: str, public: bytes, keys: Sequence[bytes], choosers: bytes
    ) -> NeighbourSum:
        """Return the sum as an agent uploads to it, as `SharedSum.told`.

        ``choosers`` is a byte 1 or 0 for each name: whether it has drawn this agent.
        """
        if len(choosers) != len(self.names) or not set(choosers) <= {0, 1}:
            raise MaskError("secure sum: who has drawn this agent is none of this sum's agents")
        drew = list(compress(self.names, choosers))
        if agent in drew or len(drew) > MOST_CHOOSERS:
            raise MaskError(f"secure sum: {len(drew)} agents are said to have drawn this one")
        drawn = {**dict.fromkeys(drew, (agent,)), agent: self.drawn[agent]}
        seen = NeighbourSum(self.run, self.threshold, (), drawn)
        neighbours = seen.neighbours(agent)
        if len(keys) != len(neighbours):
            raise MaskError(OTHER_KEYS)
        known = {**dict(zip(neighbours, keys, strict=True)), agent: public}
        every = tuple(map(known.get, self.names, repeat(b"")))
        return NeighbourSum(self.run, self.threshold, every, drawn)

    def require_given(self, me: str, signed: Sequence[bytes]) -> None:
        """Refuse to give an agent's own seed before t of those that hold its shares gave theirs.

        Parameters
        ----------
        signed : sequence of bytes
            What came as the signature of `gave` (64 bytes) by each of `holders`.

        Raises
        ------
        MaskError
        """
        have = 0
        for name, signature in zip(self.holders(me), signed, strict=True):
            have += is_signed(self.key_of(name)[KEY_BYTES:], self.gave, signature)
            if have == self.threshold:
                return
        raise MaskError(
            f"survivors: {have} of those who hold shares of this agent have given theirs, and "
            f"sum-threshold is {self.threshold}"
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of what all agents know of the sum: its keys are known to neighbours."""
        return _sparse_digest(self.run, self.threshold)

    @cached_property
    def binding(self) -> Binding:
        """The sum, with the agents' keys of the run."""
        run = self.run
        return Binding(run.experiment, run.round, run.attempt, run.roster, self.digest)

    def require_usable(self, me: str, pair: KeyPair) -> None:
        """Refuse keys that no masks can be made of (raises ``MaskError``)."""
        keys = [self.key_of(name)[:KEY_BYTES] for name in (me, *self.neighbours(me))]
        if keys[0] != pair.public:
            raise MaskError(OTHER_KEYS)
        if len(set(keys)) != len(keys):
            raise MaskError("secure sum: two neighbours are said to have one public key")
        for name in self.neighbours(me):
            self._secret(name, pair)

    def mask_keys(self, name: str, pair: KeyPair) -> dict[str, bytes]:
        """Return the keys (32 bytes) of the masks that an agent shares, by its key pair.

        HKDF-SHA256 of the two agents' secret, bound to the sum, and to names and keys of both.
        """
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        derived: dict[str, bytes] = {}
        for other in self.neighbours(name):
            secret, public = self._secret(other, pair), self.key_of(other)[:KEY_BYTES]
            both = sorted([[name, pair.public.hex()], [other, public.hex()]])
            info = b"privet-sparse-mask" + self.digest + json.dumps(both).encode()
            derived[other] = HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret)
        return derived

    def _secret(self, other: str, pair: KeyPair) -> bytes:
        public = self.key_of(other)[:KEY_BYTES]
        return secret_with(pair, other, public, self.run.experiment)


@lru_cache(maxsize=4)  # it is the same for all agents of one process, in each of their messages
def _complete(run: Binding, threshold: int, keys: tuple[bytes, ...]) -> SharedSum:
    return SharedSum(run, threshold, keys)


@lru_cache(maxsize=4)
def _sparse_digest(run: Binding, threshold: int) -> bytes:
    listed = json.dumps([NEIGHBOURS, threshold, *run.names]).encode()
    return hashlib.sha256(b"privet-sparse" + listed + statement(run)).digest()


def begun(run: Binding, threshold: int, agent: str) -> SharedSum:
    """Return the sum that an agent draws keys for; of many agents, with its neighbours."""
    names = run.names
    if len(names) <= MOST_COMPLETE:
        return SharedSum(run, threshold)
    places = draw(len(names), names.index(agent))
    return NeighbourSum(run, threshold, (), {agent: tuple(names[place] for place in places)})


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
        self._require_this(binding)
        self.shared.require_usable(me, pair_keys_of(self.secrets.pair))

    def apply(self, words: Words, me: str, binding: Binding) -> None:
        """Add the agent's own mask and the masks of its pairs, in place, of a sum as required."""
        self._require_this(binding)
        keys = self.shared.mask_keys(me, pair_keys_of(self.secrets.pair))
        streams = [(me < other, key_stream(key)) for other, key in keys.items()]
        apply_streams(words, [*streams, (True, _own_stream(self.secrets.own, self.shared))])

    def _require_this(self, binding: Binding) -> None:
        if binding != self.shared.binding:
            raise MaskError("the masks are of another sum")


def require_threshold(threshold: int, count: int, colluders: int) -> None:
    """Refuse a t with which two lists of one sum could both be signed: 2 t > n + c.

    Of more than `MOST_COMPLETE` agents t is of an agent's neighbours, and what could go wrong has a
    probability of 2^-40 a sum at most (`privet.kernel.neighbours`).

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
    least, most = max((count + colluders) // 2 + 1, LEAST_MEMBERS), count
    if count > MOST_COMPLETE:
        least, most = least_threshold(count, colluders), NEIGHBOURS
    if not least <= threshold <= most:
        of = f"{NEIGHBOURS} neighbours each of {count}" if count > MOST_COMPLETE else str(count)
        raise MaskError(
            f"sum-threshold = {threshold}: of {of} agents of whom {colluders} may help the "
            f"coordinator, "
            + (f"it is {least} to {most}" if least <= most else "no number of them is enough")
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

    def sealed(self, public: bytes, holders: Sequence[str], shares: Sequence[bytes]) -> list[bytes]:
        """Return the shares that this agent gives its holders (48 bytes each; zeros for itself).

        Parameters
        ----------
        public : bytes
            Its public keys of the sum: drawn for it, so that no key seals twice.
        holders : sequence of str
        shares : sequence of bytes
            Of each holder (32 bytes).

        Raises
        ------
        MaskError
            If a public key on the roster is not usable.
        """
        return [
            self._box(public, name, self._me, name).encrypt(bytes(12), share, None)
            if name != self._me
            else bytes(SEALED_BYTES)
            for name, share in zip(holders, shares, strict=True)
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

        secret = secret_with(self.keys, other, self._roster[other], self.run.experiment)
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
    SpoiltError
        If fewer than t shares of an agent came, or they do not give the key that it shared.
    """
    listed, streams = set(survivors), []
    for name in shared.names:
        if name in listed and name in own:
            streams.append((False, _own_stream(own[name], shared)))
            continue
        shares = _shares_of(name, shared, given)
        if len(shares) < shared.threshold:
            text = f"{len(shares)} agents gave a share of agent {name}, and sum-threshold is "
            raise SpoiltError(f"{text}{shared.threshold}", name)
        seed = _combined(shares[: shared.threshold])
        if name in listed:
            streams.append((False, _own_stream(seed, shared)))
            continue
        keys = pair_keys_of(seed)
        if keys.public != shared.key_of(name)[:KEY_BYTES]:
            raise SpoiltError(f"the shares of agent {name} do not give its key", name)
        for other, key in shared.mask_keys(name, keys).items():
            if other in listed:
                streams.append((name < other, key_stream(key)))
    apply_streams(words, streams)


def by_shares(
    words: Words,
    shared: SharedSum,
    given: Mapping[str, Mapping[str, bytes]],
    own: Mapping[str, bytes],
) -> list[str]:
    """Open a sum on which masks were left by what others hold of the seeds that agents gave.

    In place of each b that an agent gave comes that which t shares of others find, where it is
    another. Nothing is asked: the coordinator has both.

    Parameters
    ----------
    words : uint64 array
        What `open_sum` has made of the sum; changed in place.
    given, own
        As there.

    Returns
    -------
    list of str
        The agents whose own answer was not used; none of a sum above `MOST_CHECKED`.
    """
    streams, others = [], list[str]()
    if len(own) * shared.threshold**2 > MOST_CHECKED:
        return others
    for name, seed in own.items():
        shares = _shares_of(name, shared, given)[: shared.threshold]
        if len(shares) == shared.threshold and (found := _combined(shares)) != seed:
            others.append(name)
            streams += [(True, _own_stream(seed, shared)), (False, _own_stream(found, shared))]
    apply_streams(words, streams)
    return others


def _shares_of(
    name: str, shared: SharedSum, given: Mapping[str, Mapping[str, bytes]]
) -> list[tuple[int, bytes]]:
    """Return the shares of an agent that came, each with its holder's point."""
    holders = enumerate(shared.holders(name), 1)
    return [(point, given[one][name]) for point, one in holders if name in given.get(one, ())]


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
