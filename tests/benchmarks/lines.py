"""Runs kept as lines of a CSV, so that a measurement can be stopped, and the table of a page."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARKS = ("<!-- table -->\n", "<!-- end of the table -->\n")


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


def between(page: Path, table: str) -> None:
    """Write a table between the marks of a page."""
    before, rest = page.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    page.write_text(before + MARKS[0] + "\n" + table + "\n" + MARKS[1] + after)
