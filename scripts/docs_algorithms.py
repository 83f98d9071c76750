"""A hook of the documentation's build: the table of algorithms, as they describe themselves."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    from privet.cli.algorithms import described
    from privet.core.registry import Algorithm, algorithms

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
    strategy, about = algorithm.load_strategy(), described(algorithm)
    searched = [
        f"`{axis.key}` {axis.low:g} to {axis.high:g} {axis.unit}" for axis in strategy.search
    ]
    if strategy.theory is not None:
        searched.append("or by its theory")
    cells = (
        f"`{algorithm.name}`",
        about["title"],
        code(about["noise"]),
        code(about["local-steps"]),
        ", ".join(searched),
    )
    return f"| {' | '.join(cells)} |"


def code(key: str) -> str:
    """Return a key as code, a dash for none."""
    return f"`{key}`" if key else "-"
