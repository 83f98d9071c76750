"""Parts of pages that scripts write, between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def fill(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put lines between the marks of a name (raises ``ValueError`` where they are not there)."""
    begin, end = (f"<!-- {which} {name} -->" for which in ("begin", "end"))
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{page}: expected {begin} and {end}")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]))
