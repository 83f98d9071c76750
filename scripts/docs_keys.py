"""A hook of the documentation's build: the table of run-config keys, from the keys themselves."""

from __future__ import annotations

import math
import warnings
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    from privet.wire.key import Key
    from privet.wire.keys import TABLE

PLACE = "<!-- the table of run-config keys -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table where a page asks for it."""
    return markdown.replace(PLACE, table()) if PLACE in markdown else markdown


def table() -> str:
    """Return the keys as a table: name, default, what it may be, what it means."""
    rows = [f"| `{key.name}` | {default(key)} | {values(key)} | {key.doc} |" for key in TABLE]
    return "\n".join(["| key | default | values | meaning |", "|---|---|---|---|", *rows])


def default(key: Key) -> str:
    """Return the default, and what stands in for it with some algorithms."""
    others = "".join(f"; `{name}`: {value}" for name, value in key.auto.items())
    return ("empty" if key.default == "" else f"`{key.default}`") + others


def values(key: Key) -> str:
    """Return the choices or the range."""
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    if isinstance(key.default, str):
        return "text"
    if isinstance(key.default, bool):
        return "true, false"
    bounds = [f"{'>' if key.open_low else '≥'} {key.low:g}"] if key.low > -math.inf else []
    bounds += [f"≤ {key.high:g}"] if key.high < math.inf else []
    return ", ".join([{int: "whole", float: "number"}[type(key.default)], *bounds])
