"""Pages that scripts write: the scripts' command line, and the parts between two marks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path


def fill(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put lines between the marks of a name (raises ``ValueError`` where they are not there)."""
    begin, end = (f"<!-- {which} {name} -->" for which in ("begin", "end"))
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{page}: expected {begin} and {end}")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]))


def suite(
    about: str, sizes: Iterable[str], tasks: Iterable[str], methods: Iterable[str]
) -> argparse.ArgumentParser:
    """Return the command line of runs of methods on tasks, and of the page that is written."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--size", choices=list(sizes), default="full")
    parser.add_argument("--task", choices=list(tasks), action="append", help="one task alone")
    parser.add_argument("--method", choices=list(methods), action="append", help="one alone")
    parser.add_argument("--write", action="store_true", help="play nothing, write what is there")
    return parser
