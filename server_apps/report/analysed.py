"""The files of an analysis' table: its page, and its rows as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any

from privet.analyses.cox_result import CoxResult
from privet.analyses.glm_result import GlmResult
from privet.analyses.kaplan_meier_result import KaplanMeierResult
from privet.analyses.table_one import table_one
from privet.analyses.text_table import latex_rows, markdown_rows, short

from .described import described_csv, described_page
from .regression import regression_csv, regression_page
from .survival_curves import curves_csv, curves_page

Table = Mapping[str, Any]
PAGES: Mapping[str, tuple[Callable[[Table], str], Callable[[Table], str]]] = {
    "describe": (described_page, described_csv),
    "glm": (regression_page, regression_csv),
    "cox": (regression_page, regression_csv),
    "kaplan-meier": (curves_page, curves_csv),
}
"""By analysis, what makes its page and its CSV of a table."""


def table_markdown(table: Table) -> str:
    """Return a table in Markdown as a paper has it, numbers in four digits."""
    made = _RESULTS.get(table["analysis"])
    return made(table).to_markdown() if made else markdown_rows(*_rows(table))


def table_latex(table: Table) -> str:
    """Return a table as a ``tabular`` of LaTeX with the rules of booktabs."""
    made = _RESULTS.get(table["analysis"])
    return made(table).to_latex() if made else latex_rows(*_rows(table))


_RESULTS: Mapping[str, type[GlmResult | CoxResult]] = {"glm": GlmResult, "cox": CoxResult}


def _rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a paper's table; of a description without groups the CSV's,
    numbers in four digits."""
    if table.get("by"):
        heads, *of_groups = table_one(table)
        return heads, of_groups
    if table["analysis"] == "kaplan-meier" and not table.get("noised"):
        return KaplanMeierResult(table).medians()
    header, *rows = csv.reader(io.StringIO(PAGES[table["analysis"]][1](table)))
    padded = (row + [""] * (len(header) - len(row)) for row in rows)
    return header, [[_shown(cell) for cell in row] for row in padded]


def _shown(cell: str) -> str:
    try:
        return short(float(cell)) if "." in cell or "e" in cell else cell
    except ValueError:
        return cell
