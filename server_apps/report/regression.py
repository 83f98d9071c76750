"""The page and the CSV of a regression: the table, a forest plot, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privet.analyses.cox_result import CoxResult
from privet.analyses.glm_result import evaluation_lines, likelihood_ratio_lines
from privet.analyses.site_tests import hidden_sites, site_rows, tests_said
from privet.analyses.text_table import csv_text
from privet.core.format import text

from .document import document
from .forest import forest
from .tables import in_cell, numbers_table, of_sites, p_cell


def regression_page(table: Mapping[str, Any]) -> str:
    """Return the page of a regression table as HTML."""
    away = table.get("sites_away", [])
    body = [
        f"<h1>{text(_title(table))}</h1>",
        f'<p class="soft">{table["n"]:,} rows of {of_sites(table["site_names"])}: '
        f"{text(', '.join(table['site_names']))}</p>",
    ]
    if away:
        body.append(f'<p class="warn">Not in this table: {text(", ".join(away))}</p>')
    body += [f'<p class="warn">{text(one)}</p>' for one in table.get("notes", [])]
    body += ["<h2>Estimates</h2>", _estimates(table)]
    body += ["<h2>Coefficients</h2>", _coefficients(table), "<h2>Fit</h2>", _fit(table)]
    if table.get("tests"):
        body += ["<h2>Tests of factors</h2>", _tests(table)]
    body += [f"<p>{text(line)}</p>" for line in likelihood_ratio_lines(table)]
    if "ph_test" in table:
        body += ["<h2>Tests of the model</h2>", *_of_cox(table)]
    body += [*_evaluation(table), *_sites(table)]
    return document("Regression", "\n".join(body))


def _title(table: Mapping[str, Any]) -> str:
    kind = table.get("family") or f"Cox, {table.get('ties', '')} ties"
    return f"{table.get('formula') or ', '.join(table['terms'])} ({kind})"


def _cells(values: Sequence[Any]) -> str:
    return "".join(f"<td>{one}</td>" for one in values)


def _estimates(table: Mapping[str, Any]) -> str:
    """Return what a paper prints: each term's effect with its interval, drawn and in numbers."""
    ratios = bool(table.get("ratio"))
    effect: Callable[[float], float] = _exp if ratios else float
    shown = [
        None if None in (b, *ci) else (effect(b), effect(ci[0]), effect(ci[1]))
        for b, ci in zip(table["coef"], table["ci95"], strict=True)
    ]
    # Of an intercept's odds nobody reads the interval, and it would set the axis of all.
    drawn = [at for at, one in enumerate(shown) if one and table["terms"][at] != "Intercept"]
    cells, axis = forest([one for at in drawn if (one := shown[at])], float(ratios), ratios=ratios)
    plots = dict(zip(drawn, cells, strict=True))
    rows = []
    for at, term in enumerate(table["terms"]):
        value, low, high = shown[at] or (None, None, None)
        between = "" if value is None else f"{_effect(low)} to {_effect(high)}"
        rows.append(
            f"<tr><th>{text(term)}</th><td>{_effect(value)}</td><td>{between}</td>"
            f'<td class="forest">{plots.get(at, "")}</td><td>{p_cell(table["p"][at])}</td></tr>'
        )
    if plots:
        rows.append(f'<tr><th></th><td></td><td></td><td class="forest">{axis}</td><td></td></tr>')
    name = ratio_name(table) if ratios else "coefficient"
    return numbers_table(("term", name, "95 % interval", "", "p"), rows)


def _effect(value: float | None) -> str:
    """Return an effect with two decimals, as papers print it, or three digits where it is small."""
    if value is None:
        return ""
    return (f"{value:.2f}" if 0.1 <= abs(value) < 1e4 else f"{value:.3g}").replace("-", "\u2212")


def _coefficients(table: Mapping[str, Any]) -> str:
    """Return the coefficients with every kind of standard error."""
    kinds = [kind for kind in table["se"] if kind != "nonrobust"]
    heads = ["term", "coefficient", "95 % interval", "standard error", "z"]
    rows = []
    for at, term in enumerate(table["terms"]):
        low, high = table["ci95"][at]
        cells = [
            in_cell(table["coef"][at]),
            f"{in_cell(low)} to {in_cell(high)}",
            in_cell(table["se"]["nonrobust"][at]),
            in_cell(table["z"][at]),
            *(in_cell((table["se"][kind] or [None] * (at + 1))[at]) for kind in kinds),
        ]
        rows.append(f"<tr><th>{text(term)}</th>{_cells(cells)}</tr>")
    return numbers_table([*heads, *(f"{kind} error" for kind in kinds)], rows)


def ratio_name(table: Mapping[str, Any]) -> str:
    """Return the name of exp(coefficient): odds, rate or hazard ratio."""
    names = {"binomial": "odds ratio", "poisson": "rate ratio"}
    return names.get(str(table.get("family")), "hazard ratio")


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


_OF_FIT = {
    "n": "rows",
    "events": "events",
    "loglik": "log-likelihood",
    "null_loglik": "log-likelihood of the null model",
    "deviance": "deviance",
    "null_deviance": "deviance of the null model",
    "scale": "scale",
    "aic": "AIC",
    "bic": "BIC",
    "concordance": "concordance",
    "rounds": "rounds",
}
"""Entries of a table's fit, and what a page calls them."""


def _fit(table: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><th>{words}</th><td>{in_cell(table[name])}</td></tr>"
        for name, words in _OF_FIT.items()
        if isinstance(table.get(name), int | float)
    ]
    return f'<div class="narrow">{numbers_table(("", "value"), rows)}</div>'


def _tests(table: Mapping[str, Any]) -> str:
    rows = []
    tests = table["tests"]
    listed = tests.items() if isinstance(tests, Mapping) else ((one["term"], one) for one in tests)
    for name, by_kind in listed:
        test: Mapping[str, Any] = by_kind.get("nonrobust") or {}
        cells = [in_cell(test.get("chi2")), str(test.get("df", "")), p_cell(test.get("p"))]
        rows.append(f"<tr><th>{text(name)}</th>{_cells(cells)}</tr>")
    return numbers_table(("factor", "chi-squared", "df", "p"), rows)


def _of_cox(table: Mapping[str, Any]) -> list[str]:
    """Return the tests that all coefficients are 0, and of proportional hazards by term."""
    tests = {name: test for name, test in table["ph_test"].items() if test is not None}
    lines = [f"<p>{text(line)}</p>" for line in CoxResult(table).model_tests()]
    cells = [
        [p_cell(test["p"][at]) for test in tests.values()] for at in range(len(table["terms"]))
    ]
    rows = [
        f"<tr><th>{text(term)}</th>{_cells(one)}</tr>"
        for term, one in zip(table["terms"], cells, strict=True)
    ]
    heads = ["proportional hazards, p of", *(f"against {name} time" for name in tests)]
    return [*lines, *([numbers_table(heads, rows)] if tests else [])]


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
    shown = {head: p_cell if head.startswith("p") else in_cell for head in others}
    lines = [
        f"<tr><th>{text(row['site'])}</th>{_cells([shown[one](row[one]) for one in others])}</tr>"
        for row in rows
    ]
    parts = ["<h2>Sites</h2>", numbers_table([head.replace("_", " ") for head in heads], lines)]
    if said := tests_said(table):
        parts.append(f'<p class="soft">{said}</p>')
    hidden = hidden_sites(table)
    return parts + ([f'<p class="note">{text(hidden)}</p>'] if hidden else [])


def regression_csv(table: Mapping[str, Any]) -> str:
    """Return a regression table as CSV, a row a term."""
    kinds = [kind for kind, errors in table["se"].items() if errors]
    ratios = table.get("ratio")
    heads = ["term", "coef", *(f"se_{kind}" for kind in kinds), "z", "p", "low95", "high95"]
    rows: list[list[Any]] = [[*heads, *(["ratio"] if ratios else [])]]
    for at, term in enumerate(table["terms"]):
        errors = [table["se"][kind][at] for kind in kinds]
        row = [term, table["coef"][at], *errors, table["z"][at], table["p"][at], *table["ci95"][at]]
        row += [ratios[at]] if ratios else []
        rows.append(["" if one is None else one for one in row])
    return csv_text(rows)
