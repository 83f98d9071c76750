"""What travels where a secure sum opens without the agents that drop out (`privet.kernel`).

Three questions beside the message that asks for an upload, each of type ENROL, in the record
``"privet"``::

    "sum-keys"    the roster, as to be signed, and t: an agent answers with the public keys that it
                  has drawn for the sum, their signature by a node with pinned keys, and the shares
                  of its secrets, sealed for each of the others
    "survivors"   one list of the agents whose uploads came: an agent answers with its signature
    "shares"      the list again, its signatures, and the shares that were sealed for this agent:
                  it answers with the seed of its own mask, one share of each other agent, and
                  which of them it could not read

The message that asks for an upload then has ``sum-keys``, those of the whole roster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from privet.core.errors import WireError
from privet.kernel.survivors import SEALED_BYTES, SEED_BYTES, SUM_KEY_BYTES
from privet.kernel.trust import SIGNATURE_BYTES

from .records import config_record, read_field, read_record
from .rosters import roster_question, split

SUM_KEYS, SURVIVORS, SHARES = "sum-keys", "survivors", "shares"
"""Kinds of the questions."""
THRESHOLD = "sum-threshold"
"""The field of t in the first, and its key in the settings."""


class SumKeys(NamedTuple):
    """An agent's answer to the first question; ``sealed`` is in the roster's order."""

    public: bytes
    signature: bytes
    sealed: tuple[bytes, ...]


def keys_question(shared: ConfigRecord, task: bytes, threshold: int) -> ConfigRecord:
    """Return the question for keys of a sum, whose roster ``with_roster`` has put into a record."""
    asked = {"kind": SUM_KEYS, THRESHOLD: threshold}
    return config_record({**roster_question(shared, task), **asked})


def keys_record(agent: str, answer: SumKeys) -> ConfigRecord:
    """Return an agent's answer to it."""
    sealed = b"".join(answer.sealed)
    keys = {"keys": answer.public, "signature": answer.signature, "sealed": sealed}
    return config_record({"kind": SUM_KEYS, "agent": agent, **keys})


def read_keys(content: RecordDict, record: str, agent: str, count: int) -> SumKeys:
    """Return an agent's keys of a sum of ``count`` agents (raises ``WireError``)."""
    answer = _answer(content, record, agent, SUM_KEYS)
    (public,) = split(read_field(answer, "keys", bytes), SUM_KEY_BYTES, 1, "keys of a sum")
    signature = read_field(answer, "signature", bytes)
    if signature:
        split(signature, SIGNATURE_BYTES, 1, "signature")
    sealed = read_field(answer, "sealed", bytes)
    return SumKeys(public, signature, split(sealed, SEALED_BYTES, count, "sealed shares"))


def with_keys(shared: ConfigRecord, keys: Sequence[bytes]) -> ConfigRecord:
    """Return a group's record with the public keys of its sum, in the roster's order."""
    return config_record({**shared, "sum-keys": b"".join(keys)})


def survivors_question(shared: ConfigRecord, marks: bytes) -> ConfigRecord:
    """Return the question to sign a list of survivors of an attempt."""
    return config_record({"kind": SURVIVORS, "marks": marks, **_attempt(shared)})


def shares_question(
    shared: ConfigRecord, marks: bytes, signed: Sequence[bytes], sealed: Sequence[bytes]
) -> ConfigRecord:
    """Return the question for an agent's shares; the sequences are in the roster's order."""
    said = {"marks": marks, "signed": b"".join(signed), "sealed": b"".join(sealed)}
    return config_record({"kind": SHARES, **said, **_attempt(shared)})


class GivenShares(NamedTuple):
    """An agent's answer to the last: the seed of its own mask, and shares (16 bytes) by name."""

    own: bytes
    shares: Mapping[str, bytes]


def shares_record(agent: str, own: bytes, given: Sequence[bytes | None]) -> ConfigRecord:
    """Return an agent's seed and shares (16 bytes each), None of whom it gives or reads nothing."""
    said = {
        "own": own,
        "given": bytes(one is not None for one in given),
        "shares": b"".join(one or bytes(SEED_BYTES) for one in given),
    }
    return config_record({"kind": SHARES, "agent": agent, **said})


def read_shares(content: RecordDict, record: str, agent: str, names: Sequence[str]) -> GivenShares:
    """Return what an agent gives (raises ``WireError``)."""
    answer = _answer(content, record, agent, SHARES)
    (own,) = split(read_field(answer, "own", bytes), SEED_BYTES, 1, "seed")
    given = split(read_field(answer, "given", bytes), 1, len(names), "marks of shares")
    shares = split(read_field(answer, "shares", bytes), SEED_BYTES, len(names), "shares")
    each = zip(names, given, shares, strict=True)
    return GivenShares(own, {name: share for name, mark, share in each if mark == b"\x01"})


def _answer(content: RecordDict, record: str, agent: str, kind: str) -> Mapping[str, Any]:
    answer = read_record(content, record)
    if (answer.get("kind"), answer.get("agent")) != (kind, agent):
        raise WireError(f"reply is not this agent's answer to the question for {kind}")
    return answer


def _attempt(shared: ConfigRecord) -> dict[str, Any]:
    return {key: shared[key] for key in ("contract", "experiment", "round", "attempt")}
