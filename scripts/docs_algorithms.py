"""A hook of the documentation's build: the table of algorithms, as they describe themselves."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    from privet.wire.registry import Algorithm, algorithms

PLACE = "<!-- the table of algorithms -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table where a page asks for it."""
    return markdown.replace(PLACE, table()) if PLACE in markdown else markdown


def table() -> str:
    """Return the algorithms as a table."""
    rows = [row(algorithm) for algorithm in algorithms().values()]
    head = ["| name | algorithm | noise | local steps | searched |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def row(algorithm: Algorithm) -> str:
    """Return one algorithm's row."""
    strategy, agent = algorithm.load_strategy(), algorithm.load_agent()
    searched = [
        f"`{axis.key}` {axis.low:g} to {axis.high:g} {axis.unit}" for axis in strategy.search
    ]
    if strategy.theory is not None:
        searched.append("or by its theory")
    cells = (
        f"`{algorithm.name}`",
        title(strategy),
        code(getattr(agent, "noise_key", "")),
        code(strategy.local_steps),
        ", ".join(searched),
    )
    return f"| {' | '.join(cells)} |"


def title(strategy: type) -> str:
    """Return what the first line of the Strategy's module says of it."""
    first = (inspect.getdoc(inspect.getmodule(strategy)) or "").partition("\n")[0]
    return re.sub(r"[,;] the (server half|strategy)(?=[.:])", "", first).removesuffix(".")


def code(key: str) -> str:
    """Return a key as code, a dash for none."""
    return f"`{key}`" if key else "-"
