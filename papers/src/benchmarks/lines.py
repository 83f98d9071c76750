"""Runs kept as lines of a CSV, so that a measurement can be stopped."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines that are there."""
    if not path.is_file():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def append(path: Path, fields: Sequence[str], line: Mapping[str, Any]) -> None:
    """Append a line, below a head where the file begins."""
    begins = not path.is_file()
    with path.open("a", newline="") as out:
        writer = csv.DictWriter(out, fields, lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerow(line)
