"""The enrolment record: a node's description of itself, sent before its first round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from privet.core.errors import WireError, one_line
from privet.core.library import LIBRARY_VERSION

from .contract import CONTRACT_VERSION, RECORD, require_readable
from .records import config_record, read_field, read_record
from .rosters import KEY_BYTES, LONGEST_NAME, is_name

LONGEST_FACTS = 2000
"""Characters of an agent's facts at most, and of its own settings."""

LONGEST_LAYOUT = 1_000_000
"""Characters of the names and shapes of its model at most, and of what its columns mean."""

MOST_EXAMPLES = 1 << 40
"""Examples, and rows of a column, of one node at most."""

MOST_ROUNDS = 64
"""Rounds whose states a node names at most; it holds two."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A node's description of itself, in answer to the enrolment question."""

    agent: str
    num_examples: int
    dim: int
    dtype: str
    protocol: str
    version: int
    experiment: str
    rounds: tuple[int, ...]
    """Rounds of ``experiment`` whose state the node still holds."""
    unit: str = ""
    """The unit (of several servers) that the node config names; empty for none."""
    public_key: bytes = b""
    """Public key for the secure sums of ``experiment``, if it was requested."""
    signs: bool = False
    """Whether its operator has pinned keys of others, so that it signs the rosters of sums."""
    layout: str = ""
    """Names and shapes of its model's arrays, as JSON; empty where it knows none."""
    buffers: str = ""
    """Layout of the statistics that it takes from the server, as JSON; mostly empty."""
    tied: str = ""
    """Further names that its state dict has of these arrays, each with the first, as JSON."""
    facts: str = ""
    """Its public numbers as JSON, not parsed here."""
    own_settings: str = ""
    """The settings that its operator gave it in place of the run's, as JSON; empty for none."""
    library: str = ""
    """The version of this library that it runs; empty where it does not say."""
    ledger: str = ""
    """Its account of the experiment by its ledger file, as JSON; empty where there is none."""
    step_size: float = 0.0
    """The length of a step of its training loop; 0 where it states none."""
    encoding: str = ""
    """What its columns and classes mean: a text, or digests, not parsed here; empty for none."""


def enrolment_record(enrolment: Enrolment) -> ConfigRecord:
    """Return the reply to the enrolment question."""
    # What is empty is left out: Flower's message_size_mod cannot count it.
    optional = {
        "experiment": enrolment.experiment,
        "rounds": list(enrolment.rounds),
        "unit": enrolment.unit,
        "public-key": enrolment.public_key,
        "signs": enrolment.signs,
        "layout": enrolment.layout,
        "buffers": enrolment.buffers,
        "tied": enrolment.tied,
        "facts": enrolment.facts,
        "own-settings": enrolment.own_settings,
        LIBRARY_VERSION: enrolment.library,
        "ledger": enrolment.ledger,
        "step-size": enrolment.step_size,
        "encoding": enrolment.encoding,
    }
    return config_record(
        {
            "kind": "enrolment",
            "contract": CONTRACT_VERSION,
            "agent": enrolment.agent,
            "num-examples": enrolment.num_examples,
            "dim": enrolment.dim,
            "dtype": enrolment.dtype,
            "protocol": enrolment.protocol,
            "version": enrolment.version,
            **{name: value for name, value in optional.items() if value},
        }
    )


def read_enrolment(content: RecordDict) -> Enrolment:
    """Return a node's answer to the enrolment question (raises ``WireError``)."""
    record = read_record(content, RECORD)
    if record.get("kind") != "enrolment" or record.get("contract") != CONTRACT_VERSION:
        raise WireError("reply is not an enrolment of this contract version")
    rounds = read_field(record, "rounds", list, [])
    if any(type(value) is not int for value in rounds):
        raise WireError("message field 'rounds' holds more than whole numbers")
    return sound(
        Enrolment(
            agent=read_field(record, "agent", str),
            num_examples=read_field(record, "num-examples", int),
            dim=read_field(record, "dim", int),
            dtype=read_field(record, "dtype", str),
            protocol=read_field(record, "protocol", str),
            version=read_field(record, "version", int),
            experiment=read_field(record, "experiment", str, ""),
            rounds=tuple(rounds),
            unit=read_field(record, "unit", str, ""),
            public_key=read_field(record, "public-key", bytes, b""),
            signs=read_field(record, "signs", bool, False),
            layout=read_field(record, "layout", str, ""),
            buffers=read_field(record, "buffers", str, ""),
            tied=read_field(record, "tied", str, ""),
            facts=read_field(record, "facts", str, ""),
            own_settings=read_field(record, "own-settings", str, ""),
            library=one_line(read_field(record, LIBRARY_VERSION, str, ""))[:LONGEST_NAME],
            ledger=read_field(record, "ledger", str, ""),
            step_size=read_field(record, "step-size", float, 0.0),
            encoding=read_field(record, "encoding", str, ""),
        )
    )


_AS_NAMED = f"1 to {LONGEST_NAME} printable characters without a colon or semicolon before a space"


def sound(enrolment: Enrolment) -> Enrolment:
    """Return an enrolment whose texts and numbers are within their bounds (or ``WireError``)."""
    if not is_name(enrolment.agent):
        raise WireError(f"agent name is not {_AS_NAMED}")
    if enrolment.unit and not is_name(enrolment.unit):
        raise WireError(f"unit is not {_AS_NAMED}, or empty")
    if len(enrolment.public_key) not in (0, KEY_BYTES):
        raise WireError(f"public key has {len(enrolment.public_key)} bytes, expected {KEY_BYTES}")
    if (length := len(enrolment.facts)) > LONGEST_FACTS:
        raise WireError(f"facts have {length} characters, at most {LONGEST_FACTS} are read")
    if (length := len(enrolment.own_settings)) > LONGEST_FACTS:
        raise WireError(f"own settings have {length} characters, at most {LONGEST_FACTS}")
    require_readable(enrolment.ledger)
    if enrolment.num_examples > MOST_EXAMPLES:
        raise WireError(f"{enrolment.num_examples} examples are stated, expected 2^40 at most")
    if (count := len(enrolment.rounds)) > MOST_ROUNDS:
        raise WireError(f"states of {count} rounds are named, at most {MOST_ROUNDS} are read")
    if not 0.0 <= enrolment.step_size < math.inf:
        raise WireError(f"step size is {enrolment.step_size}, expected a length")
    texts = enrolment.layout, enrolment.buffers, enrolment.tied
    if (length := max(map(len, texts))) > LONGEST_LAYOUT:
        raise WireError(f"layout has {length} characters, at most {LONGEST_LAYOUT} are read")
    if (length := len(enrolment.encoding)) > LONGEST_LAYOUT:
        raise WireError(f"encoding has {length} characters, at most {LONGEST_LAYOUT} are read")
    return enrolment
