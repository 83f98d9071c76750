"""Numbers that stand for answers, such as 1 to 5 for how strong a pain is, at several sites."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from privet.data.dataset import some

_CHANCE = 1e-3
"""A site lacks a value where its rows would all be without it by chance less often than this."""
_SHOWN = 6

Counts = Mapping[float, float]
"""By whole number, the rows that have it, of a column with few different ones."""


class _Group(NamedTuple):
    sites: list[str]
    counts: Counts


def parted_codes(sites: Mapping[str, Counts]) -> list[tuple[list[float], list[str]]]:
    """Return groups of sites, with their numbers, where each has a number that another lacks.

    A group lacks a number that would be in none of its rows by chance in less than one of 1000
    tables.

    Parameters
    ----------
    sites : mapping
        By name of the site, the rows of each of few whole numbers.
    """
    known = {name: counts for name, counts in sites.items() if len(counts) > 1}
    groups: list[_Group] = []
    for name in sorted(known, key=lambda one: (-len(known[one]), -sum(known[one].values()))):
        _join(groups, _Group([name], known[name]))
    joined: list[_Group] = []
    for group in groups:  # sites that came later may hold the codes of both
        _join(joined, group)
    return [(sorted(group.counts), sorted(group.sites)) for group in joined]


def codes_apart(groups: Sequence[tuple[list[float], list[str]]]) -> list[str]:
    """Return what to do where the numbers of groups are codes; nothing where they are none.

    Codes begin with 0 or 1, or with their step (10, 20, ...), or lie around 0. Years, ages and
    counts of people of one kind are none.
    """
    if not all(_are_codes(values) for values, _ in groups):
        return []
    each = " and ".join(f"{_shown(values)} in {some(where)}" for values, where in groups)
    return [f"{each}: if these are codes or numbers of the same, write them alike"]


def _join(groups: list[_Group], one: _Group) -> None:
    """Put sites into the group that has most of their numbers, of those that are not apart."""
    near = [
        at
        for at, group in enumerate(groups)
        if not (_lacks(group.counts, one.counts) and _lacks(one.counts, group.counts))
    ]
    if not near:
        groups.append(one)
        return
    at = max(near, key=lambda at: len(groups[at].counts.keys() & one.counts.keys()))
    both = Counter(groups[at].counts) + Counter(one.counts)
    groups[at] = _Group([*groups[at].sites, *one.sites], both)


def _lacks(counts: Counts, others: Counts) -> bool:
    """Return whether rows lack a number that other rows have, by more than chance."""
    rows, total = sum(counts.values()), sum(others.values())
    return any(
        value not in counts and _by_chance(count / total, rows) for value, count in others.items()
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
