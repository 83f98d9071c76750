"""What a regression keeps of each site in the clear: its counts, and its test of the pooled model.

The sites' statistics are no sum that is a test: their scores add up to 0. Each has its own p-value,
and Bonferroni's for as many tests as there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .frame import FloatArray
from .glm_tests import score_test

MOST_SHOWN = 20
"""Sites in a text or on a page: of more, those with the lowest p-values."""

_APART = 0.05


def against_pooled(
    sites: Iterable[tuple[FloatArray, FloatArray]], pooled: FloatArray, dispersion: float
) -> FloatArray:
    """Return statistics and degrees of freedom (sites, 2) of scores (p,) and information (p, p)."""
    tests = [score_test(score, information, pooled, dispersion) for score, information in sites]
    return np.array([[test["chi2"], test["df"]] for test in tests])


def site_entries(counts: FloatArray, tests: FloatArray, with_events: bool = True) -> dict[str, Any]:
    """Return ``by_site`` and ``heterogeneity`` of a table, in the order of its sites.

    Parameters
    ----------
    counts : float64 array (sites, 2)
        Rows and events; without sites where sums were masked, and both entries are None.
    tests : float64 array (sites, 2)
        As of `against_pooled`; without sites where there are none, and ``heterogeneity`` is None.
        A site that has nothing to test has 0 degrees of freedom and None for p.
    """
    by_site = [
        {"n": round(rows), **({"events": round(events)} if with_events else {})}
        for rows, events in counts.tolist()
    ]
    freedom = tests[:, 1] if len(tests) else np.zeros(0)
    several = int((freedom > 0).sum())
    entries = [_entry(chi2, round(df), several) for chi2, df in tests.tolist()]
    return {"by_site": by_site or None, "heterogeneity": entries if several else None}


def _entry(statistic: float, freedom: int, several: int) -> dict[str, Any]:
    from scipy.stats import chi2

    if not freedom:
        return {"chi2": 0.0, "df": 0, "p": None, "p_corrected": None}
    p = float(chi2.sf(statistic, freedom))
    return {"chi2": statistic, "df": freedom, "p": p, "p_corrected": min(1.0, several * p)}


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

    Both are empty where it has nothing of them.
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
    return list(rows[0]), rows[:MOST_SHOWN]


def hidden_sites(table: Mapping[str, Any]) -> str:
    """Return a line on the sites that `site_rows` leaves out; empty where it has all."""
    count = len(table.get("by_site") or ())
    if count <= MOST_SHOWN:
        return ""
    chosen = ", those with the lowest p" if table.get("heterogeneity") else ""
    return f"{MOST_SHOWN} of {count} sites{chosen}; table.json has all"
