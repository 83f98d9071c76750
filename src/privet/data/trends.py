"""Whether columns go with the label at one site the other way round than at all others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .dataset import FloatArray, some

_LEAST_ROWS = 20
_TREND, _AGAINST = 4.0, 3.0
"""Standard errors from which a correlation at other sites, and one of the other sign at a site, are
not by chance."""


def trend_of(numbers: FloatArray, targets: FloatArray) -> float:
    """Return the correlation of ranks, as a multiple of its standard error (Fisher's z).

    0 for fewer than 20 rows with both numbers, or where one of them is the same in all.
    """
    known = ~(np.isnan(numbers) | np.isnan(targets))
    if known.sum() < _LEAST_ROWS:
        return 0.0
    one, other = (np.unique(x[known], return_inverse=True)[1] for x in (numbers, targets))
    if not (one.any() and other.any()):
        return 0.0
    correlation = min(max(float(np.corrcoef(one, other)[0, 1]), -0.999), 0.999)
    return math.atanh(correlation) * math.sqrt(int(known.sum()) - 3)


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
