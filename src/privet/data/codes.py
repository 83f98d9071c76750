"""Numbers that stand for answers, such as 1 to 5 for how strong a pain is, at several sites."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from .dataset import some

_CHANCE = 1e-3
"""A site lacks a value where its rows would all be without it by chance less often than this."""
_CHANCE_OF_ZERO = 1e-6
"""The chance that one site has all zeros, if rows were dealt to sites at random."""
_SHOWN = 6
_LARGEST = 9
"""Codes that skip numbers, such as 3, 6, 7, have one digit: larger ones are rather amounts."""

Counts = Mapping[float, float]
"""By whole number, the rows that have it, of a column with few different ones."""


class _Group(NamedTuple):
    sites: list[str]
    counts: Counts


def parted_codes(sites: Mapping[str, Counts]) -> list[tuple[Counts, list[str]]]:
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
    return [(dict(sorted(group.counts.items())), sorted(group.sites)) for group in joined]


def codes_apart(groups: Sequence[tuple[Counts, list[str]]]) -> list[str]:
    """Return what to do where the numbers of groups are codes; nothing where they are none.

    Codes begin with 0 or 1, or with their step (10, 20, ...), also with the other sign, or lie
    around 0, or skip numbers by more than chance. Years, ages and counts of people of one kind are
    none.
    """
    if not all(_are_codes(counts) for counts, _ in groups):
        return []
    each = " and ".join(f"{_shown(list(counts))} in {some(where)}" for counts, where in groups)
    return [f"{each}: if these are codes or numbers of the same, write them alike"]


def from_zero(sites: Mapping[str, Counts]) -> list[str]:
    """Return what to do where one site counts from 0 and all others from 1, by more than chance."""
    zero = [name for name, counts in sites.items() if min(counts) == 0.0]
    others = [counts for name, counts in sites.items() if name not in zero]
    if len(zero) != 1 or not others or any(min(counts) != 1.0 for counts in others):
        return []
    counts = sites[zero[0]]
    rows, total = sum(counts.values()), sum(sum(one.values()) for one in others)
    if len(counts) < 3 or (rows / (rows + total)) ** counts[0.0] > _CHANCE_OF_ZERO:
        return []
    return [
        f"0 in {counts[0.0]:g} of {rows:g} rows of {zero[0]!r}, and 1 or more in all others: if "
        "it counts from 0 there, or 0 stands for missing values, write these cells as the others do"
    ]


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


def _are_codes(counts: Counts) -> bool:
    values = list(counts)
    step = math.gcd(*(int(high - low) for low, high in pairwise(values)))
    if {values[0], -values[-1]} & {0.0, 1.0, step} or values[0] == -values[-1]:
        return True
    return step == 1 and values[0] > 0 and values[-1] <= _LARGEST and skip(counts)


def skip(counts: Counts) -> bool:
    """Return whether rows skip a whole number between two others, as codes do, by more than chance:
    a count that lies between two others is not rarer than both."""
    rows = sum(counts.values())
    return any(
        high - low > 1 and lacked(min(counts[low], counts[high]) / rows, rows)
        for low, high in pairwise(counts)
    )


def _shown(values: Sequence[float]) -> str:
    low, high = values[0], values[-1]
    if len(values) > 2 and high - low == len(values) - 1:
        return f"{low:g} to {high:g}"
    more = " ..." if len(values) > _SHOWN else ""
    return f"{', '.join(f'{one:g}' for one in values[:_SHOWN])}{more}"
