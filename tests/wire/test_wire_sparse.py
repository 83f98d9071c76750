"""The sparse codec: round trips, sizes, and bytes from a stranger."""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gammaln

from privet.wire.payload import from_payload, to_payload
from privet.wire.sparse import decode, encode
from privet.wire.sparse.index_coding import SparseError, decode_indices, encode_indices
from privet.wire.sparse.selection import rand_k
from privet.wire.sparse.sums import SparseSum

RNG = np.random.default_rng(7)


def random_set(dim: int, k: int) -> NDArray[np.intp]:
    return np.sort(RNG.choice(dim, k, replace=False))


def entropy_bytes(dim: int, k: int) -> float:
    bits = gammaln(dim + 1) - gammaln(k + 1) - gammaln(dim - k + 1)
    return float(bits) / math.log(2) / 8


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[int, list[int]]:
    dim = draw(st.integers(1, 400))
    members = draw(st.sets(st.integers(0, dim - 1), max_size=dim))
    return dim, sorted(members)


@given(index_sets(), st.sampled_from(["f4", "f8"]))
def test_any_index_set_survives(case: tuple[int, list[int]], dtype: str) -> None:
    dim, members = case
    values = np.linspace(-1, 1, len(members)).astype(dtype)
    found = decode(encode(values, np.array(members, int), dim), max_dim=dim)
    assert found.dim == dim
    assert found.indices.tolist() == members
    assert found.values.tolist() == values.tolist()
    assert found.values.dtype == np.dtype(dtype)
    dense = [0.0] * dim
    for index, value in zip(members, values.tolist(), strict=True):
        dense[index] = value
    assert found.to_dense().tolist() == dense


@given(index_sets(), st.integers(0, 3))
def test_bits_are_those_of_the_rice_code(case: tuple[int, list[int]], parameter: int) -> None:
    dim, members = case
    if not members or len(members) << parameter > 2 * dim:
        return
    # A code written bit by bit, as the format says.
    gaps = [b - a - 1 for a, b in zip([-1, *members], members, strict=False)]
    unary = "".join("0" * (gap >> parameter) + "1" for gap in gaps)
    planes = "".join(str(gap >> bit & 1) for bit in range(parameter) for gap in gaps)
    code = b"".join(
        bytes(int(text[at : at + 8][::-1], 2) for at in range(0, len(text), 8))
        for text in (unary, planes)
    )
    found = decode_indices(np.frombuffer(code, "u1"), len(members), dim, parameter)
    assert found.tolist() == members
    best, chosen = encode_indices(np.array(members), dim)
    assert len(chosen) <= len(code) + 1
    if best == parameter:
        assert chosen == code


@pytest.mark.parametrize("dim", [785, 7850, 100_000, 1_000_000])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.1, 0.4, 0.5, 0.6, 0.9, 0.99, 1.0])
def test_size_is_near_the_entropy(dim: int, share: float) -> None:
    k = max(1, int(share * dim))
    data = encode(RNG.standard_normal(k).astype("f4"), random_set(dim, k), dim)
    bound = 4 * k + entropy_bytes(dim, k)
    limit = 1.005 * bound + 32 if 2 * k <= dim else 1.03 * bound
    # What a half hands over travels as it is: nothing is added around these bytes.
    assert len(to_payload({"encoded": np.frombuffer(data, "u1")})) <= limit


def test_clustered_sets_cost_no_more_than_the_bitmap() -> None:
    indices = np.concatenate([np.arange(3000), np.arange(90_000, 100_000)])
    data = encode(np.zeros(13_000, "f4"), indices, 100_000)
    assert len(data) <= 24 + 4 * 13_000 + 100_000 // 8
    assert decode(data, max_dim=100_000).indices.tolist() == indices.tolist()


def test_order_does_not_matter_and_nothing_is_copied_from_the_message() -> None:
    indices = np.array([9, 2, 5])
    data = encode(np.array([0.9, 0.2, 0.5]), indices, 10)
    assert data == encode(np.array([0.2, 0.5, 0.9]), np.array([2, 5, 9]), 10)
    found = decode(data, max_dim=10)
    assert found.values.tolist() == [0.2, 0.5, 0.9]
    assert not found.values.flags.writeable
    assert np.shares_memory(found.values, np.frombuffer(data, "u1"))


def test_a_seed_stands_in_for_the_indices() -> None:
    values = RNG.standard_normal(500).astype("f4")
    data = encode(values, dim=5000, seed=2**63 + 5)
    assert len(data) == 4 * 500 + 32
    assert decode(data, max_dim=5000).indices.tolist() == rand_k(2**63 + 5, 5000, 500).tolist()


@pytest.mark.parametrize(
    ("values", "indices", "dim", "seed"),
    [
        (np.zeros(2), np.array([3, 3]), 5, None),
        (np.zeros(2), np.array([3, 5]), 5, None),
        (np.zeros(2), np.array([-1, 2]), 5, None),
        (np.zeros(2), np.array([1, 2, 3]), 5, None),
        (np.zeros(2), np.array([1.0, 2.0]), 5, None),
        (np.zeros(2), np.array([0, 1]), 1, None),
        (np.zeros(2), np.array([0, 1]), None, None),
        (np.zeros(2), None, 5, None),
        (np.zeros(2, int), None, None, None),
        (np.zeros((2, 1)), None, None, None),
        (np.zeros(2), np.array([0, 1]), 5, 1),
        (np.zeros(2), None, 5, -1),
        (np.zeros(2), None, 2**40, 1),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    values: NDArray[np.float64],
    indices: NDArray[np.int64] | None,
    dim: int | None,
    seed: int | None,
) -> None:
    with pytest.raises(SparseError):
        encode(values, indices, dim, seed=seed)


def sealed(data: bytearray) -> bytes:
    """Return the bytes with the checksum that fits them, as a malicious sender would."""
    body = bytes(data[:8]) + bytes(data[12:])
    return bytes(data[:8]) + struct.pack("<I", zlib.crc32(body)) + bytes(data[12:])


def examples() -> list[bytes]:
    made = [encode(np.ones(k, "f4"), random_set(300, k), 300) for k in (0, 1, 30, 149, 200, 300)]
    made.append(encode(np.ones(20), dim=300, seed=4))
    return [*made, encode(np.ones(40), random_set(9000, 40), 9000)]


def check(data: bytes, max_dim: int) -> None:
    """Decode; only the codec's own error may come, and only sound vectors."""
    try:
        found = decode(data, max_dim=max_dim)
    except SparseError:
        return
    assert found.dim <= max_dim
    indices = found.indices
    assert len(indices) == len(found.values)
    if len(indices):
        assert indices[0] >= 0
        assert indices[-1] < found.dim
        assert (np.diff(indices) > 0).all()


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused_or_sound(tail: bytes, valid: bool) -> None:
    data = bytearray(b"PVS\x01" + tail) if valid else bytearray(tail)
    check(bytes(data), 10_000)
    if len(data) >= 24:
        check(sealed(data), 10_000)


@given(
    st.integers(0, 5),
    st.integers(0, 2),
    st.integers(0, 70),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=64),
)
def test_any_header_is_refused_or_sound(
    kind: int, dtype: int, parameter: int, count: int, dim: int, body: bytes
) -> None:
    for k, d in ((count, dim), (count % 17, dim % 97)):
        head = struct.pack("<3sBBBBBIIQ", b"PVS", 1, kind, dtype, parameter, 0, 0, k, d)
        check(sealed(bytearray(head + body)), 1000)


@settings(max_examples=400)
@given(st.sampled_from(examples()), st.integers(0, 2**20), st.binary(max_size=8), st.booleans())
def test_changed_messages_are_refused_or_sound(
    whole: bytes, at: int, other: bytes, cut: bool
) -> None:
    data = bytearray(whole)
    at %= len(data)
    data[at : None if cut else at + len(other)] = other
    check(bytes(data), 10_000)
    if len(data) >= 24:
        check(sealed(data), 10_000)


def test_one_flipped_bit_is_noticed() -> None:
    for data in examples():
        for at in range(0, 8 * len(data), 7):
            damaged = bytearray(data)
            damaged[at // 8] ^= 1 << at % 8
            with pytest.raises(SparseError):
                decode(bytes(damaged), max_dim=10_000)


def test_a_small_message_cannot_claim_much_memory() -> None:
    claims = []
    for kind, count in ((0, 2**32 - 1), (1, 1), (2, 2**31), (3, 0)):
        head = struct.pack("<3sBBBBBIIQ", b"PVS", 1, kind, 0, 0, 0, 0, count, 2**32 - 1)
        claims.append(sealed(bytearray(head + bytes(16))))
    tracemalloc.start()
    for claim in claims:
        with pytest.raises(SparseError):
            decode(claim, max_dim=10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_payloads_are_told_apart_by_their_first_bytes() -> None:
    data = encode(np.ones(3), np.array([1, 4, 6]), 9)
    assert from_payload(data)["encoded"].tobytes() == data
    dense = to_payload({"x": np.arange(3.0)})
    assert from_payload(dense)["x"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no known format"):
        from_payload(b"JUNKJUNK")


@given(st.lists(index_sets(), max_size=6), st.sampled_from(["f4", "f8"]))
def test_sums_are_those_of_the_dense_vectors(cases: list[tuple[int, list[int]]], kind: str) -> None:
    dim = 400
    total = SparseSum(dim, kind)
    sums, counts = np.zeros(dim), np.zeros(dim)
    for number, (_, members) in enumerate(cases):
        values = np.arange(len(members), dtype=kind) + number
        total.add(decode(encode(values, np.array(members, int), dim), max_dim=dim))
        for index, value in zip(members, values, strict=True):
            sums[index] += value
            counts[index] += 1
    total.add(decode(encode(np.full(dim, 2.0, kind)), max_dim=dim))
    assert np.array_equal(total.sums, sums + 2)
    assert np.array_equal(total.counts, counts + 1)
    assert np.allclose(total.mean(), (sums + 2) / (counts + 1), rtol=1e-6)
    assert total.mean().dtype == np.dtype(kind)


def test_nobody_sent_means_zero() -> None:
    total = SparseSum(3)
    total.add(decode(encode(np.array([4.0]), np.array([1]), 3), max_dim=3))
    assert total.mean().tolist() == [0.0, 4.0, 0.0]
    with pytest.raises(SparseError, match="length 4"):
        total.add(decode(encode(np.ones(4)), max_dim=4))
