"""Where the repository and the optional reference material beside it are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "privet"
SHARED = ROOT.parent / "shared"


def golden(pattern: str) -> list[Path]:
    """Return the worked instances whose file names match, skipping the test when there are none."""
    files = sorted((SHARED / "golden").glob(pattern))
    if not files:
        pytest.skip(f"no worked instances {pattern} beside the repository")
    return files


def data_file(name: str) -> Path:
    """Return a data file beside the repository, skipping the test when it is absent."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the repository")
    return path
