"""How vectors travel, the message contract, the registry and what a run-config key is."""

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
from .errors import ConfigError, NotFiniteError, PrivetError, RunError, UploadError, WireError
from .key import Key, setting
from .layout import Layout
from .magnitude import finite, magnitude_bound
from .records import content_bytes
from .registry import Algorithm, algorithm, algorithms
from .rosters import name_key, sort_names
from .streams import stream

__all__ = [
    "AGENT_RECORD",
    "CONTRACT_VERSION",
    "ENROL",
    "FAILED",
    "NOT_FINITE",
    "RECORD",
    "REFUSED",
    "Algorithm",
    "ConfigError",
    "Enrolment",
    "Instruction",
    "Key",
    "Layout",
    "NotFiniteError",
    "PrivetError",
    "RunError",
    "Settings",
    "Update",
    "UploadError",
    "WireError",
    "algorithm",
    "algorithms",
    "content_bytes",
    "digest",
    "finite",
    "magnitude_bound",
    "name_key",
    "pack",
    "setting",
    "sort_names",
    "stream",
    "unpack",
]
