"""Privacy-critical: the message contract, and which settings of a run mean privacy.

Server to agent (TRAIN), two small records, so that what is the same for all agents is one object
on the wire however many agents there are::

    "privet"        the contract version, protocol, its version, experiment, round, settings
                    (JSON of the algorithm's parameters), payload (what is broadcast)
    "privet.agent"  tag (round of the upload last accepted from this agent, 0 for none) and, when
                    the server knows that the agent cannot hold that state, the state itself
                    with the account (``ledger``) that the agent last sent

Where uploads are masked, the shared record also has ``attempt``, ``names`` and ``keys``: the roster
of the agent's group. Agents whose operators have pinned keys are asked to sign it first (a message
of type ENROL, `privet.wire.rosters`); it then has ``signed`` as well. Where a sum opens without the
agents that drop out, it has ``sum-keys``, and other questions go with it (`privet.wire.survivors`).

Agent to server, one record ``"privet"`` of kind ``update``, ``need-state`` or ``enrolment``.
Fields of more than 1 MiB travel as arrays of a record ``"privet.arrays"`` beside them, either way.
Failures travel as Flower error replies whose reason is one line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from privet.core.errors import WireError
from privet.kernel.agent_ledger import LONGEST_ACCOUNT
from privet.kernel.survivors import SUM_KEY_BYTES

from .flower_internals import held_by
from .payload import from_payload, to_payload
from .records import config_record, joined, parse_json, read_field, read_record
from .rosters import parse_roster, parse_signatures, split

CONTRACT_VERSION = 1
"""Version of the message contract; nodes and coordinator have the same."""
RECORD = "privet"
"""Name of the record of a message with what is asked of, or said by, all agents alike."""
AGENT_RECORD = "privet.agent"
"""Name of the record of a message that is one agent's own."""
ENROL = "query.privet"
"""Message type of the enrolment question, so that a user's own query handler stays free."""

SPARSE_FIELD = "privet.sparse"
"""Field of a ``ConfigRecord`` that stands for the arrays of another strategy's reply."""

REFUSED = 100
"""Error code of an agent that declined on purpose (its budget, its rules)."""
FAILED = 101
"""Error code of an agent whose handler failed."""
NOT_FINITE = 102
"""Error code of an agent that met numbers which are not finite, or too large: its own, or sent."""

ENROL_AGAIN = 103
"""Error code of an agent whose data are not encoded as the run's agents have agreed."""

PRIVATE_KEYS = ("clip", "noise-scale", "noise-variance")

LAST_ROUND = 1 << 53
LAST_ATTEMPT = (1 << 53) - 1
"""Of a round's secure sum; what stands for a round that is closed to an agent comes after it."""
LONGEST_EXPERIMENT = 200
"""Bytes of an experiment's name at most: an agent keeps it with its state."""
LONGEST_ABOUT = 1 << 22
"""Characters of the JSON text in an agent's reply at most."""
LONGEST_SETTINGS = 1 << 15
"""Characters of a message's parameters at most; those of a few messages are kept."""
LONGEST_PROTOCOL = 200
"""Characters of an algorithm's name at most."""
_HEAD = re.compile(r"[0-9a-f]{64}")

Settings = Mapping[str, bool | int | float | str]
"""Parameters of a message by name."""


class Instruction(NamedTuple):
    """One agent's training instruction as read from a message."""

    protocol: str
    version: int
    experiment: str
    round: int
    settings: str
    payload: bytes
    tag: int
    recovery: bytes | None
    ledger: str = ""
    """The agent's own account as the server last saw it, for one that may have lost it."""
    attempt: int = 0
    """Which attempt at this round's secure sum, from 1; 0 without one."""
    roster: tuple[tuple[str, bytes], ...] = ()
    """Names and public keys of the agents whose uploads are to be added."""
    signed: tuple[bytes, ...] = ()
    """Their signatures of this roster, round and task; empty where none were collected."""
    sum_keys: tuple[bytes, ...] = ()
    """Their public keys of this sum, where it opens without agents that drop out; of many agents
    those of this one's neighbours alone, as are the signatures then."""
    choosers: bytes = b""
    """Of many agents, by a byte 1 or 0 for each name: whether it has drawn this one."""

    def broadcast(self) -> dict[str, NDArray[Any]]:
        """Return the arrays every agent was sent."""
        return from_payload(self.payload)


class Update(NamedTuple):
    """One agent's upload as read from a reply."""

    agent: str
    round: int
    num_examples: int
    digest: int
    payload: bytes
    epsilon: float
    delta: float
    note: str
    ledger: str
    """The agent's releases so far as JSON, empty where it keeps no account."""
    head: str = ""
    """The head of its node's ledger file: 64 hexadecimal digits, empty where it keeps none."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the uploaded arrays as read-only views."""
        return from_payload(self.payload)


def encode_settings(settings: Settings) -> str:
    """Return the parameters as canonical JSON (floats round-trip exactly)."""
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"))


def decode_settings(text: str) -> dict[str, Any]:
    """Return the parameters of ``encode_settings`` (raises ``WireError``)."""
    return parse_json(text, "settings are", dict, LONGEST_SETTINGS)


def means_privacy(settings: Settings) -> bool:
    """Whether a run's parameters clip or add noise: its agents then keep failures to themselves."""
    return any(float(settings.get(key, 0.0)) > 0 for key in PRIVATE_KEYS)


def shared_record(
    protocol: str,
    version: int,
    experiment: str,
    round_: int,
    settings: str,
    arrays: Mapping[str, NDArray[Any]],
) -> ConfigRecord:
    """Return the record that is the same for all agents of a round."""
    return ConfigRecord(
        {
            "contract": CONTRACT_VERSION,
            "protocol": protocol,
            "version": version,
            "experiment": experiment,
            "round": round_,
            "settings": settings,
            "payload": to_payload(arrays),
        }
    )


def agent_record(tag: int, recovery: bytes | None = None, ledger: str = "") -> ConfigRecord:
    """Return the record that differs per agent; ``recovery`` is its packed state."""
    held: dict[str, Any] = {"tag": tag}
    if recovery is not None:
        held["recovery"] = recovery
    if ledger:
        held["ledger"] = ledger
    return config_record(held)


def read_experiment(record: Mapping[str, Any]) -> str:
    """Return the name of the experiment that a server asks for (raises ``WireError``)."""
    name = read_field(record, "experiment", str)
    if len(name) > LONGEST_EXPERIMENT or len(name.encode()) > LONGEST_EXPERIMENT:
        raise WireError(f"experiment has a name of more than {LONGEST_EXPERIMENT} bytes")
    return name


def read_protocol(record: Mapping[str, Any]) -> str:
    """Return the name of the algorithm that a server asks for (raises ``WireError``)."""
    name = read_field(record, "protocol", str)
    if len(name) > LONGEST_PROTOCOL:
        raise WireError(f"protocol has a name of more than {LONGEST_PROTOCOL} characters")
    return name


def read_number(record: Mapping[str, Any], name: str, last: int) -> int:
    """Return a round, or an attempt at one, from 1 to ``last`` (raises ``WireError``)."""
    number = read_field(record, name, int)
    if not 1 <= number <= last:
        raise WireError(f"message field {name!r} is {number}, expected 1 to {last}")
    return number


def require_readable(account: str) -> str:
    """Return an agent's account, refused where it is longer than what is read.

    Raises
    ------
    WireError
    """
    if len(account) > LONGEST_ACCOUNT:
        raise WireError(f"account is longer than {LONGEST_ACCOUNT} characters")
    return account


def read_instruction(content: RecordDict) -> Instruction:
    """Return the instruction of a TRAIN message.

    Raises
    ------
    WireError
        If the records are missing, malformed or of another contract version.
    """
    content = joined(content)
    shared = read_record(content, RECORD)
    agent_fields = read_record(content, AGENT_RECORD)
    masked = "attempt" in shared
    if shared.get("contract") != CONTRACT_VERSION:
        raise WireError(
            f"message contract version {shared.get('contract')!r}, "
            f"this side speaks {CONTRACT_VERSION}"
        )
    round_ = read_number(shared, "round", LAST_ROUND)
    roster = (
        parse_roster(read_field(shared, "names", str), read_field(shared, "keys", bytes))
        if masked
        else ()
    )
    sum_keys = read_field(shared, "sum-keys", bytes, b"")
    choosers = read_field(shared, "choosers", bytes, b"")
    told = min(len(sum_keys) // SUM_KEY_BYTES, len(roster)) if choosers else len(roster)
    return Instruction(
        protocol=read_protocol(shared),
        version=read_field(shared, "version", int),
        experiment=read_experiment(shared),
        round=round_,
        settings=read_field(shared, "settings", str),
        payload=read_field(shared, "payload", bytes),
        tag=read_field(agent_fields, "tag", int),
        recovery=read_field(agent_fields, "recovery", bytes)
        if "recovery" in agent_fields
        else None,
        ledger=read_field(agent_fields, "ledger", str, ""),
        attempt=read_number(shared, "attempt", LAST_ATTEMPT) if masked else 0,
        roster=roster,
        signed=parse_signatures(read_field(shared, "signed", bytes, b""), told),
        sum_keys=split(sum_keys, SUM_KEY_BYTES, told, "keys of the sum") if sum_keys else (),
        choosers=choosers,
    )


def update_record(protocol: str, version: int, update: Update) -> ConfigRecord:
    """Return an agent's upload as one record of three fields.

    The small fields are one JSON text: Flower checks every field of a record on both sides, and
    twelve of them cost more than the payload.
    """
    about: dict[str, Any] = {
        "protocol": protocol,
        "version": version,
        "agent": update.agent,
        "num-examples": update.num_examples,
        "round": update.round,
        "digest": update.digest,
        "epsilon": float(update.epsilon) if math.isfinite(update.epsilon) else "inf",
        "delta": float(update.delta),
    }
    if update.note:
        about["note"] = update.note
    if update.ledger:
        about["ledger"] = update.ledger
    if update.head:
        about["head"] = update.head
    return config_record({"kind": "update", "about": json.dumps(about), "payload": update.payload})


def need_state_record(agent: str) -> ConfigRecord:
    """Return the reply of an agent that does not hold the state that the instruction names."""
    return ConfigRecord({"kind": "need-state", "agent": agent})


def is_need_state(content: RecordDict) -> bool:
    """Whether a reply asks for the agent's state."""
    record = held_by(content).get(RECORD)
    return isinstance(record, ConfigRecord) and held_by(record).get("kind") == "need-state"


def read_update(content: RecordDict, protocol: str, version: int, round_: int) -> Update:
    """Return the upload in a reply, checked against the protocol and round it must belong to.

    Raises
    ------
    WireError
        If the reply is of another protocol, version or round, or is malformed.
    """
    record = read_record(joined(content), RECORD)
    if record.get("kind") != "update":
        raise WireError(f"reply of kind {record.get('kind')!r}, expected 'update'")
    about = parse_json(
        read_field(record, "about", str), "message field 'about' is", dict, LONGEST_ABOUT
    )
    spoken = (about.get("protocol"), about.get("version"))
    if spoken != (protocol, version):
        raise WireError(
            f"reply speaks {spoken[0]} version {spoken[1]}, expected {protocol} version {version}"
        )
    if about.get("round") != round_:
        raise WireError(f"reply is of round {about.get('round')}, expected {round_}")
    return Update(
        agent=read_field(about, "agent", str),
        round=round_,
        num_examples=read_field(about, "num-examples", int),
        digest=read_field(about, "digest", int),
        payload=read_field(record, "payload", bytes),
        epsilon=math.inf if about.get("epsilon") == "inf" else _cost_in(about, "epsilon", math.inf),
        delta=_cost_in(about, "delta", 1.0),
        note=read_field(about, "note", str, ""),
        ledger=require_readable(read_field(about, "ledger", str, "")),
        head=_head_in(about),
    )


def _cost_in(about: Mapping[str, Any], name: str, most: float) -> float:
    """Return an epsilon or a delta in the small fields of a reply (``WireError``)."""
    cost = read_field(about, name, float)
    if not 0 <= cost <= most:
        raise WireError(f"message field {name!r} is {cost}, expected 0 to {most:g}")
    return cost


def _head_in(about: Mapping[str, Any]) -> str:
    """Return the head of a node's ledger in the small fields of its reply (``WireError``)."""
    head = read_field(about, "head", str, "")
    if head and not _HEAD.fullmatch(head):
        raise WireError("message field 'head' is not a SHA-256 of 64 hexadecimal digits")
    return head
