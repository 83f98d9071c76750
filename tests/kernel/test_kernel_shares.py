"""Shares of a secret: those of pycryptodome's scheme, to the bit, and opened by it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from Crypto.Protocol import SecretSharing
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import shares
from privet.kernel.shares import MOST_POINTS, split


@pytest.mark.parametrize(
    ("threshold", "count"), [(1, 1), (2, 3), (5, 8), (36, 64), (51, 100), (127, 127)]
)
def test_they_are_pycryptodome_s_for_the_same_coefficients(
    threshold: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = bytes((7 * at + at // 5 + 255 * (at % 3 == 0)) % 256 for at in range(16 * threshold))
    parts = iter(drawn[at : at + 16] for at in range(0, len(drawn), 16))
    secret = drawn[-16:]
    monkeypatch.setattr(SecretSharing, "rng", lambda size: next(parts))
    monkeypatch.setattr(shares.os, "urandom", lambda size: drawn[:size])
    theirs = Shamir.split(threshold, count, secret)
    assert list(enumerate(split(threshold, count, secret), 1)) == theirs


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_threshold_of_them_open_it(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    threshold = data.draw(st.integers(1, min(count, 12)))
    secret = data.draw(st.binary(min_size=16, max_size=16))
    given = list(enumerate(split(threshold, count, secret), 1))
    chosen = data.draw(st.permutations(given))[:threshold]
    assert Shamir.combine(chosen) == secret


def test_one_too_few_open_another_secret() -> None:
    given = list(enumerate(split(3, 5, bytes(16)), 1))
    for some in combinations(given, 2):
        assert Shamir.combine(list(some)) != bytes(16)  # by chance: once in 2^128


def test_a_share_alone_is_uniform() -> None:
    """Bits of 4,000 shares of one secret, each half of the time; seven standard deviations."""
    ones: Counter[int] = Counter()
    for _ in range(2000):
        for share in split(2, 2, b"\xff" * 16):
            word = int.from_bytes(share)
            ones.update(bit for bit in range(128) if word >> bit & 1)
    assert all(abs(ones[bit] - 2000) < 7 * 4000**0.5 / 2 for bit in range(128))


@pytest.mark.parametrize(
    ("threshold", "count", "size"),
    [(0, 3, 16), (4, 3, 16), (2, MOST_POINTS + 1, 16), (2, 3, 15), (2, 3, 17)],
)
def test_what_cannot_be_shared(threshold: int, count: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{threshold} of {count} shares"):
        split(threshold, count, bytes(size))
