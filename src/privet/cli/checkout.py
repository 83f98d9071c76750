"""Access to packages that only a checkout has: benchmarks and the studies of the papers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from privet.core import ConfigError

ROOT = Path(__file__).resolve().parents[3]
"""The checkout, where the library is installed from one."""
FOLDERS = ("tests", "papers")
"""Folders of the packages that are not in the wheel."""


def in_checkout() -> bool:
    """Return whether the library runs from a checkout."""
    return (ROOT / "papers" / "studies" / "__init__.py").is_file()


def from_checkout(command: str) -> None:
    """Make a checkout's packages importable, in this process and its children.

    Raises
    ------
    ConfigError
        If the library does not lie in a checkout.
    """
    if not in_checkout():
        raise ConfigError(
            f"{command}: what it runs is in a checkout only, and the installed copy is not the "
            f"checkout: `pip install -e .` there, then privet {command}"
        )
    # At the front, as installed packages may have these names: Opacus has one of benchmarks.
    folders = [str(ROOT / folder) for folder in FOLDERS]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    known = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *known])
