"""Numbers that stand for answers, such as 1 to 5 for how strong a pain is, at several sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from privet.data.dataset import some

_CHANCE = 1e-3
"""A site lacks a value where its rows would all be without it by chance less often than this."""
_RARE = 0.05
"""Or have it in less than this part of the rows that the other site's share would give it."""
_SHOWN = 6

Counts = Mapping[float, float]
"""How many rows have each of few whole numbers."""


class _Group(NamedTuple):
    sites: list[str]
    counts: dict[float, float]


def several_codes(sites: Mapping[str, Counts]) -> list[str]:
    """Return what to do where sites code the answers of one column differently; nothing where the
    codes of some are among those of the others.

    Codes begin with 0 or 1, or with their step (10, 20, ...), or lie around 0: years, ages and
    counts of one kind of site do not part so. Two sites are apart where each has a number that the
    other lacks, and would lack by chance in less than one of 1000 tables.

    Parameters
    ----------
    sites : mapping
        By name of the site, the rows of each whole number; empty where it has other numbers or
        many different ones, and the column is a quantity.
    """
    if not all(sites.values()):
        return []
    known = {name: counts for name, counts in sites.items() if len(counts) > 1}
    groups: list[_Group] = []
    for name in sorted(known, key=lambda one: (-len(known[one]), -sum(known[one].values()))):
        _join(groups, _Group([name], dict(known[name])))
    joined: list[_Group] = []
    for group in groups:  # sites that came later may hold the codes of both
        _join(joined, group)
    if len(joined) < 2 or not all(_are_codes(sorted(group.counts)) for group in joined):
        return []
    each = " and ".join(
        f"{_shown(sorted(group.counts))} in {some(sorted(group.sites))}" for group in joined
    )
    return [f"{each}: if these are codes of the same, code them alike"]


def _join(groups: list[_Group], one: _Group) -> None:
    for at, group in enumerate(groups):
        if not (_lacks(group.counts, one.counts) and _lacks(one.counts, group.counts)):
            values = sorted({*group.counts, *one.counts})
            sums = {x: group.counts.get(x, 0) + one.counts.get(x, 0) for x in values}
            groups[at] = _Group([*group.sites, *one.sites], sums)
            return
    groups.append(one)


def _lacks(counts: Counts, others: Counts) -> bool:
    """Return whether rows lack a number that other rows have, by more than chance."""
    rows, total = sum(counts.values()), sum(others.values())
    return any(
        counts.get(value, 0) < _RARE * rows * count / total and _by_chance(count / total, rows)
        for value, count in others.items()
    )


def _by_chance(share: float, rows: float) -> bool:
    return share >= 1.0 or rows * math.log1p(-share) < math.log(_CHANCE)


def lacked(share: float, rows: float) -> bool:
    """Return whether rows that all lack a value of such a share elsewhere do so by more than
    chance."""
    return share > 0.0 and _by_chance(share, rows)


def _are_codes(values: Sequence[float]) -> bool:
    step = math.gcd(*(int(high - low) for low, high in pairwise(values)))
    return values[0] in (0.0, 1.0, step) or values[0] == -values[-1]


def _shown(values: Sequence[float]) -> str:
    low, high = values[0], values[-1]
    if len(values) > 2 and high - low == len(values) - 1:
        return f"{low:g} to {high:g}"
    more = " ..." if len(values) > _SHOWN else ""
    return f"{', '.join(f'{one:g}' for one in values[:_SHOWN])}{more}"
