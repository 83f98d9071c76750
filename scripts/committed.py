"""Says of files of results whether they are the committed ones, dates and machines apart.

A page is compared but for its last section, which names them, a study's JSON file but for its
provenance; all else byte for byte. A page of studies is compared only beside the files of all
studies that the committed one has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ENDINGS = (".csv", ".json", ".jsonl", ".md", ".svg")
RUN = "## How it was run"
SAME, DIFFERS, MISSING = "the committed one", "differs", "studies were not run"


def content(path: Path) -> bytes:
    """Return what of a file does not depend on when and where it was written."""
    text = path.read_bytes()
    if path.suffix == ".md":
        return text.partition(RUN.encode())[0]
    if path.suffix == ".json":
        return json.dumps({**json.loads(text), "provenance": None}).encode()
    return text


def committed(name: str) -> Path | None:
    """Return the committed file of a name: of the results, or the documentation's own."""
    places = (DOCS / part / name for part in ("results", "images", "."))
    return next((place for place in places if place.is_file()), None)


def verdicts(written: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files that have a committed one: the same, different, or not compared."""
    own = sorted(path for path in written if path.suffix in ENDINGS)
    there = {path.name for path in own}
    studies = {path.name for path in (DOCS / "results").glob("*.json")}
    for path in own:
        other = committed(path.name)
        if other is None:
            continue
        paper = "" if path.stem == "index" else path.stem
        of_studies = path.suffix == ".md" and RUN.encode() in path.read_bytes()
        missing = {name for name in studies - there if name.startswith(paper)}
        if (of_studies or not paper) and missing:
            yield path, MISSING
        else:
            yield path, SAME if content(path) == content(other) else DIFFERS
