"""What only a checkout has beside the library: its benchmarks and the studies of the papers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from privet.core import ConfigError

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, where the library is installed from one."""
FOLDERS = ("tests", "papers")
"""Where its packages are that no wheel has."""


def in_checkout() -> bool:
    """Whether the library runs from a checkout."""
    return (ROOT / "papers" / "studies" / "__init__.py").is_file()


def from_checkout(command: str) -> None:
    """Make a checkout's own packages importable, here and in the processes that are started.

    Raises
    ------
    ConfigError
        If the library does not lie in a checkout.
    """
    if not in_checkout():
        raise ConfigError(
            f"{command}: what it runs is in a checkout only: `make venv` there, then "
            f".venv/bin/privet {command}"
        )
    # First: what is installed may have packages of these names, as Opacus has one of benchmarks.
    folders = [str(ROOT / folder) for folder in FOLDERS]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    known = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *known])
