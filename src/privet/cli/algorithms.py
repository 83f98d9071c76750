"""``privet algorithms``: which algorithms there are, as they describe themselves."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from .keys import JsonLinesOption

if TYPE_CHECKING:
    from privet.core.registry import Algorithm


def algorithms(json_lines: JsonLinesOption = False) -> None:
    """List the algorithms: what they are, whether they can be private, and their own keys."""
    from rich.table import Table

    from privet.core import algorithms as registered
    from privet.core import analyses
    from privet.core.terminal import console

    rows = [described(one) for one in registered().values()]
    if json_lines:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table("algorithm", "what it is", "noise", "local steps")
    for row in rows:
        table.add_row(row["name"], row["title"], row["noise"] or "-", row["local-steps"] or "-")
    console().print(table)
    print(f"beside training, analyses of tables: {', '.join(analyses())}")
    print("privet keys NAME lists the keys of an algorithm or analysis")


def described(algorithm: Algorithm) -> dict[str, Any]:
    """Return the description of an algorithm: name, title, keys of its noise and local steps."""
    strategy, agent = algorithm.load_strategy(), algorithm.load_agent()
    return {
        "name": algorithm.name,
        "title": title(strategy),
        "noise": agent.noise_key,
        "local-steps": strategy.local_steps,
    }


def title(strategy: type) -> str:
    """Return the title from the first line of the Strategy's module."""
    first = (inspect.getdoc(inspect.getmodule(strategy)) or "").partition("\n")[0]
    return re.sub(r"[,;] the (server half|strategy)(?=[.:])", "", first).removesuffix(".")
