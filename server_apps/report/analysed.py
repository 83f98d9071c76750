"""The files of an analysis' table: its page, and its rows as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any

from privet.analyses.glm_result import GlmResult
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
    """Return a table in Markdown, numbers in four digits."""
    return GlmResult(table).to_markdown() if _is_glm(table) else markdown_rows(*_rows(table))


def table_latex(table: Table) -> str:
    """Return a table as a ``tabular`` of LaTeX with the rules of booktabs."""
    return GlmResult(table).to_latex() if _is_glm(table) else latex_rows(*_rows(table))


def _is_glm(table: Table) -> bool:
    return table.get("kind") == "glm"


def _rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the CSV, numbers in four digits."""
    header, *rows = csv.reader(io.StringIO(PAGES[table["analysis"]][1](table)))
    padded = (row + [""] * (len(header) - len(row)) for row in rows)
    return header, [[_shown(cell) for cell in row] for row in padded]


def _shown(cell: str) -> str:
    try:
        return short(float(cell)) if "." in cell or "e" in cell else cell
    except ValueError:
        return cell
