"""The fixed-point ring: rounding, limits, exact sums, the bytes and what is wrong with them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privet.core import WireError
from privet.kernel.masks import KEY_BYTES, LEAST_MEMBERS
from privet.wire import ring, rosters
from privet.wire.contract import agent_record, read_instruction, shared_record
from privet.wire.enrolment import Enrolment, enrolment_record, read_enrolment
from privet.wire.rosters import LEAST_ROSTER, with_roster

UNIT = Fraction(1, 2**ring.FRACTION_BITS)


def nearest(value: float) -> int:
    """Return the integer nearest to 2^40 x by rational arithmetic, ties to even."""
    return round(Fraction(value) / UNIT)


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8))
def test_sum_is_the_exact_sum_of_the_nearest_multiples(rows: list[list[float]]) -> None:
    parts = [ring.encode({"a": np.array(row)}, len(rows)) for row in rows]
    total = ring.Words(parts[0].layout, np.zeros(3, np.uint64))
    for part in parts:
        ring.add(total, part)
    exact = [sum(nearest(row[j]) for row in rows) for j in range(3)]
    assert total.words.view(np.int64).tolist() == exact
    decoded = ring.decode(total)["a"]
    assert decoded.tolist() == [float(number * UNIT) for number in exact]


def test_the_finest_number_of_a_sum_is_2_to_the_minus_40() -> None:
    numbers = np.array([2.0**-40, 2.0**-42, 3 * 2.0**-42])
    held = ring.decode(ring.encode({"x": numbers}, 3))["x"]
    assert held.tolist() == [2.0**-40, 0.0, 2.0**-40]


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]), 5, elements=st.floats(-9e3, 9e3, width=32)
    )
)
def test_rounded_is_what_the_ring_holds(array: Any) -> None:
    rounded = ring.rounded(array)
    assert rounded.dtype == array.dtype
    assert [Fraction(float(value)) for value in rounded] == [
        nearest(float(v)) * UNIT for v in array
    ]
    held = ring.decode(ring.encode({"a": array}, 3), array.dtype)["a"]
    assert np.array_equal(held, rounded)
    assert np.array_equal(ring.rounded(rounded), rounded)


@pytest.mark.parametrize("count", [1, 3, 7, 1000, 4096])
def test_the_limit_is_where_a_sum_could_wrap(count: int) -> None:
    limit = ring.largest(count)
    below = np.nextafter(limit, 0) * (1 - 2**-10)
    for sign in (1, -1):
        total = ring.encode({"a": np.full(2, sign * below)}, count)
        part = ring.Words(total.layout, total.words.copy())
        for _ in range(count - 1):
            ring.add(total, part)
        wanted = [float(count * nearest(sign * below) * UNIT)] * 2
        assert ring.decode(total)["a"].tolist() == wanted
    for bad in (1.001 * limit, -1.001 * limit, np.inf, -np.inf, np.nan, 1e300):
        with pytest.raises(WireError, match="does not fit the secure sum") as caught:
            ring.encode({"a": np.array([0.0, bad])}, count)
        assert f"{limit:.6g}" in str(caught.value)
        assert repr(bad) not in str(caught.value)


def test_one_bad_number_is_found_wherever_it_is() -> None:
    for place in (0, 16383, 16384, 40_000):
        array = np.zeros(40_001)
        array[place] = np.nan
        with pytest.raises(WireError, match="finite"):
            ring.encode({"x": array}, 3)


def test_bytes_carry_names_shapes_and_eight_bytes_a_number() -> None:
    arrays = {"x": np.arange(6.0).reshape(2, 3), "distance": np.array(0.5), "none": np.zeros(0)}
    words = ring.encode(arrays, 4)
    data = words.to_bytes()
    assert len(data) <= 8 * 7 + 100
    read = ring.from_bytes(data, {"x": (2, 3), "distance": (), "none": (0,)})
    assert read.layout == words.layout
    assert np.array_equal(read.words, words.words)
    decoded = ring.decode(read)
    assert all(np.array_equal(decoded[name], arrays[name]) for name in arrays)


def test_integers_cannot_be_summed() -> None:
    with pytest.raises(WireError, match="only floats"):
        ring.encode({"x": np.arange(3)}, 3)


def test_every_damaged_byte_is_noticed() -> None:
    data = ring.encode({"x": np.linspace(-1, 1, 5)}, 3).to_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(WireError):
            ring.from_bytes(bytes(damaged), {"x": (5,)})
    for length in range(len(data)):
        with pytest.raises(WireError):
            ring.from_bytes(data[:length], {"x": (5,)})


@pytest.mark.parametrize(
    ("expected", "match"),
    [({"x": (4,)}, "expected x"), ({"y": (5,)}, "expected y"), ({"x": (5,), "y": ()}, "y")],
)
def test_other_arrays_than_expected_are_refused(expected: Any, match: str) -> None:
    data = ring.encode({"x": np.zeros(5)}, 3).to_bytes()
    with pytest.raises(WireError, match=match):
        ring.from_bytes(data, expected)


def test_arrays_of_other_shapes_are_not_added() -> None:
    total = ring.encode({"x": np.zeros(5)}, 3)
    with pytest.raises(WireError, match="cannot add"):
        ring.add(total, ring.encode({"x": np.zeros((5, 1))}, 3))


# ------------------------------------------------------------------ rosters in messages


def message(roster: dict[str, bytes]) -> dict[str, Any]:
    shared = shared_record("fed-plt", 1, "e", 3, "{}", {"y": np.zeros(2)})
    return {"privet": with_roster(shared, 2, roster), "privet.agent": agent_record(0)}


def test_a_roster_travels_once_for_all() -> None:
    roster = {"ward-b": bytes(range(32)), "2": bytes(32), "10": bytes([7] * 32)}
    asked = read_instruction(RecordDict(message(roster)))
    assert (asked.attempt, asked.round) == (2, 3)
    assert asked.roster == tuple(roster.items())


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("keys", bytes(95), "95 bytes of keys"),
        ("names", "[1, 2, 3]", "names"),
        ("names", "[", "names"),
        ("names", '["a", "b", "\\n"]', "names"),
        ("names", '{"a": 1}', "names"),
        ("attempt", "2", "attempt"),
        ("keys", "a" * 96, "keys"),
    ],
)
def test_a_malformed_roster_is_refused(field: str, value: Any, match: str) -> None:
    content = message({"a": bytes(32), "b": bytes(32), "c": bytes(32)})
    content["privet"][field] = value
    with pytest.raises(WireError, match=match):
        read_instruction(RecordDict(content))


@pytest.mark.parametrize("key", [bytes(31), bytes(33), bytes(1)])
def test_a_public_key_has_32_bytes(key: bytes) -> None:
    said = Enrolment("a", 5, 2, "float64", "fed-plt", 1, "e", (), public_key=key)
    with pytest.raises(WireError, match="public key has"):
        read_enrolment(RecordDict({"privet": enrolment_record(said)}))


def test_both_rooms_agree_on_the_smallest_roster() -> None:
    assert (LEAST_MEMBERS, KEY_BYTES) == (LEAST_ROSTER, rosters.KEY_BYTES)
