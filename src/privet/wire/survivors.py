"""What travels where a secure sum opens without the agents that drop out (`privet.kernel`).

Questions beside the message that asks for an upload, each of type ENROL, in the record
``"privet"``::

    "sum-keys"    the roster, as to be signed, and t: an agent answers with the public keys that it
                  has drawn for the sum, their signature by a node with pinned keys, and the shares
                  of its secrets, sealed for each of the others, or for those that it has drawn
    "survivors"   one list of the agents whose uploads came: an agent answers with its signature
    "shares"      the list again, its signatures, and the shares that were sealed for this agent:
                  it answers with the seed of its own mask, one share of each other agent, and
                  which of them it could not read
    "seed"        of a sum of many, whose answers to the last have no seed, and a signature that
                  the shares were given: those of the agents that hold its own shares; it answers
                  with the seed

The message that asks for an upload then has ``sum-keys``, those of the whole roster. Of more than
`MOST_COMPLETE` agents each says in its first answer whom it has ``drawn``; the message for its
upload has the keys and signatures of its neighbours alone, and ``choosers``, who has drawn it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from privet.core.errors import WireError
from privet.kernel.neighbours import MOST_COMPLETE, NEIGHBOURS
from privet.kernel.survivors import SEALED_BYTES, SEED_BYTES, SUM_KEY_BYTES
from privet.kernel.trust import SIGNATURE_BYTES

from .records import config_record, read_field, read_record
from .rosters import roster_question, split

SUM_KEYS, SURVIVORS, SHARES, SEED = "sum-keys", "survivors", "shares", "seed"
"""Kinds of the questions."""
CHOOSERS = "choosers"
THRESHOLD = "sum-threshold"
"""The field of t in the first, and its key in the settings."""


class SumKeys(NamedTuple):
    """An agent's answer to the first question; ``sealed`` is in the holders' order.

    ``drawn`` is a byte 1 or 0 for each name of the roster, of many agents.
    """

    public: bytes
    signature: bytes
    sealed: tuple[bytes, ...]
    drawn: bytes = b""


def keys_question(shared: ConfigRecord, task: bytes, threshold: int) -> ConfigRecord:
    """Return the question for keys of a sum, whose roster ``with_roster`` has put into a record."""
    asked = {"kind": SUM_KEYS, THRESHOLD: threshold}
    return config_record({**roster_question(shared, task), **asked})


def keys_record(agent: str, answer: SumKeys) -> ConfigRecord:
    """Return an agent's answer to it."""
    sealed = b"".join(answer.sealed)
    keys = {"keys": answer.public, "signature": answer.signature, "sealed": sealed}
    if answer.drawn:
        keys["drawn"] = answer.drawn
    return config_record({"kind": SUM_KEYS, "agent": agent, **keys})


def read_keys(content: RecordDict, record: str, agent: str, places: Mapping[str, int]) -> SumKeys:
    """Return an agent's keys of a sum; ``places`` are the roster's (raises ``WireError``)."""
    answer = _answer(content, record, agent, SUM_KEYS)
    (public,) = split(read_field(answer, "keys", bytes), SUM_KEY_BYTES, 1, "keys of a sum")
    signature = read_field(answer, "signature", bytes)
    if signature:
        split(signature, SIGNATURE_BYTES, 1, "signature")
    sealed, drawn = read_field(answer, "sealed", bytes), read_field(answer, "drawn", bytes, b"")
    holders = len(places)
    if holders > MOST_COMPLETE:
        if len(drawn) != holders or not set(drawn) <= {0, 1} or sum(drawn) != NEIGHBOURS:
            raise WireError(f"{sum(drawn)} agents are drawn, expected {NEIGHBOURS}")
        if drawn[places[agent]]:
            raise WireError("it has drawn itself")
        holders = NEIGHBOURS
    return SumKeys(public, signature, split(sealed, SEALED_BYTES, holders, "sealed shares"), drawn)


def with_keys(shared: ConfigRecord, keys: Sequence[bytes]) -> ConfigRecord:
    """Return a group's record with the public keys of its sum, in the roster's order."""
    return config_record({**shared, "sum-keys": b"".join(keys)})


def of_neighbours(
    keys: Sequence[bytes], signed: Sequence[bytes], choosers: bytes
) -> dict[str, bytes]:
    """Return what an agent alone is told of a sum of many, beside the record of its group."""
    told = {"sum-keys": b"".join(keys), CHOOSERS: choosers}
    return {**told, "signed": b"".join(signed)} if signed else told


def survivors_question(shared: ConfigRecord, marks: bytes) -> ConfigRecord:
    """Return the question to sign a list of survivors of an attempt."""
    return config_record({"kind": SURVIVORS, "marks": marks, **_attempt(shared)})


def shares_question(
    shared: ConfigRecord, marks: bytes, signed: Sequence[bytes], sealed: Sequence[bytes]
) -> ConfigRecord:
    """Return the question for an agent's shares.

    ``signed`` is of its holders, ``sealed`` of those whose holder it is.
    """
    said = {"marks": marks, "signed": b"".join(signed), "sealed": b"".join(sealed)}
    return config_record({"kind": SHARES, **said, **_attempt(shared)})


def seed_question(shared: ConfigRecord, gave: Sequence[bytes]) -> ConfigRecord:
    """Return the question for the seed of an agent's own mask; signatures are of its holders."""
    return config_record({"kind": SEED, "signed": b"".join(gave), **_attempt(shared)})


class GivenShares(NamedTuple):
    """An agent's answer to the question for shares (16 bytes each), by name.

    ``own`` is the seed of its own mask; of a sum of many it is empty, and ``gave`` the signature
    that shares were given.
    """

    own: bytes
    shares: Mapping[str, bytes]
    gave: bytes = b""


def shares_record(
    agent: str, own: bytes, given: Sequence[bytes | None], gave: bytes = b""
) -> ConfigRecord:
    """Return an agent's answer: of whom it gives or reads nothing, there is None in ``given``."""
    said = {
        "own": own,
        "given": bytes(one is not None for one in given),
        "shares": b"".join(one or bytes(SEED_BYTES) for one in given),
    }
    if gave:
        said["gave"] = gave
    return config_record({"kind": SHARES, "agent": agent, **said})


def read_shares(
    content: RecordDict, record: str, agent: str, givers: Callable[[str], Sequence[str]]
) -> GivenShares:
    """Return what an agent gives; ``givers`` says of whom it may (raises ``WireError``)."""
    answer, names = _answer(content, record, agent, SHARES), givers(agent)
    own, gave = read_field(answer, "own", bytes), read_field(answer, "gave", bytes, b"")
    split(*((gave, SIGNATURE_BYTES, 1, "signature") if gave else (own, SEED_BYTES, 1, "seed")))
    given = split(read_field(answer, "given", bytes), 1, len(names), "marks of shares")
    shares = split(read_field(answer, "shares", bytes), SEED_BYTES, len(names), "shares")
    each = zip(names, given, shares, strict=True)
    found = {name: share for name, mark, share in each if mark == b"\x01"}
    return GivenShares(b"" if gave else own, found, gave)


def seed_record(agent: str, own: bytes) -> ConfigRecord:
    """Return an agent's answer to the question for its seed."""
    return config_record({"kind": SEED, "agent": agent, "own": own})


def read_seed(content: RecordDict, record: str, agent: str) -> bytes:
    """Return the seed of an agent's own mask (raises ``WireError``)."""
    answer = _answer(content, record, agent, SEED)
    (own,) = split(read_field(answer, "own", bytes), SEED_BYTES, 1, "seed")
    return own


def _answer(content: RecordDict, record: str, agent: str, kind: str) -> Mapping[str, Any]:
    answer = read_record(content, record)
    if (answer.get("kind"), answer.get("agent")) != (kind, agent):
        raise WireError(f"reply is not this agent's answer to the question for {kind}")
    return answer


def _attempt(shared: ConfigRecord) -> dict[str, Any]:
    return {key: shared[key] for key in ("contract", "experiment", "round", "attempt")}
