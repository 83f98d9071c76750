"""Named dense arrays as bytes: round trips, hostile bytes, and what a digest notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from privet.core import WireError
from privet.wire import digest, pack, unpack
from privet.wire.dense import Digest, digests, joined_digest

DTYPES = ["f8", "f4", "i8", "i4", "u1", "u8"]
ARRAYS = st.dictionaries(
    st.text(max_size=20),
    st.sampled_from(DTYPES).flatmap(
        lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=5,
)


@given(ARRAYS)
def test_round_trip_keeps_names_shapes_dtypes_and_bits(arrays: dict[str, NDArray[Any]]) -> None:
    found = unpack(pack(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_views_are_aligned_and_read_only() -> None:
    data = pack({"a": np.arange(3, dtype="f4"), "long name": np.arange(5.0)})
    for array in unpack(data).values():
        assert not array.flags.writeable
        assert array.flags.aligned


def test_non_contiguous_arrays_travel_in_c_order() -> None:
    array = np.arange(12.0).reshape(3, 4).T
    assert np.array_equal(unpack(pack({"a": array}))["a"], array)


def test_overhead_is_a_few_bytes() -> None:
    assert len(pack({"x": np.zeros(1000)})) <= 8000 + 32


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_the_codecs_error(data: bytes) -> None:
    for candidate in (data, b"PVD1" + data):
        try:
            unpack(candidate)
        except WireError:
            continue


@given(ARRAYS, st.data())
def test_cut_and_extended_payloads_are_refused(arrays: dict[str, NDArray[Any]], data: Any) -> None:
    whole = pack(arrays)
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut < len(whole.rstrip(b"\0")):
        with pytest.raises(WireError):
            unpack(whole[:cut])
    with pytest.raises(WireError):
        unpack(whole + b"\0" * 8)


def test_claims_beyond_the_bytes_allocate_nothing() -> None:
    honest = bytearray(pack({"x": np.zeros(2)}))
    place = honest.index((2).to_bytes(8, "little"))
    honest[place : place + 8] = (2**60).to_bytes(8, "little")
    with pytest.raises(WireError, match="ends inside array 'x'"):
        unpack(bytes(honest))


@pytest.mark.parametrize("array", [np.zeros(2, "f2"), np.array(["a"]), np.zeros(1, complex)])
def test_other_dtypes_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(WireError, match="'x'"):
        pack({"x": array})


@given(hnp.arrays("f8", st.integers(1, 40)), st.data())
def test_digest_notices_any_changed_byte(array: NDArray[Any], data: Any) -> None:
    changed = bytearray(array.tobytes())
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    assert digest(np.frombuffer(bytes(changed))) != digest(array)
    assert 0 <= digest(array) < 2**63


@pytest.mark.parametrize("size", [0, 1, 3, 8, 9])
def test_digest_of_any_length(size: int) -> None:
    array = np.arange(1, size + 1, dtype="f4")
    assert digest(array) == digest(array.copy())
    assert digest(array) != digest(np.append(array, np.float32(0)))


@pytest.mark.parametrize("size", [1, 2, 7, 8, 33])
def test_digest_of_parts_is_that_of_the_whole(size: int) -> None:
    array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    made = Digest()
    for at in range(0, size, 4):
        made.add(array[at : at + 4])
    assert made.value == digest(array)


def test_joined_digest_of_rows_is_that_of_each() -> None:
    rng = np.random.default_rng(1)
    tables = [rng.standard_normal((5, size)) for size in (3, 4, 1)]
    joined = joined_digest(map(digests, tables))
    assert joined.tolist() == [
        joined_digest(map(digest, rows)) for rows in zip(*tables, strict=True)
    ]
    assert len(set(joined.tolist())) == 5
    assert joined_digest([7, 8]) != joined_digest([8, 7])


def test_digest_notices_a_changed_sign() -> None:
    z = np.array([1.0, -2.0, 3.0])
    assert digest(z) != digest(z * [1.0, 1.0, -1.0])
