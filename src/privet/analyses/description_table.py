"""The table of a description, and what sites disagree about, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .description_state import QUANTILES, DescribeState
from .frame import DATES_LEVEL, TEXTS_LEVEL, FloatArray, Levels


def described_table(state: DescribeState, levels: Levels) -> dict[str, Any]:
    """Return the result of a description as JSON types.

    By column: ``kind``, ``n``, ``missing``, and ``other``, the rows of sites that have no such
    column of this kind. Of numbers ``mean``, ``sd`` (of a sample), ``quantiles`` with
    ``quantile_errors``, by how much larger each may be, and a ``histogram`` of equal parts. Of
    categories their counts; where a site hides one, ``bounds`` has the least and the most that the
    count may be. ``by_site``, in the order of the sites, where sums are in the clear.
    """
    columns: dict[str, Any] = {}
    number = cell = 0
    for place, (name, known) in enumerate(levels.items()):
        values, missing, other = (round(one) for one in state.counts[place])
        shown: dict[str, Any] = {"kind": _kind(known)}
        shown |= {"n": values, "missing": missing, "other": other}
        if known:
            own = slice(cell, cell + len(known))
            shown |= _categories(state, place, own, known)
            cell += len(known)
        else:
            shown |= _numbers(state, number)
            shown["by_site"] = _numbers_by_site(state, place, number)
            number += 1
        columns[name] = shown
    least = round(state.least)
    return {
        "rows": round(state.rows),
        **({"persons": round(state.persons)} if state.persons else {}),
        **({"quantile_rank_error": least} if least else {}),
        "columns": columns,
    }


def _kind(known: Sequence[str]) -> str:
    if not known:
        return "numbers"
    if all(text.startswith(DATES_LEVEL) for text in known):
        return "dates"
    return "texts" if TEXTS_LEVEL in known else "categories"


def _numbers(state: DescribeState, at: int) -> dict[str, Any]:
    values = float(state.coarse[at].sum())
    if not values:
        return {}
    unit, variance = float(state.unit[at]), float(state.square[at]) / max(values - 1.0, 1.0)
    ends = list(zip(state.left[at], state.right[at], strict=True))
    return {
        "mean": float(state.mean[at]) * unit,
        "sd": math.sqrt(variance) * unit if values > 1 else None,
        "quantiles": {f"{q:g}": float(low) for q, (low, _) in zip(QUANTILES, ends, strict=True)},
        "quantile_errors": {
            f"{q:g}": float(high - low) for q, (low, high) in zip(QUANTILES, ends, strict=True)
        },
        "histogram": {
            "low": float(state.low[at]),
            "high": float(state.high[at]),
            "counts": [round(one) for one in state.bins[at]],
        },
    }


def _numbers_by_site(state: DescribeState, place: int, at: int) -> list[dict[str, Any]]:
    rows = []
    unit, mean, size = (float(one[at]) for one in (state.unit, state.mean, state.size))
    for site, (values, missing, other) in enumerate(state.site_counts[:, place]):
        row: dict[str, Any] = {"n": int(values), "missing": int(missing), "other": int(other)}
        if values and site < len(state.site_squares):
            own = float(state.site_sums[site, at]) / values
            squares = float(state.site_squares[site, at]) - values * ((own - mean) / size) ** 2
            row["mean"] = own * unit
            deviation = math.sqrt(max(squares, 0.0) / max(values - 1, 1)) * size * unit
            row["sd"] = deviation if values > 1 else None
        rows.append(row)
    return rows


def _categories(
    state: DescribeState, place: int, own: slice, known: Sequence[str]
) -> dict[str, Any]:
    counts, out = state.cells[own], state.hidden[own]
    if TEXTS_LEVEL in known:  # what a small site has may be names, or ids
        known, counts, out = (), counts[:0], out[:0]
    shown: dict[str, Any] = {
        "categories": {
            text: None if away else round(count)
            for text, count, away in zip(known, counts, out, strict=True)
        }
    }
    if out.any():
        lost = state.counts[place, 0] - counts.sum()
        shown["bounds"] = {
            text: [round(count), round(count + lost)]
            for text, count, away in zip(known, counts, out, strict=True)
            if away
        }
    by_site = []
    for site, (values, missing, other) in enumerate(state.site_counts[:, place]):
        row = {"n": int(values), "missing": int(missing), "other": int(other)}
        cells = zip(known, state.site_cells[site, own], state.site_hidden[site, own], strict=False)
        by_site.append({**row, "categories": {t: None if h else int(c) for t, c, h in cells}})
    return {**shown, "by_site": by_site}


# ------------------------------------------------------------------ disagreements

FACTORS: Mapping[float, str] = {
    18.02: "glucose in mg/dl beside mmol/l",
    88.4: "creatinine in umol/l beside mg/dl",
    38.67: "cholesterol in mg/dl beside mmol/l",
    2.2046: "pounds beside kilograms",
    2.54: "centimetres beside inches",
    365.25: "days beside years",
    30.44: "days beside months",
    12.0: "months beside years",
    10.0: "a decimal point",
    100.0: "percent beside shares, or centimetres beside metres",
    1000.0: "thousands, as of grams beside kilograms",
}
_NEAR, _SPREAD = 0.15, 1.6
"""How near a ratio is to a factor, and how far apart the other sites' means are, at most."""
_SAME = (
    ("yes", "ja", "oui", "si", "y", "j", "true", "1"),
    ("no", "nein", "non", "n", "false", "0"),
    ("male", "m", "mann", "männlich", "maennlich", "homme"),
    ("female", "f", "w", "frau", "weiblich", "femme"),
)


def disagreements(table: Mapping[str, Any]) -> list[str]:
    """Return a line on each thing that the sites of a described table seem to disagree about.

    A unit is a guess: a site's mean is away from all others', which are alike, by a known factor.
    """
    lines: list[str] = []
    sites = table.get("site_names", [])
    for name, column in table["columns"].items():
        lines += _of_lacking(name, column, sites)
        if column["kind"] == "numbers":
            lines += _of_units(name, column, sites)
            lines += _of_constants(name, column, sites)
            lines += _of_codes(name, column, sites)
        elif column["kind"] == "categories":
            lines += _of_spellings(name, column, sites)
        lines += _of_dates(name, column)
    return lines


def _of_lacking(name: str, column: Mapping[str, Any], sites: Sequence[str]) -> Iterator[str]:
    rows = column.get("by_site", [])
    lacking = [site for site, row in zip(sites, rows, strict=False) if row["other"]]
    if lacking:
        kind = column["kind"]
        yield f"column {name}: no column of {kind} at {', '.join(lacking)}"
    elif column["other"]:
        yield f"column {name}: {column['other']} rows are of sites without such a column"
    empty = [s for s, row in zip(sites, rows, strict=False) if not row["n"] and not row["other"]]
    if empty and column["n"]:
        yield f"column {name}: no value that may be shown at {', '.join(empty)}"


def _means(column: Mapping[str, Any], sites: Sequence[str]) -> dict[str, tuple[float, float]]:
    return {
        site: (row["mean"], row.get("sd") or 0.0)
        for site, row in zip(sites, column.get("by_site", []), strict=False)
        if "mean" in row
    }


def _of_units(name: str, column: Mapping[str, Any], sites: Sequence[str]) -> Iterator[str]:
    means = _means(column, sites)
    if len(means) < 3:
        return
    for site, (mean, deviation) in means.items():
        others = np.array([one for other, (one, _) in means.items() if other != site])
        spreads = np.array([one for other, (_, one) in means.items() if other != site])
        if not (others > 0).all() or others.max() > _SPREAD * others.min():
            continue
        middle, spread = float(np.median(others)), float(np.median(spreads))
        guess = factor_of(mean / middle, deviation / spread if spread else math.nan)
        if 30 <= middle <= 42 and abs(mean - (1.8 * middle + 32)) < 3:
            guess = "degrees Fahrenheit beside Celsius"
        if guess:
            yield (
                f"column {name}: the mean at {site} is {mean:.4g}, at the others "
                f"{others.min():.4g} to {others.max():.4g}: another unit? ({guess})"
            )


def factor_of(ratio: float, spread: float) -> str:
    """Return what a ratio of means may come from, by the nearest factor, empty for nothing known;
    ``spread`` is that of the deviations, NaN where it is not known."""
    if not ratio > 0:
        return ""
    near: dict[float, str] = {}
    for factor, what in FACTORS.items():
        for wanted in (factor, 1.0 / factor):
            apart = abs(math.log(ratio / wanted))
            alike = math.isnan(spread) or abs(math.log(max(spread, 1e-9) / wanted)) < 0.7
            if apart < _NEAR and alike:
                near[apart] = what
    return near[min(near)] if near else ""


_STILL = 1e-13
"""A site's squares are about the pooled mean: of a constant their difference to that of its mean
rounds to a few units in the last place of its distance times its size."""


def _of_constants(name: str, column: Mapping[str, Any], sites: Sequence[str]) -> Iterator[str]:
    means = _means(column, sites)
    still = []
    for site, (mean, deviation) in means.items():
        away = abs(mean - column["mean"])
        if deviation**2 <= _STILL * away * max(abs(mean), away):
            still.append(site)
    if still and len(still) < len(means):
        yield f"column {name}: every value is the same at {', '.join(still)}"


_ALIKE = 1e-3
"""How near a variance is to that of two codes."""


def _of_codes(name: str, column: Mapping[str, Any], sites: Sequence[str]) -> Iterator[str]:
    """Yield a line where some sites have the codes 0 and 1, and others 1 and 2.

    Values from c to c + 1 with mean m have a variance of at most (m - c)(c + 1 - m), and that only
    if all of them are c or c + 1 (R. Bhatia, C. Davis, A better bound on the variance, 2000).
    """
    found: dict[int, list[str]] = {0: [], 1: []}
    for site, row in zip(sites, column.get("by_site", []), strict=False):
        mean, deviation, count = row.get("mean"), row.get("sd"), row["n"]
        if mean is None or not deviation:
            continue
        for low, named in found.items():
            most = (mean - low) * (low + 1 - mean)
            if most > 0 and abs(deviation**2 * (count - 1) / count - most) <= _ALIKE * most:
                named.append(site)
    if all(found.values()):
        yield (
            f"column {name}: the codes seem to be 1 and 2 at {', '.join(found[1])}, and 0 and 1 at "
            f"{', '.join(found[0])}"
        )


def _of_spellings(name: str, column: Mapping[str, Any], sites: Sequence[str]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for text in column["categories"]:
        alike.setdefault(_meant(text), []).append(text)
    several = [texts for texts in alike.values() if len(texts) > 1]
    for texts in several:
        where = ""
        rows = column.get("by_site", [])
        own = [[t for t in texts if (row["categories"].get(t) or 0) > 0] for row in rows]
        apart = [(s, o) for s, o in zip(sites, own, strict=False) if o and set(o) != set(texts)]
        if apart:
            where = "; " + ", ".join(f"{site} has {' and '.join(o)}" for site, o in apart)
        yield f"column {name}: {' and '.join(map(repr, texts))} may be the same{where}"


def _of_dates(name: str, column: Mapping[str, Any]) -> Iterator[str]:
    orders = {text for text in column.get("categories", {}) if text.startswith(DATES_LEVEL)}
    written = [text for text in sorted(orders) if "first" in text]
    if len(written) > 1:
        yield f"column {name}: dates are written day first at some sites, month first at others"
    elif orders and column["kind"] == "categories":
        yield f"column {name}: dates at some sites, other texts at others"


def _meant(text: str) -> str:
    plain = " ".join(text.casefold().replace("_", " ").replace("-", " ").split())
    return next((group[0] for group in _SAME if plain in group), plain)


def ranges(column: Mapping[str, Any]) -> tuple[float, float]:
    """Return public edges between which the numbers of a described column lie."""
    histogram = column["histogram"]
    counts: FloatArray = np.array(histogram["counts"], float)
    width = (histogram["high"] - histogram["low"]) / len(counts)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return float(histogram["low"]), float(histogram["high"])
    low = histogram["low"] + width * int(filled[0])
    return float(low), float(histogram["low"] + width * (int(filled[-1]) + 1))
