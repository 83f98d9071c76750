"""What is read of a run's folder, the keys of a small run, and how a run is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """Ends a run as a lost process does: nothing is written any more."""


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    """Return the keys of four rounds of four agents, and others with underscores for hyphens."""
    keys = {"num-agents": 4, "num-server-rounds": 4, "output-dir": str(folder), "features": 3}
    keys |= {"dataset": "synthetic", "examples-per-agent": 20}
    return keys | {key.replace("_", "-"): value for key, value in given.items()}


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's rounds."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def history_so_far(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the rounds of a run that may not have begun yet."""
    return history(folder) if (folder / "history.jsonl").exists() else []


def summary(folder: Path) -> dict[str, Any]:
    """Return how a run ended."""
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read
