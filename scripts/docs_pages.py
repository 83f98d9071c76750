"""A hook of the documentation's build: the version in the footer, and when a page last changed."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from privet.core.library import library_version

SNIPPET = '--8<-- "'


def on_config(config: Any) -> Any:
    """Name the version under every page."""
    config.copyright = f"Privet {library_version()}"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Give the theme the day of a page's last commit, or that of the file that it includes."""
    source = Path(page.file.abs_src_path)
    root = Path(__file__).resolve().parents[1]
    included = [part.partition('"')[0].partition(":")[0] for part in markdown.split(SNIPPET)[1:]]
    days = last_changes(str(root))
    known = [days[name] for name in (str(source.relative_to(root)), *included) if name in days]
    if known:
        page.meta["revision_date"] = max(known)
    return markdown


@cache
def last_changes(root: str) -> dict[str, str]:
    """Return the day of each file's last commit by its path; empty without git or its history."""
    command = ["git", "-C", root, "log", "--format=/%cs", "--name-only", "-z", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    days: dict[str, str] = {}
    day = ""
    for word in done.stdout.replace("\n", "\0").split("\0"):
        if word.startswith("/"):
            day = word[1:]
        elif word:
            days.setdefault(word, day)
    return days
