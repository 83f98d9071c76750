"""The roster of a secure sum as it travels: attempt, names and public keys, once for a group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

from flwr.app import ConfigRecord, RecordDict

from privet.core.errors import WireError
from privet.kernel.masks import MOST_MEMBERS
from privet.kernel.trust import SIGNATURE_BYTES

from .records import config_record, parse_json, read_field, read_record

KEY_BYTES = 32
"""Bytes of a public key of the secure sum."""
LEAST_ROSTER = 3
"""Agents whose uploads are added, at least: of two, each could read the other's."""
LONGEST_NAME = 128
"""Characters of an agent's name at most."""
LONGEST_ENTRY = 6 * LONGEST_NAME + 4
"""Characters that an agent's name takes on a roster at most, with escapes."""
ROSTER = "roster"
"""Kind of the question to sign a roster; it comes as an enrolment question does."""
_LONGEST_KEPT = 1 << 16
"""Of names that are kept for the next message: agents of one process are sent the same."""


def with_roster(shared: ConfigRecord, attempt: int, roster: Mapping[str, bytes]) -> ConfigRecord:
    """Return a group's shared record with the roster (name -> public key) of a secure sum."""
    names, keys = json.dumps(list(roster)), b"".join(roster.values())
    sent = {**shared, "attempt": attempt, "names": names, "keys": keys}
    for of_another in ("signed", "sum-keys"):
        sent.pop(of_another, None)
    return ConfigRecord(sent)


def roster_question(shared: ConfigRecord, task: bytes) -> ConfigRecord:
    """Return the question to sign a roster that ``with_roster`` has put into a group's record.

    ``task`` is the digest of the settings and the broadcast, which it leaves out.
    """
    asked = ("contract", "protocol", "version", "experiment", "round", "attempt", "names", "keys")
    return config_record({"kind": ROSTER, "task": task, **{key: shared[key] for key in asked}})


def signature_record(agent: str, signature: bytes) -> ConfigRecord:
    """Return an agent's answer to the question to sign a roster."""
    return config_record({"kind": "signature", "agent": agent, "signature": signature})


def read_signature(content: RecordDict, record: str, agent: str) -> bytes:
    """Return an agent's signature of a roster (raises ``WireError``)."""
    answer = read_record(content, record)
    if (answer.get("kind"), answer.get("agent")) != ("signature", agent):
        raise WireError("reply is not this agent's signature of the roster")
    (signature,) = split(read_field(answer, "signature", bytes), SIGNATURE_BYTES, 1, "signature")
    return signature


def with_signatures(shared: ConfigRecord, signed: Mapping[str, bytes]) -> ConfigRecord:
    """Return a group's record with the signatures of its roster, zeros for who gives none."""
    none = bytes(SIGNATURE_BYTES)
    listed = _agent_names(str(shared["names"]))
    return ConfigRecord({**shared, "signed": b"".join(signed.get(name, none) for name in listed)})


def parse_signatures(signed: bytes, count: int) -> tuple[bytes, ...]:
    """Return the signatures of so many agents, none where none came (raises ``WireError``)."""
    what = f"list of {count} signatures"
    return split(signed, SIGNATURE_BYTES, count, what) if signed else ()


def split(given: bytes, size: int, count: int, what: str) -> tuple[bytes, ...]:
    """Return ``count`` parts of ``size`` bytes each (raises ``WireError`` for other bytes)."""
    if len(given) != size * count:
        raise WireError(f"{what} has {len(given)} bytes, expected {size * count}")
    return tuple(given[at : at + size] for at in range(0, len(given), size))


def parse_roster(names: str, keys: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return names and public keys of ``with_roster`` (raises ``WireError``).

    Names are read where they can be as many as the keys, so that they are no more than can be.
    """
    count = len(keys) // KEY_BYTES
    if count > MOST_MEMBERS:
        raise WireError(f"roster of {count} agents: at most {MOST_MEMBERS}")
    if len(names) > LONGEST_ENTRY * count + 2:
        raise WireError(f"roster has {count} keys and {len(names)} characters of names")
    read = _roster if len(names) <= _LONGEST_KEPT else _roster.__wrapped__
    return read(names, keys)


@lru_cache(maxsize=16)
def _roster(names: str, keys: bytes) -> tuple[tuple[str, bytes], ...]:
    read = _agent_names if len(names) <= _LONGEST_KEPT else _agent_names.__wrapped__
    listed = read(names)
    if len(keys) != KEY_BYTES * len(listed):
        raise WireError(f"roster has {len(listed)} names and {len(keys)} bytes of keys")
    return tuple((name, keys[KEY_BYTES * i : KEY_BYTES * (i + 1)]) for i, name in enumerate(listed))


def name_key(name: str) -> tuple[int, int, str]:
    """Return the sort key of an agent name: numbers first and by value, then text."""
    if name.isascii() and name.isdigit():
        return (0, int(name), name)
    return (1, 0, name)


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the names in folding order.

    Examples
    --------
    >>> sort_names(["10", "9", "ward-b", "2"])
    ['2', '9', '10', 'ward-b']
    """
    return sorted(names, key=name_key)


@lru_cache(maxsize=64)
def _agent_names(text: str) -> tuple[str, ...]:
    names = parse_json(text, "message field 'names' is", list, LONGEST_ENTRY * MOST_MEMBERS + 2)
    if not all(isinstance(name, str) and is_name(name) for name in names):
        raise WireError("message field 'names' is not a list of agent names")
    return tuple(names)


def is_name(name: str) -> bool:
    """Whether a text can be an agent's name.

    Not with the marks that end a name in a line of the log: it could say what another agent did.
    """
    marked = ": " in f"{name} " or "; " in f"{name} "
    return 0 < len(name) <= LONGEST_NAME and name.isprintable() and not marked
