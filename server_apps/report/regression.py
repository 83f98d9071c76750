"""The page and the CSV of a regression: the table, a forest plot, and what it rests on."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from privet.analyses.glm_result import evaluation_lines, likelihood_ratio_lines
from privet.analyses.site_tests import hidden_sites, site_rows
from privet.core.format import text

from .document import document
from .tables import in_cell, numbers_table

_ROW, _WIDE, _LEFT = 22, 420, 10


def regression_page(table: Mapping[str, Any]) -> str:
    """Return the page of a regression table as HTML."""
    away = table.get("sites_away", [])
    body = [
        f"<h1>{text(_title(table))}</h1>",
        f'<p class="soft">{table["n"]:,} rows of {len(table["site_names"])} sites: '
        f"{text(', '.join(table['site_names']))}</p>",
    ]
    if away:
        body.append(f'<p class="warn">Not in this table: {text(", ".join(away))}</p>')
    body += [f'<p class="warn">{text(one)}</p>' for one in table.get("notes", [])]
    body += ["<h2>Estimates</h2>", _estimates(table), "<h2>Intervals</h2>", forest(table)]
    body += ["<h2>Fit</h2>", _fit(table)]
    if table.get("tests"):
        body += ["<h2>Tests of factors</h2>", _tests(table)]
    body += [f"<p>{text(line)}</p>" for line in likelihood_ratio_lines(table)]
    body += [*_evaluation(table), *_sites(table)]
    left = {name: count for name, count in table.get("left_out", {}).items() if count}
    if left:
        whole = left.pop("", sum(left.values()))
        where = ", ".join(f"{name} {count:,}" for name, count in left.items())
        body.append(
            f'<p class="note">{whole:,} rows are left out, as a value is missing: {text(where)}</p>'
        )
    return document("Regression", "\n".join(body))


def _title(table: Mapping[str, Any]) -> str:
    kind = table.get("family") or f"Cox, {table.get('ties', '')} ties"
    return f"{table.get('formula') or ', '.join(table['terms'])} ({kind})"


def _cells(values: Sequence[Any]) -> str:
    return "".join(f"<td>{one}</td>" for one in values)


def _p(value: Any) -> str:
    if value is None:
        return ""
    return "&lt; 0.001" if value < 0.001 else f"{value:.3f}"


def _estimates(table: Mapping[str, Any]) -> str:
    ratios = table.get("ratio")
    kinds = [kind for kind in table["se"] if kind != "nonrobust"]
    heads = ["term", "coefficient", "standard error", "z", "p", "95 % interval"]
    heads += [*([ratio_name(table)] if ratios else []), *(f"{kind} error" for kind in kinds)]
    rows = []
    for at, term in enumerate(table["terms"]):
        low, high = table["ci95"][at]
        cells = [
            in_cell(table["coef"][at]),
            in_cell(table["se"]["nonrobust"][at]),
            in_cell(table["z"][at]),
            _p(table["p"][at]),
            f"{in_cell(low)} to {in_cell(high)}",
        ]
        if ratios:
            cells.append(f"{in_cell(ratios[at])} ({in_cell(_exp(low))} to {in_cell(_exp(high))})")
        cells += [in_cell((table["se"][kind] or [None] * (at + 1))[at]) for kind in kinds]
        rows.append(f"<tr><th>{text(term)}</th>{_cells(cells)}</tr>")
    return numbers_table(heads, rows)


def ratio_name(table: Mapping[str, Any]) -> str:
    """Return the name of exp(coefficient): odds, rate or hazard ratio."""
    names = {"binomial": "odds ratio", "poisson": "rate ratio"}
    return names.get(str(table.get("family")), "hazard ratio")


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))


def forest(table: Mapping[str, Any]) -> str:
    """Return the coefficients with their intervals, in units of each term's standard error of a
    unit effect: ratios on a logarithmic scale, the intercept left out."""
    shown = [at for at, term in enumerate(table["terms"]) if term != "Intercept"]
    shown = [at for at in shown if None not in (table["coef"][at], *table["ci95"][at])]
    if not shown:
        return ""
    ends = [end for at in shown for end in table["ci95"][at]]
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    scale = (_WIDE - 2 * _LEFT) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return float(_LEFT + (value - low) * scale)

    lines = [
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{_ROW * len(shown)}" '
        'stroke="var(--grid)"/>'
    ]
    for row, at in enumerate(shown):
        y, (least, most) = _ROW * row + _ROW / 2, table["ci95"][at]
        lines.append(
            f'<line x1="{x(least):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}" '
            'stroke="var(--run-0)" stroke-width="2"/>'
            f'<circle cx="{x(table["coef"][at]):.1f}" cy="{y}" r="4" fill="var(--run-0)">'
            f"<title>{text(table['terms'][at])}: {in_cell(table['coef'][at])}</title></circle>"
        )
    names = "".join(
        f'<tr style="height:{_ROW}px"><th>{text(table["terms"][at])}</th></tr>' for at in shown
    )
    ratio = f"; a {ratio_name(table)} of 1 is the line" if table.get("ratio") else ""
    height = _ROW * len(shown) + 16
    ticks = "".join(
        f'<text x="{x(end):.1f}" y="{height - 3}" font-size="11" fill="currentColor" '
        f'text-anchor="{anchor}">{in_cell(end)}</text>'
        for end, anchor in ((low, "start"), (high, "end"))
    )
    return (
        f'<figure><div style="display:flex"><table style="width:auto"><tbody>{names}</tbody>'
        f'</table><svg viewBox="0 0 {_WIDE} {height}" role="img" style="flex:1">'
        f"{''.join(lines)}{ticks}</svg></div></figure>"
        f'<p class="soft">Coefficients with 95 % intervals{ratio}.</p>'
    )


_OF_FIT = (
    "n", "events", "loglik", "null_loglik", "deviance", "null_deviance", "scale", "aic", "bic",
    "concordance", "rounds",
)  # fmt: skip


def _fit(table: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><th>{text(name.replace('_', ' '))}</th><td>{in_cell(table[name])}</td></tr>"
        for name in _OF_FIT
        if isinstance(table.get(name), int | float)
    ]
    return numbers_table(("", "value"), rows)


def _tests(table: Mapping[str, Any]) -> str:
    rows = []
    tests = table["tests"]
    listed = tests.items() if isinstance(tests, Mapping) else ((one["term"], one) for one in tests)
    for name, by_kind in listed:
        test: Mapping[str, Any] = by_kind.get("nonrobust") or {}
        cells = [in_cell(test.get("chi2")), str(test.get("df", "")), _p(test.get("p"))]
        rows.append(f"<tr><th>{text(name)}</th>{_cells(cells)}</tr>")
    return numbers_table(("factor", "chi-squared", "df", "p"), rows)


def _evaluation(table: Mapping[str, Any]) -> list[str]:
    """Return the section on how well the model predicts; nothing where it was not evaluated."""
    found = table.get("evaluation")
    if not found:
        return []
    heads = ("rows", "events", "predicted share", "observed share")
    groups = [
        [in_cell(group[name]) for name in ("n", "events", "predicted", "observed")]
        for group in found["calibration"]
    ]
    rows = [f"<tr><th>{first}</th>{_cells(others)}</tr>" for first, *others in groups]
    lines = [f'<p class="soft">{text(one)}</p>' for one in evaluation_lines(table)]
    return ["<h2>Evaluation</h2>", *lines, numbers_table(heads, rows)]


def _sites(table: Mapping[str, Any]) -> list[str]:
    """Return the section of each site's counts and test; nothing where the table has none."""
    heads, rows = site_rows(table)
    if not rows:
        return []
    others = heads[1:]
    shown = {head: _p if head.startswith("p") else in_cell for head in others}
    lines = [
        f"<tr><th>{text(row['site'])}</th>{_cells([shown[one](row[one]) for one in others])}</tr>"
        for row in rows
    ]
    parts = ["<h2>Sites</h2>", numbers_table([head.replace("_", " ") for head in heads], lines)]
    if table.get("heterogeneity"):
        parts.append(
            '<p class="soft">chi2 is the score test that a site shares the pooled model; p '
            "corrected is p times the number of sites tested.</p>"
        )
    hidden = hidden_sites(table)
    return parts + ([f'<p class="note">{text(hidden)}</p>'] if hidden else [])


def regression_csv(table: Mapping[str, Any]) -> str:
    """Return a regression table as CSV, a row a term."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = [kind for kind, errors in table["se"].items() if errors]
    ratios = table.get("ratio")
    heads = ["term", "coef", *(f"se_{kind}" for kind in kinds), "z", "p", "low95", "high95"]
    writer.writerow([*heads, *(["ratio"] if ratios else [])])
    for at, term in enumerate(table["terms"]):
        errors = [table["se"][kind][at] for kind in kinds]
        row = [term, table["coef"][at], *errors, table["z"][at], table["p"][at], *table["ci95"][at]]
        row += [ratios[at]] if ratios else []
        writer.writerow(["" if one is None else one for one in row])
    return out.getvalue()
