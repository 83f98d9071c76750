"""How vectors travel, the message contract, the registry and the table of run-config keys."""

from .contract import (
    AGENT_RECORD,
    CONTRACT_VERSION,
    ENROL,
    FAILED,
    RECORD,
    REFUSED,
    Instruction,
    Settings,
    Update,
)
from .dense import digest, pack, unpack
from .enrolment import Enrolment
from .errors import ConfigError, PrivetError, RunError, UploadError, WireError
from .key import Key
from .keys import defaults, resolve
from .layout import Layout
from .magnitude import finite, magnitude_bound
from .names import name_key, sort_names
from .records import content_bytes
from .registry import Algorithm, algorithm, algorithms
from .streams import stream

__all__ = [
    "AGENT_RECORD",
    "CONTRACT_VERSION",
    "ENROL",
    "FAILED",
    "RECORD",
    "REFUSED",
    "Algorithm",
    "ConfigError",
    "Enrolment",
    "Instruction",
    "Key",
    "Layout",
    "PrivetError",
    "RunError",
    "Settings",
    "Update",
    "UploadError",
    "WireError",
    "algorithm",
    "algorithms",
    "content_bytes",
    "defaults",
    "digest",
    "finite",
    "magnitude_bound",
    "name_key",
    "pack",
    "resolve",
    "sort_names",
    "stream",
    "unpack",
]
