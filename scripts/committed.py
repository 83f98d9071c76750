"""Say of each file of results whether it is the committed one, dates and machines apart.

    python scripts/committed.py FOLDER

A page is compared but for its last section, which names them, a study's JSON file but for its
provenance; all else byte for byte. The exit code is 1 if a file differs. A page is compared only
where the folder has all studies that the committed page has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ENDINGS = (".csv", ".json", ".jsonl", ".md", ".svg")
RUN = "## How it was run"


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


def main(folder: Path) -> int:
    """Print a line for each file, and return the exit code."""
    own = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS)
    there = {path.name for path in own}
    studies = {path.name for path in (DOCS / "results").glob("*.json")}
    code = 0
    for path in own:
        other = committed(path.name)
        paper = "" if path.stem == "index" else path.stem
        of_studies = path.suffix == ".md" and RUN.encode() in path.read_bytes()
        missing = {name for name in studies - there if name.startswith(paper)}
        if other is None:
            said = "not committed"
        elif (of_studies or not paper) and missing:
            said = f"not compared, {len(missing)} studies were not run"
        else:
            said = "same" if content(path) == content(other) else "DIFFERS"
            code = max(code, int(said == "DIFFERS"))
        print(f"{said:14} {path.name}")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
