"""The wire format: the message contract, payloads and their codes."""

from .contract import (
    AGENT_RECORD,
    CONTRACT_VERSION,
    ENROL,
    FAILED,
    NOT_FINITE,
    RECORD,
    REFUSED,
    Instruction,
    Settings,
    Update,
)
from .dense import digest, pack, unpack
from .enrolment import Enrolment
from .layout import Layout
from .magnitude import finite, magnitude_bound
from .records import content_bytes
from .rosters import name_key, sort_names

__all__ = [
    "AGENT_RECORD",
    "CONTRACT_VERSION",
    "ENROL",
    "FAILED",
    "NOT_FINITE",
    "RECORD",
    "REFUSED",
    "Enrolment",
    "Instruction",
    "Layout",
    "Settings",
    "Update",
    "content_bytes",
    "digest",
    "finite",
    "magnitude_bound",
    "name_key",
    "pack",
    "sort_names",
    "unpack",
]
