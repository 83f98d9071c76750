"""Which version of this library runs here."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

LIBRARY_VERSION = "library-version"
"""The name of the version in messages, checkpoints and summaries."""


@lru_cache(maxsize=1)
def library_version() -> str:
    """Return the installed version of ``flwr-privet``; "unknown" where it is not installed."""
    try:
        return version("flwr-privet")
    except PackageNotFoundError:
        return "unknown"
