"""Write the run-config keys where they are repeated: Flower's block in pyproject.toml.

``python scripts/keys.py`` rewrites the block; the same module is a hook of the documentation's
build, which puts the table of all keys into the page that asks for it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    from privet.cli.keys import uses, values
    from privet.cli.new import toml
    from privet.core.key import Key, keys_of, shown
    from privet.data.settings import DATA_OWNERS
    from privet.server_apps.config import Entry, RunConfig, defaults, table
    from privet.strategies.participation import ParticipationSettings
    from privet.strategies.run.options import RunSettings

PLACE = "<!-- the table of run-config keys -->"
HEADER = "[tool.flwr.app.config]\n"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table where a page asks for it."""
    return markdown.replace(PLACE, markdown_table()) if PLACE in markdown else markdown


TOPICS: dict[str, tuple[type, ...]] = {
    "The run": (RunConfig, RunSettings),
    "Who takes part": (ParticipationSettings,),
    "Data, loss and regulariser": DATA_OWNERS,
}
"""Headings of the keys that every run has; those of algorithms follow."""


def markdown_table() -> str:
    """Return the keys as a table for each topic: default, values, meaning and whose it is."""
    entries = dict(table())
    parts = []
    for topic, owners in TOPICS.items():
        names = [key.name for owner in owners for key in keys_of(owner).values()]
        parts += [f"\n## {topic}\n", *_table({name: entries.pop(name) for name in names})]
    return "\n".join([*parts, "\n## Algorithms and privacy\n", *_table(entries)])


def _table(entries: dict[str, Entry]) -> list[str]:
    rows = ["| key | default | values | meaning | of |", "|---|---|---|---|---|"]
    for entry in entries.values():
        said: dict[str, list[str]] = {}
        for owner, key in entry.owners.items():
            said.setdefault(_row(key), []).append(owner)
        for text, owners in said.items():
            users = "every run" if owners == [""] else ", ".join(sorted(filter(None, owners)))
            rows.append(f"| `{entry.name}` | {text} | {users} |")
    return rows


def _row(key: Key) -> str:
    default = "empty" if key.default == "" else f"`{shown(key.default)}`"
    meaning = "; ".join((key.doc, *uses(key))).replace("|", "\\|")  # norms are no cells
    return f"{default} | {values(key)} | {meaning}"


def block() -> str:
    """Return the section of pyproject.toml, header included."""
    return HEADER + toml(defaults())


def main() -> int:
    """Rewrite the section of pyproject.toml."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    text = path.read_text()
    begin = text.index(HEADER)
    end = text.index("\n\n", begin) + 1
    path.write_text(text[:begin] + block() + text[end:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
