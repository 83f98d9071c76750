"""The roster of a secure sum as it travels: attempt, names and public keys, once for a group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from flwr.app import ConfigRecord

from .errors import WireError

KEY_BYTES = 32
"""Bytes of a public key of the secure sum."""
LEAST_ROSTER = 3
"""Agents whose uploads are added, at least: of two, each could read the other's."""
LONGEST_NAME = 128
"""Characters of an agent's name at most."""
LONGEST_NAMES = 1 << 24


def with_roster(shared: ConfigRecord, attempt: int, roster: Mapping[str, bytes]) -> ConfigRecord:
    """Return a group's shared record with the roster (name -> public key) of a secure sum."""
    names, keys = json.dumps(list(roster)), b"".join(roster.values())
    return ConfigRecord({**shared, "attempt": attempt, "names": names, "keys": keys})


def parse_roster(names: str, keys: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return names and public keys of ``with_roster`` (raises ``WireError``)."""
    listed = _names(names)
    if len(keys) != KEY_BYTES * len(listed):
        raise WireError(f"roster has {len(listed)} names and {len(keys)} bytes of keys")
    return tuple((name, keys[KEY_BYTES * i : KEY_BYTES * (i + 1)]) for i, name in enumerate(listed))


@lru_cache(maxsize=64)
def _names(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text) if len(text) <= LONGEST_NAMES else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) and is_name(n) for n in names):
        raise WireError("message field 'names' is not a list of agent names")
    return tuple(names)


def is_name(name: str) -> bool:
    """Whether a text can be an agent's name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()
