"""The page and the CSV of a description: disagreements first, then every column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privet.analyses.description_state import QUANTILES
from privet.analyses.description_table import disagreements
from privet.analyses.table_one import table_one
from privet.analyses.text_table import csv_text
from privet.core.format import text

from .document import document
from .tables import in_cell, numbers_table, of_sites

_WIDE, _HIGH = 320, 64
_SHOWN = 12
"""Categories of a column that the page shows."""
_LEVEL = ' class="level"'
"""Of the row of a category, below that of its column."""


def described_page(table: Mapping[str, Any]) -> str:
    """Return the page of a described table as HTML."""
    sites = table["site_names"]
    away = table.get("sites_away", [])
    body = [
        f"<h1>{_count(table['rows'])} rows of {of_sites(sites)}</h1>",
        f'<p class="soft">{text(", ".join(sites))}</p>',
    ]
    if away:
        body.append(f'<p class="warn">Not in these numbers: {text(", ".join(away))}</p>')
    lines = disagreements(table)
    body.append("<h2>What the sites disagree about</h2>")
    body += [f'<p class="warn">{text(line)}</p>' for line in lines]
    if not lines:
        body.append('<p class="note">Nothing that these sums show.</p>')
    if error := table.get("quantile_rank_error"):
        body.append(
            f'<p class="note">Nodes hide small cells: a quantile may be off by {error} ranks, and '
            "a hidden count is given by its bounds.</p>"
        )
    if table.get("noised"):
        body.append(
            f'<p class="note">Every count has noise of standard deviation '
            f"{in_cell(table['count_error'])}, and 0 stands for those below; means and deviations "
            "are made of noised sums.</p>"
        )
    if table.get("by"):
        body += [f"<h2>By {text(table['by'])}</h2>", _table_one(table)]
    body += ["<h2>Columns</h2>", _overview(table), *_details(table)]
    return document("Description", "\n".join(body))


def _overview(table: Mapping[str, Any]) -> str:
    heads = ("column", "kind", "n", "missing", "mean", "sd", "median", "5 % to 95 %")
    rows = []
    for name, column in table["columns"].items():
        quantiles = column.get("quantiles", {})
        cells = [
            column["kind"],
            _count(column["n"]),
            _count(column["missing"]),
            in_cell(column.get("mean")),
            in_cell(column.get("sd")),
            in_cell(quantiles.get("0.5")),
            " to ".join(in_cell(quantiles[q]) for q in ("0.05", "0.95")) if quantiles else "",
        ]
        rows.append(f"<tr><th>{text(name)}</th>{''.join(f'<td>{one}</td>' for one in cells)}</tr>")
    return numbers_table(heads, rows)


def _details(table: Mapping[str, Any]) -> Iterator[str]:
    for name, column in table["columns"].items():
        yield f"<h3>{text(name)}</h3>"
        yield '<div class="plots beside">'
        if column["kind"] == "numbers" and "histogram" in column:
            yield _histogram(column["histogram"])
        elif column["kind"] == "categories":
            yield _bars(column)
        yield f'<div class="aside">{_by_site(table["site_names"], column)}</div></div>'


def _table_one(table: Mapping[str, Any]) -> str:
    """Return the columns by the groups of one, as a paper's table 1."""
    heads, *rows = table_one(table)
    body = [
        f"<tr><th{_LEVEL if first.startswith(' ') else ''}>{text(first.strip())}</th>"
        f"{''.join(f'<td>{text(one)}</td>' for one in cells)}</tr>"
        for first, *cells in rows
    ]
    return numbers_table(heads, body)


def _histogram(histogram: Mapping[str, Any]) -> str:
    """Return equal parts as bars, from the first with a row to the last, and their ends below."""
    all_counts = histogram["counts"]
    full = [place for place, count in enumerate(all_counts) if count > 0] or [0]
    first, after = full[0], full[-1] + 1
    counts, part = all_counts[first:after], (histogram["high"] - histogram["low"]) / len(all_counts)
    most, width = max(*counts, 1), _WIDE / len(counts)
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{_HIGH - _HIGH * count / most:.2f}" '
        f'width="{width * 0.9:.2f}" height="{_HIGH * count / most:.2f}" fill="var(--run-0)">'
        f"<title>{_count(count)}</title></rect>"
        for place, count in enumerate(counts)
        if count > 0
    )
    low, high = (in_cell(histogram["low"] + part * place) for place in (first, after))
    return (
        f'<figure><svg viewBox="0 0 {_WIDE} {_HIGH + 16}" role="img">{bars}'
        f'<text x="0" y="{_HIGH + 13}" font-size="11" fill="currentColor">{low}</text>'
        f'<text x="{_WIDE}" y="{_HIGH + 13}" font-size="11" text-anchor="end" '
        f'fill="currentColor">{high}</text></svg></figure>'
    )


def _bars(column: Mapping[str, Any]) -> str:
    counts: Mapping[str, int | None] = column["categories"]
    bounds = column.get("bounds", {})
    ordered = sorted(counts, key=lambda one: -(counts[one] or 0))
    most = max([one or 0 for one in counts.values()] + [1])
    rows = []
    for category in ordered[:_SHOWN]:
        count = counts[category]
        shown = _count(count) if count is not None else "{} to {}".format(*bounds[category])
        share = 100 * (count or 0) / most
        bar = (
            f'<svg viewBox="0 0 100 8" width="100" height="8" role="img"><rect width="{share:.1f}" '
            'height="8" fill="var(--run-0)"/></svg>'
        )
        rows.append(f"<tr><th>{text(category)}</th><td>{bar}</td><td>{shown}</td></tr>")
    if (more := len(ordered) - _SHOWN) > 0:
        rows.append(f"<tr><th>{more} more</th><td></td><td></td></tr>")
    return f'<figure><table class="numbers"><tbody>{"".join(rows)}</tbody></table></figure>'


def _by_site(sites: Sequence[str], column: Mapping[str, Any]) -> str:
    rows = column.get("by_site", [])
    if not rows:
        return '<p class="soft">Sums over all sites; no site\'s own numbers are known.</p>'
    numbers = column["kind"] == "numbers"
    heads = ("site", "n", "missing", *(("mean", "sd") if numbers else ()))
    cells = [
        f"<tr><th>{text(site)}</th><td>{row['n']:,}</td><td>{row['missing']:,}</td>"
        + (
            f"<td>{in_cell(row.get('mean'))}</td><td>{in_cell(row.get('sd'))}</td>"
            if numbers
            else ""
        )
        + "</tr>"
        for site, row in zip(sites, rows, strict=False)
    ]
    return numbers_table(heads, cells)


def _count(value: float) -> str:
    return f"{round(value):,}"


def described_csv(table: Mapping[str, Any]) -> str:
    """Return a described table as CSV.

    A row a column and one for each of its categories, of all rows, and then of each site and of
    each group where these are known.
    """
    heads = ["column", "category", "site", "group", "n", "missing", "other", "mean", "sd"]
    rows: list[list[Any]] = [[*heads, "standardised_difference", *(f"q{q:g}" for q in QUANTILES)]]
    for name, column in table["columns"].items():
        parts = [("", "", column)]
        parts += [(s, "", o) for s, o in zip(table["site_names"], column["by_site"], strict=False)]
        parts += [("", group, own) for group, own in column.get("groups", {}).items()]
        for site, group, own in parts:
            rows += _csv_rows(name, site, group, own)
    return csv_text(rows)


def _csv_rows(name: str, site: str, group: str, own: Mapping[str, Any]) -> Iterator[list[Any]]:
    quantiles = own.get("quantiles", {})
    counts = [own[key] for key in ("n", "missing", "other")]
    keys = ("mean", "sd", "standardised_difference")
    numbers = [*(own.get(key) for key in keys), *(quantiles.get(f"{q:g}") for q in QUANTILES)]
    yield [name, "", site, group, *counts, *("" if one is None else one for one in numbers)]
    bounds = own.get("bounds", {})
    for category, count in own.get("categories", {}).items():
        hidden = "{}-{}".format(*bounds[category]) if category in bounds else "hidden"
        yield [name, category, site, group, hidden if count is None else count]
