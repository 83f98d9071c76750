"""The table of a Kaplan-Meier run: curves and tests of pooled counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .frame import FloatArray
from .log_rank import LogRankSums, log_rank, log_rank_sums
from .survival_curve import SurvivalCurve


@dataclass(frozen=True, eq=False)
class SurvivalCurves:
    """Pooled counts on a grid, for a table.

    Attributes
    ----------
    groups : tuple of str
        Empty for one curve of all.
    times : float64 array (k,)
    counts : float64 array (3, g, k)
        Events, censored rows and entries.
    own : LogRankSums
        Of the sites' own strata.
    off_grid : int
    time_unit, restriction : float
    """

    groups: tuple[str, ...]
    times: FloatArray
    counts: FloatArray
    own: LogRankSums
    off_grid: int
    time_unit: float
    restriction: float


def numbers_at_risk(events: FloatArray, censored: FloatArray, entries: FloatArray) -> FloatArray:
    """Return those at risk (..., k) just before each time.

    Without entries all who leave have been there from the beginning; an entry at a time counts
    from the next one on.
    """
    leave = events + censored
    staying = np.cumsum(leave[..., ::-1], axis=-1)[..., ::-1]
    to_come = np.cumsum(entries[..., ::-1], axis=-1)[..., ::-1]
    result: FloatArray = staying - to_come
    return result


def curves_table(curves: SurvivalCurves) -> dict[str, Any]:
    """Return curves of all and by group, medians, restricted means and tests, as JSON types.

    ``groups`` names the curves; the first, "", is that of all rows. What has no value (a median
    that is not reached, an interval where nobody is left) is None.
    """
    events, censored, entries = curves.counts
    at_risk = numbers_at_risk(events, censored, entries)
    kinds = (events, censored, at_risk)
    whole = [SurvivalCurve.of(curves.times, *(kind.sum(axis=0) for kind in kinds))]
    by_group = [
        SurvivalCurve.of(curves.times, *(kind[place] for kind in kinds))
        for place in range(len(curves.groups))
    ]
    ends = [float(one.time[-1]) for one in by_group or whole if len(one.time)]
    until = curves.restriction or min(ends, default=0.0)
    every = [_columns(one, until) for one in (*whole, *by_group)]
    plain = log_rank(log_rank_sums(events, at_risk))
    own = log_rank(curves.own)
    return {
        "n": int(events.sum() + censored.sum()),
        "events": int(events.sum()),
        "time_unit": curves.time_unit,
        "off_grid": curves.off_grid,
        "groups": ["", *curves.groups],
        "restriction": until,
        **{key: [one[key] for one in every] for key in every[0]},
        "logrank": {"chi2": plain.chi2, "df": plain.df, "p": _number(plain.p)},
        "logrank_by_site": {"chi2": own.chi2, "df": own.df, "p": _number(own.p)},
        "notes": _notes(curves),
    }


def _columns(curve: SurvivalCurve, until: float) -> dict[str, Any]:
    low, high = curve.log_log_interval()
    plain_low, plain_high = curve.interval()
    mean, mean_se = curve.restricted_mean(until)
    return {
        "group_n": int(curve.events.sum() + curve.censored.sum()),
        "group_events": int(curve.events.sum()),
        "times": curve.time.tolist(),
        "at_risk": [int(count) for count in curve.at_risk],
        "died": [int(count) for count in curve.events],
        "censored": [int(count) for count in curve.censored],
        "survival": curve.survival.tolist(),
        "se": curve.se.tolist(),
        "ci95": _pairs(low, high),
        "ci95_greenwood": _pairs(plain_low, plain_high),
        "median": _number(curve.quantile(0.5)),
        "median_ci95": [_number(bound) for bound in curve.median_interval()],
        "restricted_mean": mean,
        "restricted_mean_se": mean_se,
    }


def _pairs(low: FloatArray, high: FloatArray) -> list[list[float | None]]:
    return [[_number(a), _number(b)] for a, b in zip(low, high, strict=True)]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _notes(curves: SurvivalCurves) -> list[str]:
    if not curves.off_grid:
        return []
    return [
        f"{curves.off_grid} rows have times that are not on the grid of {curves.time_unit:g}: they "
        "are moved up to it (entries down), and the curves are those of the moved times"
    ]
