"""Values as a few bits: what decodes, its error, its length, and bytes from a stranger."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.core import WireError
from privet.wire.sparse import decode, encode
from privet.wire.sparse.index_coding import SparseError
from privet.wire.sparse.selection import rand_k, top_k
from privet.wire.value_coding import (
    BLOCK,
    CHUNK,
    Coded,
    decode_values,
    dither_seed,
    encode_values,
    length_of,
)

RNG = np.random.default_rng(3)
NORMAL = math.sqrt(2 * math.pi * math.e)
DRAWS = 4000


def coded(values: NDArray[Any], *reference: NDArray[Any], **how: Any) -> Coded:
    found = encode_values(values, 5, *reference, **how)
    assert found is not None
    return found


def by_hand(data: bytes, reference: NDArray[np.float64]) -> list[float]:
    """Decode with loops and text, as the format says."""
    _, _, count, step, seed = struct.unpack_from("<3sBIdQ", data)
    words = np.random.Philox(key=seed).random_raw(count // 2 + 1)
    halves = [int(word) >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
    dither = [(half + 0.5) / 2**32 - 0.5 for half in halves]
    at, found = 24, []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        sizes = [min(BLOCK, size - begin) for begin in range(0, size, BLOCK)]
        parameters = list(data[at : at + len(sizes)])
        at += len(sizes)
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        unary = "".join(f"{byte:08b}"[::-1] for byte in data[at : at + length])
        at += length
        quotients = [len(zeros) for zeros in unary.split("1")[:size]]
        numbers = [0] * size
        whole = len([one for one in sizes if one == BLOCK])
        for some in (range(whole), range(whole, len(sizes))):
            most = max([parameters[block] for block in some], default=0)
            for first in range(0, most // 8 * 8, 8):
                for block in [block for block in some if parameters[block] // 8 * 8 > first]:
                    for place in range(sizes[block]):
                        numbers[block * BLOCK + place] |= data[at + place] << first
                    at += sizes[block]
            for bit in range(most):
                for block in some:
                    if not parameters[block] // 8 * 8 <= bit < parameters[block]:
                        continue
                    width = (sizes[block] + 7) // 8
                    plane = "".join(f"{byte:08b}"[::-1] for byte in data[at : at + width])
                    at += width
                    for place in range(sizes[block]):
                        numbers[block * BLOCK + place] |= int(plane[place]) << bit
        for place in range(size):
            number = numbers[place] + (quotients[place] << parameters[place // BLOCK])
            integer = (number + 1) // 2 * (1 if number % 2 else -1)
            drawn = dither[start + place]
            integer = integer if drawn > 0 else -integer
            found.append((integer - drawn) * step + float(reference[start + place]))
    assert at == len(data)
    return found


@pytest.mark.parametrize("count", [60, BLOCK, BLOCK + 300, 3 * BLOCK + 1, CHUNK + BLOCK + 5])
@pytest.mark.parametrize("bits", [2, 8, 21])
def test_the_code_is_that_of_the_format(count: int, bits: int) -> None:
    scales = np.exp(RNG.standard_normal(count).cumsum() / 30)
    values, reference = RNG.standard_normal(count) * scales, RNG.standard_normal(count)
    made = coded(values, reference, bits=bits)
    assert by_hand(made.data, reference) == made.values.tolist()


@settings(max_examples=60)
@given(
    st.integers(60, 3000),
    st.sampled_from([4, 8, 16]),
    st.sampled_from(["f4", "f8"]),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["normal", "heavy", "sparse", "constant"]),
)
def test_both_sides_hold_the_same_within_half_a_step(
    count: int, bits: int, dtype: str, seed: int, law: str
) -> None:
    rng = np.random.default_rng(seed)
    drawn = {
        "normal": rng.standard_normal(count),
        "heavy": rng.standard_cauchy(count),
        "sparse": rng.standard_normal(count) * (rng.random(count) < 0.02),
        "constant": np.full(count, 3.0),
    }[law]
    reference = rng.standard_normal(count).astype(dtype)
    values = (reference + drawn).astype(dtype)
    found = encode_values(values, seed, reference, bits=bits)
    assert found is not None
    again = decode_values(found.data, count, np.dtype(dtype), reference)
    assert again.tobytes() == found.values.tobytes()
    assert again.dtype == np.dtype(dtype)
    assert length_of(found.data) == count
    difference = values.astype("f8") - reference
    step = NORMAL * 2.0**-bits * math.sqrt(float(difference @ difference) / count)
    rounding = np.spacing(np.abs(values).astype(dtype)).astype("f8")
    assert (np.abs(again.astype("f8") - values) <= step / 2 * (1 + 1e-9) + rounding).all()


def test_the_error_is_uniform_of_mean_zero_whatever_the_values_are() -> None:
    values = np.linspace(-1.7, 2.3, 64)
    step = 0.75
    made = [encode_values(values, seed, step=step) for seed in range(DRAWS)]
    errors = np.array([one.values - values for one in made if one is not None])
    assert len(errors) == DRAWS
    deviation = step / math.sqrt(12)
    # Five standard deviations of the mean and of the variance of a uniform law, at each value.
    assert np.abs(errors.mean(axis=0)).max() < 5 * deviation / math.sqrt(DRAWS)
    assert np.abs((errors**2).mean(axis=0) / deviation**2 - 1).max() < 5 * math.sqrt(0.8 / DRAWS)
    # Of two values it is uncorrelated, and so it is with the values themselves.
    pairs = np.corrcoef(errors.T)[~np.eye(64, dtype=bool)]
    assert np.abs(pairs).max() < 5.5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_normal_differences_cost_their_bits_and_leave_the_error_of_the_formula(bits: int) -> None:
    values = RNG.standard_normal(200_000)
    made = coded(values, bits=bits)
    extra = {1: 0.48, 2: 0.17}.get(bits, 0.11)
    assert bits < 8 * len(made.data) / values.size < bits + extra
    error = made.values - values
    share = float(error @ error) / float(values @ values)
    assert share == pytest.approx(math.pi * math.e / 6 * 4.0**-bits, rel=0.02)


def test_noise_as_large_as_the_signal_costs_less_than_four_bits() -> None:
    noise = 1.3
    values = noise * (RNG.standard_normal(200_000) + RNG.standard_normal(200_000))
    made = coded(values, step=noise / 2)
    assert 8 * len(made.data) / values.size < 3.75
    assert float(np.var(made.values - values)) == pytest.approx(noise**2 / 48, rel=0.02)


def test_what_both_sides_hold_costs_a_header() -> None:
    reference = RNG.standard_normal(1000).astype("f4")
    made = coded(reference.copy(), reference, bits=8)
    assert len(made.data) == 24
    assert decode_values(made.data, 1000, np.dtype("f4"), reference).tolist() == reference.tolist()
    assert coded(np.zeros(50), bits=4).values.tolist() == [0.0] * 50


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, -2.0]),
        np.full(100, np.nan),
        np.r_[np.ones(100), np.inf],
        np.full(100, 1e200),
        np.zeros(0),
        RNG.standard_normal(300).astype("f4"),
    ],
)
def test_what_is_not_worth_a_code_has_none(values: NDArray[Any]) -> None:
    bits = 32 if values.dtype == np.float32 else 8
    with np.errstate(over="ignore"):
        assert encode_values(values, 1, bits=bits) is None
    assert encode_values(values, 1, step=1e-300) is None


def test_a_sparse_vector_is_coded_where_its_values_are() -> None:
    dim, share = 7850, 785
    vector, reference = RNG.standard_normal((2, dim)).astype("f4")
    for places, seed in ((top_k(vector, share), None), (rand_k(9, dim, share), 9)):
        made = coded(vector[places], reference[places], bits=8)
        if seed is None:
            data = encode(made.values, places, dim, code=made.data)
            plain = encode(vector[places], places, dim)
        else:
            data = encode(made.values, dim=dim, seed=seed, code=made.data)
            plain = encode(vector[places], dim=dim, seed=seed)
        assert len(plain) - len(data) == 4 * share - len(made.data) - 4
        found = decode(data, max_dim=dim, reference=reference)
        assert found.indices.tolist() == places.tolist()
        assert found.values.tobytes() == made.values.tobytes()
    whole = coded(vector, bits=4)
    found = decode(encode(whole.values, code=whole.data), max_dim=dim)
    assert found.values.tobytes() == whole.values.tobytes()
    with pytest.raises(SparseError, match="do not ascend"):
        encode(whole.values[:2], np.array([5, 2]), dim, code=whole.data)


@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (2, -1)])
def test_rows_of_bytes_are_no_code(shape: tuple[int, int]) -> None:
    code = coded(RNG.standard_normal(61), bits=8).data
    table = np.frombuffer(code[: len(code) // 2 * 2], np.uint8).reshape(shape)
    with pytest.raises(WireError, match=f"{table.size} bytes cannot be 61 values"):
        decode_values(table, 61, np.dtype("f8"))


@pytest.mark.parametrize("sent", [np.zeros(30), np.arange(30.0)])
def test_sparse_codes_of_another_length_than_the_reference_are_refused(sent: NDArray[Any]) -> None:
    data = encode(sent, dim=30, code=coded(sent, bits=8).data)
    with pytest.raises(SparseError, match="of 30 numbers, expected 60"):
        decode(data, max_dim=60, reference=np.zeros(60))


def test_dither_is_another_for_every_name() -> None:
    seeds = [
        dither_seed(0, agent, number, name) for agent in "ab" for number in (1, 2) for name in "xy"
    ]
    assert len(set(seeds)) == 8
    assert dither_seed(0, "a", 1, "x") == seeds[0]


# ---------------------------------------------------------------------- bytes from a stranger


def examples() -> list[tuple[bytes, int]]:
    made = [
        (coded(RNG.standard_normal(count) * 10.0**size, bits=bits).data, count)
        for count in (40, 300, BLOCK + 3)
        for size in (-3, 0, 9)
        for bits in (1, 4, 16)
    ]
    return [*made, (coded(np.zeros(50), bits=8).data, 50)]


def spoilt(data: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes that were changed, cut, lengthened or spliced."""
    made = bytearray(data)
    kind = rng.integers(6)
    if kind < 3:
        # The header and the parameters are where a change does most.
        end = len(made) if kind else 40
        for _ in range(rng.integers(1, 4)):
            made[rng.integers(min(end, len(made)))] = rng.integers(256)
    elif kind == 3:
        del made[rng.integers(len(made)) :]
    elif kind == 4:
        made += rng.bytes(int(rng.integers(1, 40)))
    else:
        at = int(rng.integers(len(made)))
        made[at : at + 8] = rng.choice([b"\x00", b"\xff"]) * 8
    return bytes(made)


def survive(times: int) -> int:
    """Decode spoilt codes; return how many were refused."""
    rng, refused = np.random.default_rng(11), 0
    cases = examples()
    for number in range(times):
        data, count = cases[number % len(cases)]
        made = spoilt(data, rng)
        try:
            found = decode_values(made, count, np.dtype("f8"))
        except WireError:
            refused += 1
            continue
        assert found.shape == (count,)
        assert found.dtype == np.float64
    return refused


def test_spoilt_codes_are_refused_or_numbers() -> None:
    assert survive(6000) > 2000


@pytest.mark.slow
def test_300_000_spoilt_codes_are_refused_or_numbers() -> None:
    assert survive(300_000) > 100_000


def spoilt_sparse(times: int) -> None:
    """Decode spoilt sparse payloads whose checksum is right, as a malicious sender's is."""
    rng = np.random.default_rng(12)
    values = coded(RNG.standard_normal(60), bits=6)
    data = encode(values.values, rand_k(3, 900, 60), 900, code=values.data)
    for _ in range(times):
        made = bytearray(spoilt(data, rng))
        if len(made) >= 12:
            struct.pack_into("<I", made, 8, zlib.crc32(made[12:], zlib.crc32(made[:8])))
        try:
            found = decode(bytes(made), max_dim=900)
        except SparseError:
            continue
        assert found.values.size == found.indices.size <= 900


def test_spoilt_sparse_payloads_are_refused_or_vectors() -> None:
    spoilt_sparse(4000)


@pytest.mark.slow
def test_300_000_spoilt_sparse_payloads_are_refused_or_vectors() -> None:
    spoilt_sparse(300_000)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"XXX" + data[3:], "no known format"),
        (lambda data: data[:4] + struct.pack("<I", 7) + data[8:], "7 with step"),
        (lambda data: data[:8] + struct.pack("<d", math.nan) + data[16:], "step nan"),
        (lambda data: data[:8] + struct.pack("<d", -1.0) + data[16:], "step -1"),
        (lambda data: data[:8] + struct.pack("<d", 0.0) + data[16:], "left over"),
        (lambda data: data[:20], "cannot be"),
        (lambda data: data + bytes(9000), "cannot be"),
        (lambda data: data + b"\x00", "left over"),
        (lambda data: data[:25] + struct.pack("<I", 1 << 31) + data[29:], "longer than values"),
        (lambda data: data[:24] + b"\xff" + data[25:], "longer than values"),
    ],
)
def test_a_refusal_says_what_is_wrong(change: Any, why: str) -> None:
    data = coded(RNG.standard_normal(500), bits=8).data
    with pytest.raises(WireError, match=why):
        decode_values(change(data), 500, np.dtype("f8"))
