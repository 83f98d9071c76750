"""Pairwise masks: they cancel, they hide, and they refuse a roster that gives an agent away."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privet.kernel import MaskError, masks
from privet.kernel.masks import Binding, GivenMasks, KeyPair, PairwiseMasks, key_pair, roster_digest

FALSE_ALARM = 1e-6


def keys_of(name: str) -> KeyPair:
    """Return a key pair that is the same in every test run."""
    private = X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    return KeyPair(private.private_bytes_raw(), private.public_key().public_bytes_raw())


def roster_of(*names: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, keys_of(name).public) for name in names)


def mask(me: str, binding: Binding, size: int = 64) -> Any:
    words = np.zeros(size, np.uint64)
    PairwiseMasks(keys_of(me)).apply(words, me, binding)
    return words


BINDING = Binding("run-1", 3, 1, roster_of("2", "10", "ward-b", "ward-c"))

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


@given(
    st.lists(names, min_size=3, max_size=6, unique=True),
    st.integers(1, 40),
    st.integers(1, 1000),
    st.integers(1, 5),
)
def test_masks_cancel_over_the_roster(
    agents: list[str], size: int, number: int, attempt: int
) -> None:
    binding = Binding("run", number, attempt, roster_of(*agents))
    shuffled = replace(binding, roster=tuple(reversed(binding.roster)))
    total = np.zeros(size, np.uint64)
    for index, agent in enumerate(agents):
        total += mask(agent, binding if index % 2 else shuffled, size)
    assert not total.any()
    assert mask(agents[0], binding, size).any()


def test_large_uploads_cancel_over_all_parts() -> None:
    size = (1 << 15) + 17
    values = {name: np.arange(size, dtype=np.uint64) * np.uint64(len(name)) for name in "abc"}
    binding = Binding("run", 1, 1, roster_of("a", "b", "c"))
    total = np.zeros(size, np.uint64)
    for name, upload in values.items():
        masked = upload.copy()
        PairwiseMasks(keys_of(name)).apply(masked, name, binding)
        assert not np.any(masked == upload)
        total += masked
    assert np.array_equal(total, sum(values.values()))


def test_a_mask_is_the_documented_construction() -> None:
    """X25519, HKDF and ChaCha20 put together here from their definitions."""
    names = [name for name, _ in BINDING.roster]
    expected = np.zeros(64, np.uint64)
    me = "2"
    for other in names:
        if other == me:
            continue
        agreed = X25519PrivateKey.from_private_bytes(keys_of(me).private).exchange(
            X25519PublicKey.from_public_bytes(keys_of(other).public)
        )
        extracted = hmac.new(b"run-1", agreed, hashlib.sha256).digest()
        low, high = sorted((me, other))
        bound = b"privet-mask 3 1 " + roster_digest(BINDING.roster)
        info = bound + f'["{low}", "{high}"]'.encode()
        key = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(512))
        drawn = np.frombuffer(stream, "<u8")
        expected = expected + drawn if me == low else expected - drawn
    assert np.array_equal(mask(me, BINDING), expected)


def test_both_ends_of_a_pair_derive_one_key_and_no_two_pairs_do() -> None:
    derived: dict[tuple[str, str], bytes] = {}
    for me, _ in BINDING.roster:
        masks._secrets.clear()  # as in a process of its own
        mine = PairwiseMasks(keys_of(me)).pair_keys(me, BINDING)
        derived |= {(me, other): key for other, key in mine.items()}
    assert all(derived[a, b] == derived[b, a] for a, b in derived)
    assert len(set(derived.values())) == len(derived) / 2


def test_a_process_that_plays_both_ends_of_a_pair_agrees_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks._secrets.clear()
    agreed: list[tuple[bytes, bytes]] = []
    whole = masks._agreed

    def counted(private: bytes, public: bytes, experiment: str) -> bytes | None:
        agreed.append((private, public))
        return whole(private, public, experiment)

    monkeypatch.setattr(masks, "_agreed", counted)
    monkeypatch.setattr(masks, "MOST_SECRETS", 8)  # more than the six pairs
    for _ in range(2):
        for me, _ in BINDING.roster:
            PairwiseMasks(keys_of(me)).pair_keys(me, BINDING)
    assert len(agreed) == 6  # the pairs of four
    for me, _ in BINDING.roster:  # of another run: none is taken over, and no more are kept
        PairwiseMasks(keys_of(me)).pair_keys(me, replace(BINDING, experiment="run-2"))
    assert len(agreed) >= 12
    assert 0 < len(masks._secrets) <= 8


def changed(what: str) -> Binding:
    swapped = (*BINDING.roster[:3], ("ward-c", keys_of("another").public))
    return {
        "experiment": replace(BINDING, experiment="run-2"),
        "round": replace(BINDING, round=4),
        "attempt": replace(BINDING, attempt=2),
        "member less": replace(BINDING, roster=BINDING.roster[:3]),
        "member more": replace(BINDING, roster=(*BINDING.roster, *roster_of("x"))),
        "another's key": replace(BINDING, roster=swapped),
        "task": replace(BINDING, task=b"t"),
    }[what]


@pytest.mark.parametrize(
    "what",
    ["experiment", "round", "attempt", "member less", "member more", "another's key", "task"],
)
def test_every_mask_changes_with_what_it_is_bound_to(what: str) -> None:
    before, after = (
        PairwiseMasks(keys_of("2")).pair_keys("2", b) for b in (BINDING, changed(what))
    )
    assert all(before[other] != after[other] for other in before.keys() & after.keys())
    assert np.count_nonzero(mask("2", BINDING) == mask("2", changed(what))) == 0


def test_order_and_attempt_numbers_do_not_run_into_each_other() -> None:
    assert roster_digest(BINDING.roster) == roster_digest(tuple(reversed(BINDING.roster)))
    first = replace(BINDING, round=1, attempt=11)
    other = replace(BINDING, round=11, attempt=1)
    assert not np.array_equal(mask("2", first), mask("2", other))


def test_a_masked_upload_is_uniform_and_says_nothing() -> None:
    """Of a constant upload nothing is left: bytes, high bits and correlation are those of noise."""
    size = 20_000
    upload = np.full(size, 12345 << 40, np.uint64)
    masked = upload.copy()
    PairwiseMasks(keys_of("2")).apply(masked, "2", BINDING)
    counts = np.bincount(masked.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.kstest(masked / 2.0**64, "uniform").pvalue > FALSE_ALARM
    bits = np.unpackbits(masked.view(np.uint8)).reshape(size, 64).mean(axis=0)
    assert np.all(np.abs(bits - 0.5) < stats.norm.isf(FALSE_ALARM / 128) / (2 * size**0.5))
    # What the server would decode is nowhere near the number, and no two words are alike.
    decoded = masked.view(np.int64) / 2.0**40
    assert np.min(np.abs(decoded - 12345)) > 1
    assert len(np.unique(masked)) == size


def test_a_sum_that_lacks_one_upload_is_as_random() -> None:
    size = 20_000
    total = np.zeros(size, np.uint64)
    for name, _ in BINDING.roster[:3]:
        total += mask(name, BINDING, size)
    assert stats.chisquare(np.bincount(total.view(np.uint8), minlength=256)).pvalue > FALSE_ALARM


# ------------------------------------------------------------------ hostile rosters

LOW_ORDER = (
    bytes(32),
    bytes([1, *[0] * 31]),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
)
"""Points of small order on the curve, as D. J. Bernstein lists them (cr.yp.to/ecdh.html)."""

GOOD = roster_of("2", "10", "ward-b")


@pytest.mark.parametrize(
    ("roster", "match"),
    [
        (roster_of("2", "10"), "2 agents: a secure sum needs at least 3"),
        ((), "0 agents"),
        (roster_of("3", "10", "ward-b"), "agent 2 is not on the roster"),
        ((*GOOD, *roster_of("10")), "listed twice"),
        ((*GOOD, *roster_of("2")), "listed twice"),
        ((("2", keys_of("other").public), *GOOD[1:]), "not its own"),
        ((*GOOD, ("x", keys_of("10").public)), "one public key"),
        ((*GOOD, ("x", keys_of("2").public)), "one public key"),
        ((*GOOD, ("x", bytes(31))), "31 bytes"),
        *[((*GOOD, ("x", point)), "agent x is not usable") for point in LOW_ORDER],
    ],
)
def test_hostile_rosters_are_refused_before_anything_is_masked(roster: Any, match: str) -> None:
    words = np.arange(5, dtype=np.uint64)
    with pytest.raises(MaskError, match=match):
        PairwiseMasks(keys_of("2")).apply(words, "2", Binding("run", 1, 1, roster))
    assert np.array_equal(words, np.arange(5))


def test_no_key_of_a_mask_is_made_of_an_unusable_public_key() -> None:
    roster = (*BINDING.roster[:3], ("ward-c", bytes(32)))
    with pytest.raises(MaskError, match="key of agent ward-c is not usable with X25519"):
        PairwiseMasks(keys_of("2")).pair_keys("2", replace(BINDING, roster=roster))


def test_fresh_key_pairs_differ_and_do_not_print_their_secret() -> None:
    first, second = key_pair(), key_pair()
    assert first.private != second.private
    assert first.public != second.public
    assert first.private.hex() not in repr(first)
    private = X25519PrivateKey.from_private_bytes(first.private)
    assert private.public_key().public_bytes_raw() == first.public


# ------------------------------------------------------------------ given masks


def test_given_masks_are_added_by_the_first_and_subtracted_by_the_second() -> None:
    pair = np.array([5, 2**64 - 1, 7], np.uint64)
    source = GivenMasks({("0", "1"): pair})
    binding = Binding("replay", 1, 1, (("0", b""), ("1", b"")))
    first, second = np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    source.apply(first, "0", binding)
    source.apply(second, "1", binding)
    assert first.tolist() == [*pair.tolist(), 0]
    assert not (first + second).any()
    assert not source.private


def test_given_masks_must_cover_every_pair() -> None:
    source = GivenMasks({("0", "1"): np.zeros(1, np.uint64)})
    with pytest.raises(MaskError, match="no mask is given for agents 0 and 2"):
        source.require("0", Binding("r", 1, 1, (("0", b""), ("1", b""), ("2", b""))))
    with pytest.raises(MaskError, match="1 agents"):
        source.require("0", Binding("r", 1, 1, (("0", b""),)))
