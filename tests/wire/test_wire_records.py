"""Records of checked values are Flower's own in every respect but the checking."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privet.core import WireError
from privet.wire.contract import read_update
from privet.wire.flower_internals import packed_content, set_identity, unpacked_content
from privet.wire.records import APART, ARRAYS, apart, config_record, joined, record_dict

CONFIG: dict[str, Any] = {"kind": "update", "n": 3, "x": 0.5, "payload": b"\0\1", "rounds": [1, 2]}

PAIRS = {
    "config": (config_record(dict(CONFIG)), ConfigRecord(dict(CONFIG))),
    "empty": (config_record({}), ConfigRecord()),
    "content": (
        record_dict({"a": config_record(dict(CONFIG)), "b": config_record({})}),
        RecordDict({"a": ConfigRecord(dict(CONFIG)), "b": ConfigRecord()}),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_they_are_what_flower_itself_would_have_made(name: str) -> None:
    ours, theirs = PAIRS[name]
    assert type(ours) is type(theirs)
    assert ours == theirs
    assert list(ours) == list(theirs)
    assert vars(ours).keys() == vars(theirs).keys()
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_they_travel_as_the_same_object(name: str) -> None:
    ours, theirs = PAIRS[name]
    assert ours.object_id == theirs.object_id
    assert ours.deflate() == theirs.deflate()


@pytest.mark.parametrize("make", [config_record, record_dict])
def test_what_is_put_in_later_is_checked_and_stays_there(make: Any) -> None:
    changed, other = make({}), make({})
    with pytest.raises(TypeError):
        changed["x"] = object()
    changed["x"] = ConfigRecord() if make is record_dict else 1
    assert list(changed) == ["x"]
    assert not other
    assert not make({})


# ---------------------------------------------------------------------- large fields

FAR = bytes(range(256)) * (APART // 256) + b"more"


def large_content() -> RecordDict:
    shared = ConfigRecord({"payload": FAR, "round": 3, "keys": b"few"})
    return RecordDict({"privet": shared, "privet.agent": ConfigRecord({"recovery": FAR})})


def test_large_fields_travel_as_arrays_and_come_back() -> None:
    content = large_content()
    sent = unpacked_content(packed_content(apart(content)))
    assert set(sent["privet"]) == {"round", "keys"}
    assert not sent["privet.agent"]
    assert joined(sent) == content == large_content()  # which apart() left as it was
    small = RecordDict({"privet": ConfigRecord({"payload": FAR[:APART]})})
    assert apart(small) is joined(small) is small


def test_flower_hashes_a_large_field_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a field of a ConfigRecord it is hashed twelve times."""
    from flwr.supercore.inflatable import inflatable_object

    hashed, sha256 = [0], hashlib.sha256

    def counted(data: bytes = b"", **options: Any) -> Any:
        hashed[0] += len(data)
        return sha256(data, **options)

    monkeypatch.setattr(hashlib, "sha256", counted)
    set_identity(1, 1)
    message = Message(apart(large_content()), dst_node_id=2, message_type="train")
    inflatable_object.get_all_nested_objects(message)
    assert 0 < hashed[0] < 2 * 3 * len(FAR)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("privet/payload", "numpy.ndarray"),
        ("privet/round", "privet.bytes"),
        ("other/payload", "privet.bytes"),
        ("payload", "privet.bytes"),
        ("model/payload", "privet.bytes"),
    ],
    ids=["of another kind", "beside a field", "of no record", "without one", "of arrays"],
)
def test_arrays_that_are_no_fields_are_refused(place: str, kind: str) -> None:
    large = b"a" * (APART + 1)
    arrays = ArrayRecord({place: Array("uint8", (len(large),), kind, large)})
    records = {"privet": ConfigRecord({"round": 1}), "model": ArrayRecord(), ARRAYS: arrays}
    with pytest.raises(WireError, match="that is no large field of its records"):
        joined(RecordDict(records))


def test_an_array_where_bytes_are_expected_does_not_read_as_a_message() -> None:
    with pytest.raises(WireError):
        read_update(RecordDict({"privet": ConfigRecord(), ARRAYS: ConfigRecord()}), "fed-plt", 1, 1)


def test_many_small_arrays_cost_what_flower_takes_for_them() -> None:
    """One more array must not copy what the others are: of 30,000 it took a second and more."""
    small = {f"about/{i}": Array("uint8", (1,), "privet.bytes", b"x") for i in range(30_000)}
    large = {
        f"about/{i}": Array("uint8", (1,), "privet.bytes", b"x" * (APART + 1)) for i in range(17)
    }
    for arrays in (small, large, {"about/a": small["about/0"]}):
        content = RecordDict({"about": ConfigRecord(), ARRAYS: ArrayRecord(arrays)})
        began = time.process_time()
        with pytest.raises(WireError, match="large field"):
            joined(content)
        assert time.process_time() - began < 0.05
