"""Order of agents: everything is keyed by agent name and folded in this order."""

from __future__ import annotations

from collections.abc import Iterable


def name_key(name: str) -> tuple[int, int, str]:
    """Return the sort key of an agent name: numbers first and by value, then text."""
    if name.isascii() and name.isdigit():
        return (0, int(name), name)
    return (1, 0, name)


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the names in folding order.

    >>> sort_names(["10", "9", "ward-b", "2"])
    ['2', '9', '10', 'ward-b']
    """
    return sorted(names, key=name_key)
