"""All run-config keys without what declares them: help and completion import no algorithm.

`written` puts the table of `privet.server_apps.config` into a file here, which `make keys`
keeps up to date and a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from privet.core import algorithms
from privet.core.key import ConfigEntry, Key
from privet.core.plugins import Names
from privet.core.registry import BUILT_IN

FILE = Path(__file__).parent / "key_table.json"


def key_table() -> Mapping[str, ConfigEntry]:
    """Return the table of all keys: from the file, where no other package brings an algorithm."""
    if len(algorithms()) != len(BUILT_IN):
        from privet.server_apps.config import table

        return table()
    return _read()


@lru_cache(maxsize=1)
def _read() -> dict[str, ConfigEntry]:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: ConfigEntry(
            name, {one: _key(name, said) for owners, said in declared for one in owners}
        )
        for name, declared in content.items()
    }


def _key(name: str, said: dict[str, Any]) -> Key:
    given = {
        field: value if field in ("needs", "words") else _tuple(value)
        for field, value in said.items()
    }
    needs = {other: _tuple(used) for other, used in said.get("needs", {}).items()}
    return Key(**{"name": name, **given, "needs": needs})


def _tuple(value: Any) -> Any:
    """Return lists as tuples, and names that other packages add to as such."""
    if isinstance(value, dict):
        return Names(**value)
    return tuple(value) if isinstance(value, list) else value


def written() -> str:
    """Return the content of the file: by key its owners and what they say, defaults left out."""
    from privet.server_apps.config import table

    lines = []
    for name, entry in table().items():
        declared: list[tuple[list[str], dict[str, Any]]] = []
        for owner, key in entry.owners.items():
            said = _said(key)
            if declared and declared[-1][1] == said:
                declared[-1][0].append(owner)
            else:
                declared.append(([owner], said))
        lines.append(f"{json.dumps(name)}: {json.dumps(declared)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _said(key: Key) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for field in fields(Key):
        value = getattr(key, field.name)
        unset = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name == "name" or value == unset:
            continue
        if field.name == "needs":
            said["needs"] = {other: _plain(used) for other, used in value.items()}
        else:
            said[field.name] = _plain(value)
    return said


def _plain(value: Any) -> Any:
    if not isinstance(value, Names):
        return value
    own = list(tuple.__iter__(value))
    return {"own": own, "group": value.group, "taken": sorted(value.taken - {*own})}
