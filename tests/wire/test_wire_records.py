"""Records of checked values are Flower's own in every respect but the checking."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from privet.wire.records import config_record, record_dict

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
