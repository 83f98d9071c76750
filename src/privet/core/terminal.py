"""The console that tables and bars are printed to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def styled() -> bool:
    """Return whether text may have colours and bold type: unless NO_COLOR is set."""
    return not os.environ.get("NO_COLOR")


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich; with NO_COLOR it writes no codes for colour or bold type."""
    from rich.console import Console

    return Console(stderr=stderr, color_system="auto" if styled() else None)
