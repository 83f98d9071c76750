"""The page and the CSV of survival curves: curves with the numbers at risk below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privet.analyses.text_table import csv_text
from privet.core.format import text, ticks_until

from .document import document
from .tables import in_cell, numbers_table, of_sites, p_cell

_WIDE, _HIGH = 520, 260
_COLOURS = 8


def curves_page(table: Mapping[str, Any]) -> str:
    """Return the page of survival curves as HTML."""
    names = _groups(table)
    away = table.get("sites_away", [])
    body = [
        f"<h1>Survival by {text(table['group'])}</h1>" if table["group"] else "<h1>Survival</h1>",
        f'<p class="soft">{table["n"]:,.0f} rows, {table["events"]:,.0f} events, of '
        f"{of_sites(table['site_names'])}: {text(', '.join(table['site_names']))}</p>",
    ]
    if away:
        body.append(f'<p class="warn">Not in these curves: {text(", ".join(away))}</p>')
    body += [f'<p class="warn">{text(one)}</p>' for one in table.get("notes", [])]
    body += [_curves(table, names), "<h2>Numbers at risk</h2>", _at_risk(table, names)]
    body += ["<h2>Medians and means</h2>", _medians(table, names)]
    if len(names) > 1 and not table.get("noised"):
        rows = [
            f"<tr><th>{label}</th><td>{in_cell(test['chi2'])}</td><td>{test['df']}</td>"
            f"<td>{p_cell(test['p'])}</td></tr>"
            for label, test in (
                ("log-rank", table["logrank"]),
                ("log-rank, stratified by site", table["logrank_by_site"]),
            )
        ]
        body += ["<h2>Tests</h2>", numbers_table(("test", "chi-squared", "df", "p"), rows)]
    return document("Survival", "\n".join(body))


def _groups(table: Mapping[str, Any]) -> list[str]:
    return [str(one) or "all" for one in table["groups"]]


def _last(table: Mapping[str, Any]) -> float:
    return max([float(times[-1]) for times in table["times"] if times] + [1.0])


def _curves(table: Mapping[str, Any], names: list[str]) -> str:
    last, bands, lines = _last(table), [], []
    # A colour each: of more groups those with the most rows, in the order of the tables.
    drawn = sorted(sorted(range(len(names)), key=lambda at: -table["group_n"][at])[:_COLOURS])
    for number, at in enumerate(drawn):
        colour = f"var(--run-{number})"
        places = [_WIDE * time / last for time in table["times"][at]]
        ends = [(low, high) for low, high in table["ci95"][at] if None not in (low, high)]
        over = _steps(places, [high for _, high in ends])
        under = _steps(places, [low for low, _ in ends])
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*over, *reversed(under)])
        bands.append(f'<polygon points="{outline}" fill="{colour}" opacity=".13"/>')
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in _steps(places, table["survival"][at]))
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{text(names[at])}</title></polyline>"
        )
    legend = "".join(
        f'<li><svg viewBox="0 0 20 6"><rect width="20" height="6" fill="var(--run-{number})"/>'
        f"</svg>{text(names[at])}</li>"
        for number, at in enumerate(drawn)
    )
    left = ""
    if len(drawn) < len(names):
        left = f" Of {len(names)} curves the {len(drawn)} of most rows are drawn; tables have all."
    labels = "".join(
        f'<text x="-6" y="{_HIGH * (1 - share) + 4:.0f}" text-anchor="end">{share:g}</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    labels += "".join(
        f'<text x="{_WIDE * tick / last:.0f}" y="{_HIGH + 20}" text-anchor="middle">'
        f"{in_cell(tick)}</text>"
        for tick in ticks_until(last)
    )
    labels += (
        f'<text x="{_WIDE / 2}" y="{_HIGH + 46}" text-anchor="middle">{text(table["time"])}</text>'
    )
    return (
        f'<figure class="curve"><ul class="legend">{legend}</ul>'
        f'<svg viewBox="-56 -12 {_WIDE + 80} {_HIGH + 66}" role="img">'
        f'<path d="M0 0V{_HIGH}H{_WIDE}" fill="none" stroke="var(--grid)"/>'
        f"{''.join(bands)}{''.join(lines)}"
        f'<g fill="currentColor">{labels}</g></svg></figure>'
        f'<p class="soft">Share without the event, with 95 % intervals.{left}</p>'
    )


def _steps(places: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of a curve that falls at each place; heights may lack their last ones."""
    corners, y = [(0.0, 0.0)], 0.0
    for x, height in zip(places, heights, strict=False):
        corners += [(x, y), (x, y := _HIGH * (1.0 - height))]
    return corners


def _at_risk(table: Mapping[str, Any], names: list[str]) -> str:
    ticks, rows = ticks_until(_last(table)), []
    for name, times, counts in zip(names, table["times"], table["at_risk"], strict=True):
        cells = []
        for tick in ticks:
            after = [c for t, c in zip(times, counts, strict=True) if t >= tick]
            cells.append(f"<td>{round(after[0]):,}</td>" if after else "<td>0</td>")
        rows.append(f"<tr><th>{text(name)}</th>{''.join(cells)}</tr>")
    return numbers_table(("at risk", *(in_cell(tick) for tick in ticks)), rows)


def _medians(table: Mapping[str, Any], names: list[str]) -> str:
    rows = []
    for at, name in enumerate(names):
        cells = (
            f"{round(table['group_n'][at]):,}",
            f"{round(table['group_events'][at]):,}",
            in_cell(table["median"][at]),
            " to ".join(in_cell(end) or "?" for end in table["median_ci95"][at]),
            in_cell(table["restricted_mean"][at]),
        )
        shown = "".join(f"<td>{one}</td>" for one in cells)
        rows.append(f"<tr><th>{text(name)}</th>{shown}</tr>")
    until = in_cell(table.get("restriction"))
    heads = ("group", "n", "events", "median", "95 % interval", f"mean until {until}")
    return numbers_table(heads, rows)


_COLUMNS = ("times", "at_risk", "survival", "se")


def curves_csv(table: Mapping[str, Any]) -> str:
    """Return survival curves as CSV, a row for each time with events of a group."""
    columns = [*_COLUMNS, "se_noise"] if table.get("noised") else _COLUMNS
    rows: list[list[Any]] = [["group", *columns]]
    for at, name in enumerate(_groups(table)):
        for row in zip(*(table[column][at] for column in columns), strict=True):
            rows.append([name, *row])
    return csv_text(rows)
