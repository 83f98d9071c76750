"""The base of every package: errors, run-config keys, the registry of algorithms."""

from .errors import ConfigError, NotFiniteError, PrivetError, RunError, UploadError, WireError
from .key import Key, same, setting
from .registry import Algorithm, algorithm, algorithms, analyses, registered

__all__ = [
    "Algorithm",
    "ConfigError",
    "Key",
    "NotFiniteError",
    "PrivetError",
    "RunError",
    "UploadError",
    "WireError",
    "algorithm",
    "algorithms",
    "analyses",
    "registered",
    "same",
    "setting",
]
