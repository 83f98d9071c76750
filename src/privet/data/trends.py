"""Whether columns go with the label at one site the other way round than at all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.ordered import places

from .dataset import FloatArray, some

Ranks = NDArray[np.int32]

_LEAST_ROWS = 20
_TREND, _AGAINST = 4.0, 3.0
"""Standard errors from which a correlation at other sites, and one of the other sign at a site, are
not by chance."""
_TIED = 5.0
"""The first of these for each two of many columns."""
_CLOSELY = 0.5, 2.0
"""Parts of what columns have to do with each other elsewhere that are as much, but for chance."""
_LOST, _CLOSE = 7.0, 10.0
"""Standard errors of all columns together, and of one alone, by which the rows of a site would go
with the label, if they did so as at all others."""


def trend_of(numbers: FloatArray, targets: FloatArray) -> float:
    """Return the correlation of ranks, as a multiple of its standard error (Fisher's z).

    0 for fewer than 20 rows with both numbers, or where one of them is the same in all.
    """
    known = ~(np.isnan(numbers) | np.isnan(targets))
    if known.sum() < _LEAST_ROWS:
        return 0.0
    whole = bool(known.all())
    one, other = (places(x if whole else x[known]) for x in (numbers, targets))
    if not (one.any() and other.any()):
        return 0.0
    correlation = min(max(_correlation(one, other), -0.999), 0.999)
    return math.atanh(correlation) * math.sqrt(int(known.sum()) - 3)


def _correlation(one: Ranks, other: Ranks) -> float:
    """Return the correlation of two arrays (n,) of ranks, some of them at a time."""
    middles = float(one.mean()), float(other.mean())
    sums = np.zeros(3)
    for rows in mapped.blocks(one):
        a, b = (x[rows] - middle for x, middle in zip((one, other), middles, strict=True))
        sums += [a @ a, a @ b, b @ b]
    return float(sums[1] / math.sqrt(sums[0] * sums[2]))


def ties_of(columns: Sequence[FloatArray]) -> FloatArray:
    """Return the `trend_of` of each two columns, as a matrix, with the mean rank of a column for
    its missing values."""
    count, rows = len(columns), len(columns[0]) if columns else 0
    if rows < _LEAST_ROWS:
        return np.zeros((count, count))
    ranks = mapped.scratch((count, rows), np.float64)
    for row, numbers in zip(ranks, columns, strict=True):
        row[:] = 0.0
        mapped.release()
        known = ~np.isnan(numbers)
        own = places(numbers if known.all() else numbers[known])
        if own.any():
            middle, length = own.mean(), own.std() * math.sqrt(len(own))
            if len(own) == rows:
                np.subtract(own, middle, out=row)
                np.divide(row, length, out=row)
            else:
                row[known] = (own - middle) / length
        mapped.release()
    found: FloatArray = np.arctanh(np.clip(ranks @ ranks.T, -0.999, 0.999)) * math.sqrt(rows - 3)
    return found


def turned(trends: Mapping[str, Mapping[str, float]], label: str) -> list[tuple[str, str]]:
    """Return, by name of the column, the doubts that a site has its labels, or a column, the other
    way round: what goes with the label at all others goes against it there, by more than chance.

    Parameters
    ----------
    trends : mapping
        By name of the column, and of the site, its `trend_of`.
    label : str
        The name of the column of the labels.
    """
    against: dict[str, list[str]] = {}
    strong: dict[str, list[str]] = {}
    sites = set[str]()
    for name, given in trends.items():
        own = {site: trend for site, trend in given.items() if trend}
        sites |= own.keys()
        total, others = sum(own.values()), len(own) - 1
        rising = sum(trend > 0 for trend in own.values())
        for site, trend in own.items():
            if abs(total - trend) < _TREND * math.sqrt(max(1, others)):
                continue
            strong.setdefault(site, []).append(name)
            alone = rising == (1 if trend > 0 else others)
            if alone and abs(trend) >= _AGAINST:
                against.setdefault(site, []).append(name)
    found = []
    for site in list(against)[: 1 if len(sites) == 2 else None]:
        names = against[site]
        if len(names) > 1 and 2 * len(names) >= len(strong[site]):
            text = (
                f"column {label}: {some(names)} go with it in {site!r} the other way round than "
                "elsewhere: if its classes or numbers are reversed there, turn them round"
            )
            found.append((label, text))
            continue
        for name in names:
            text = (
                f"column {name}: goes with {label} in {site!r} the other way round than elsewhere: "
                "if its scale or codes are reversed there, turn them round"
            )
            found.append((name, text))
    return found


class Trends(NamedTuple):
    """What columns of one site have to do with the label, and with each other, by `trend_of`."""

    rows: int
    label: Mapping[str, float]
    ties: Mapping[tuple[str, str], float]


def out_of_step(sites: Mapping[str, Trends]) -> list[tuple[str, list[str]]]:
    """Return the sites at which nothing goes with the label, as columns do at all others, by more
    than chance, while the columns go with each other as they do there; with these columns.

    One column alone must be tied to the label so closely that a site at which it is not by nature
    is no likely one.
    """
    found = []
    for site, own in sites.items():
        others = [one for name, one in sites.items() if name != site]
        strong = {
            name: expected
            for name in own.label
            if abs(expected := _expected([(o.label.get(name, 0.0), o.rows) for o in others], own))
            >= _TREND
        }
        if not strong:
            continue
        signed = [own.label[name] * math.copysign(1, part) for name, part in strong.items()]
        least = _CLOSE if len(strong) == 1 else _LOST
        if sum(map(abs, strong.values())) < least * math.sqrt(len(strong)):
            continue
        if sum(signed) > _TREND / 2 * math.sqrt(len(strong)) or max(map(abs, signed)) >= _AGAINST:
            continue
        if min(abs(part) for part in strong.values()) < 2 * max(map(abs, signed)):
            continue
        if all(_agree(pair, own, others) for pair in own.ties):
            found.append((site, list(strong)))
    return found if len(found) < len(sites) / 2 or len(found) == 1 else []


def against(sites: Mapping[str, Trends]) -> list[tuple[str, str, list[str]]]:
    """Return columns that go with others at one site the other way round than at all other sites,
    by more than chance: site, column, and these others.

    All that goes with the column elsewhere goes against it there, as closely, and all other columns
    go with each other as elsewhere: rows of other kinds, such as other classes, differ in more.
    """
    found = []
    for site, own in sites.items():
        others = [one for name, one in sites.items() if name != site]
        parts = dict[tuple[str, str], float]()
        for pair, tie in own.ties.items():
            expected = _expected([(one.ties.get(pair, 0.0), one.rows) for one in others], own)
            if abs(expected) >= _TIED:
                parts[pair] = tie / expected
        turned_there = [pair for pair, part in parts.items() if _CLOSELY[0] < -part < _CLOSELY[1]]
        for name in {name: None for pair in turned_there for name in pair}:
            of_it = [pair for pair in parts if name in pair]
            rest = [part for pair, part in parts.items() if name not in pair]
            if set(of_it) <= set(turned_there) and all(part > _CLOSELY[0] for part in rest):
                found.append((site, name, [one for pair in of_it for one in pair if one != name]))
                break
    return found[:1] if len(sites) == 2 else found


def _expected(others: Sequence[tuple[float, int]], own: Trends) -> float:
    """Return the trend that a site would have if its rows were as those of the others; 0 where
    these have none, or one of them goes the other way."""
    trends = [trend for trend, _ in others]
    total = sum(rows for _, rows in others)
    if not total or min(trends) < 0 < max(trends):
        return 0.0
    if abs(sum(trends)) < _TREND * math.sqrt(len(trends)):
        return 0.0
    return sum(trend * math.sqrt(rows) for trend, rows in others) / total * math.sqrt(own.rows)


def _agree(pair: tuple[str, str], own: Trends, others: Sequence[Trends]) -> bool:
    expected = _expected([(one.ties.get(pair, 0.0), one.rows) for one in others], own)
    return abs(expected) < _TREND or own.ties[pair] / expected > 0.5
