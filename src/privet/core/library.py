"""Which version of this library runs here."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARY_VERSION = "library-version"
"""The name of the version in messages, checkpoints and summaries."""


@lru_cache(maxsize=1)
def library_version() -> str:
    """Return the installed version of ``flwr-privet``; "unknown" where it is not installed."""
    try:
        return version("flwr-privet")
    except PackageNotFoundError:
        return "unknown"


@lru_cache(maxsize=1)
def library_digest() -> str:
    """Return the SHA-256 of the code that runs here, in hexadecimal.

    It is that of the lines "SHA-256 PATH", one for each Python file of the package, with paths in
    the package and in their order: what ``sha256sum`` prints of them, with a single space. A
    checkout and the wheel that is built from it have the same.
    """
    package = Path(__file__).parents[1]
    files = [
        Path(folder, name).relative_to(package).as_posix()
        for folder, _, names in os.walk(package, followlinks=True)  # rooms may be links
        for name in names
        if name.endswith(".py")
    ]
    lines = (
        f"{hashlib.sha256((package / name).read_bytes()).hexdigest()} {name}\n"
        for name in sorted(files)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()
