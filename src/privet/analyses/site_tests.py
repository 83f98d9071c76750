"""What a regression keeps of each site in the clear: its counts, and two tests of the pooled model.

The sites' statistics are no sum that is a test: their scores add up to 0. Each has its own p-value,
and Bonferroni's for as many tests as there are. The first test asks whether a site shares the
model of all, which real sites hardly ever do exactly. The second allows for a spread between sites,
tau^2, as the others have it, and is the one by which a site is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .frame import FloatArray
from .glm_tests import score_parts

MOST_SHOWN = 20
"""Sites in a text or on a page: of more, those with the lowest p-values."""

_APART = 0.05
FEWEST = 4
"""Sites with something to test below which no site is held against the others' spread."""


def against_pooled(
    sites: Iterable[tuple[FloatArray, FloatArray]], pooled: FloatArray, dispersion: float
) -> FloatArray:
    """Return the tests (sites, 3) of scores (p,) and information (p, p): chi2, df, and p_between.

    The scores are U_s - I_s I^-1 U with U their sum, which is not 0 where the estimate is that of
    a penalised or an unfinished fit. `between_sites` has the last column.
    """
    every = list(sites)
    total = np.linalg.solve(pooled, np.sum([score for score, _ in every], axis=0))
    parts = [
        score_parts(score - information.dot(total), information, pooled, dispersion)
        for score, information in every
    ]
    tests = [[(squares / spread).sum(), len(spread)] for squares, spread in parts]
    return np.column_stack([tests, between_sites(parts)])


def between_sites(parts: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Return by site the p-value of its test against the spread between the other sites.

    Let the coefficients of sites deviate by independent normal vectors of covariance tau^2 phi
    I^-1. A part of a score with variance v phi (`score_parts`) then has (v + tau^2 v^2) phi, but
    for what the deviations of the others add to it, of the order of their shares. tau^2 is that at
    which the statistics of the others, so divided, add up to their degrees of freedom (R. C. Paule,
    J. Mandel, Journal of Research of the National Bureau of Standards 87, 1982, 377-385), 0 where
    they are less without it. The mean square of a site over theirs is F distributed, as both are
    estimates of one spread. NaN of a site without anything to test, and of all where fewer than
    `FEWEST` have something.
    """
    from scipy.stats import f

    tested = [place for place, (squares, _) in enumerate(parts) if len(squares)]
    found = np.full(len(parts), np.nan)
    for place in tested if len(tested) >= FEWEST else ():
        others = [parts[other] for other in tested if other != place]
        squares, spread = (np.concatenate(some) for some in zip(*others, strict=True))
        tau = _spread_of(squares, spread)
        own, own_spread = parts[place]
        mean = (own / (own_spread + tau * own_spread**2)).mean()
        found[place] = f.sf(mean, len(own), len(squares))
    return found


def _spread_of(squares: FloatArray, spread: FloatArray) -> float:
    """Return tau^2 >= 0 at which the mean of squares / (v + tau^2 v^2) is 1, by bisection."""

    def surplus(tau: float) -> float:
        return float((squares / (spread + tau * spread**2)).mean()) - 1.0

    if surplus(0.0) <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    while surplus(high) > 0.0:
        low, high = high, 4.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if surplus(middle) > 0.0 else (low, middle)
    return high


def site_entries(counts: FloatArray, tests: FloatArray, with_events: bool = True) -> dict[str, Any]:
    """Return ``by_site`` and ``heterogeneity`` of a table, in the order of its sites.

    Parameters
    ----------
    counts : float64 array (sites, 2)
        Rows and events; without sites where sums were masked, and both entries are None.
    tests : float64 array (sites, 3)
        As of `against_pooled`; without sites where there are none, and ``heterogeneity`` is None.
        A site that has nothing to test has 0 degrees of freedom and None for p.
    """
    by_site = [
        {"n": round(rows), **({"events": round(events)} if with_events else {})}
        for rows, events in counts.tolist()
    ]
    freedom = tests[:, 1] if len(tests) else np.zeros(0)
    several = int((freedom > 0).sum())
    entries = [_entry(chi2, round(df), several, p) for chi2, df, p in tests.tolist()]
    return {"by_site": by_site or None, "heterogeneity": entries if several else None}


def _entry(statistic: float, freedom: int, several: int, between: float) -> dict[str, Any]:
    from scipy.stats import chi2

    p_between = None if np.isnan(between) else min(1.0, several * between)
    if not freedom:
        return {"chi2": 0.0, "df": 0, "p": None, "p_corrected": None, "p_between": None}
    p = float(chi2.sf(statistic, freedom))
    corrected = min(1.0, several * p)
    test = {"chi2": statistic, "df": freedom, "p": p, "p_corrected": corrected}
    return test | {"p_between": p_between}


def odd_sites(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return by name the sites that differ more than the others do among themselves, with how."""
    return {
        name: (
            f"it differs from the pooled model by more than the others do among themselves "
            f"(p {test['p_between']:.2g}, corrected for {len(names)} sites)"
        )
        for name, test in zip(names, table.get("heterogeneity") or (), strict=False)
        if test["p_between"] is not None and test["p_between"] < _APART
    }


def site_notes(entries: Mapping[str, Any]) -> list[str]:
    """Return what is to be said of the sites' tests."""
    found = [test for test in entries["heterogeneity"] or () if test["df"]]
    notes = []
    if len(found) == 2:
        notes.append("the tests of two sites are the same number, and do not say which is odd")
    if any(test["p_corrected"] < _APART for test in found):
        notes.append(
            "sites differ from the pooled model; as an odd site moves that model, others may look "
            "odd beside it: fit again without the site of the lowest p, and see who is left"
        )
    return notes


def site_rows(table: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of columns and the rows of what a table has of its sites, those shown.

    Both are empty where it has nothing of them; a column is left out that no site has a value of,
    as three sites have none that says how far one is from the two others.
    """
    by_site, tests = table.get("by_site"), table.get("heterogeneity")
    if not by_site:
        return [], []
    names: Sequence[str] = table.get("site_names") or [str(at) for at in range(len(by_site))]
    rows = [{"site": name, **row} for name, row in zip(names, by_site, strict=True)]
    if tests:
        rows = [row | test for row, test in zip(rows, tests, strict=True)]
    if len(rows) > MOST_SHOWN:
        rows = sorted(rows, key=lambda row: 2.0 if row.get("p") is None else row["p"])
    heads = [head for head in rows[0] if any(row[head] is not None for row in rows)]
    return heads, rows[:MOST_SHOWN]


def hidden_sites(table: Mapping[str, Any]) -> str:
    """Return a line on the sites that `site_rows` leaves out; empty where it has all."""
    count = len(table.get("by_site") or ())
    if count <= MOST_SHOWN:
        return ""
    chosen = ", those with the lowest p" if table.get("heterogeneity") else ""
    return f"{MOST_SHOWN} of {count} sites{chosen}; table.json has all"


def tests_said(table: Mapping[str, Any]) -> str:
    """Return what the columns of each site's tests mean; empty for a table without them."""
    if not table.get("heterogeneity"):
        return ""
    said = (
        "chi2 is the score test that a site shares the pooled model; p corrected is p times the "
        "number of sites tested."
    )
    if "p_between" in site_rows(table)[0]:
        said += (
            " p between, so corrected, is of the test that a site differs by no more than the "
            "others do among themselves."
        )
    return said
