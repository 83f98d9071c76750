"""The format of worked instances: what is not played is refused, and not passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.core import ConfigError
from studies.replays import load_instance
from support.paths import golden


@pytest.mark.parametrize(
    ("place", "field"),
    [((), "absences"), ((), "schedule"), (("tasks", 0), "late"), (("tasks", -1), "dropped")],
)
def test_a_field_that_is_not_played_is_refused(
    place: tuple[Any, ...], field: str, tmp_path: Path
) -> None:
    (source,) = golden("async-fed-plt-5.json")
    spec = json.loads(source.read_text())
    changed = spec
    for step in place:
        changed = changed[step]
    changed[field] = 1
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(spec))
    name = "tasks." * bool(place) + field
    with pytest.raises(ConfigError, match=f"field '{name}' is not played"):
        load_instance(path)


def test_all_fields_of_the_worked_instances_are_played_or_only_said() -> None:
    for path in golden("*.json"):
        load_instance(path)
