"""Numbers of results as texts, and rows of texts as Markdown, LaTeX and columns of one width."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}
_MARKDOWN = {mark: "\\" + mark for mark in "\\|*_`[]<>"}


_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a text begins with that a spreadsheet computes."""


def plain_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet computes; numbers are as they were."""
    if not isinstance(value, str) or not value[1:] or not value.startswith(_OF_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as comma-separated values: numbers, and texts that no spreadsheet computes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([plain_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def digits(value: float) -> str:
    """Return a number in four digits, the last ones also where they are 0; whole ones as such."""
    text = f"{value:.4g}" if float(value).is_integer() else f"{value:#.4g}"
    return text.rstrip(".")


def short(value: float) -> str:
    """Return a number in four digits; "-" for one that is not reached or does not exist."""
    return digits(value) if np.isfinite(value) else "-"


def p_text(p: float) -> str:
    """Return a p-value in three decimals, or that it is below."""
    if not np.isfinite(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def test_text(words: str, chi2: float, df: int, p: float) -> str:
    """Return a test's line."""
    compared = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"{words}: chi2({df}) = {short(chi2)}, {compared}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns of one width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [line(row, widths) for row in rows]


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row's line: the first cell to the left, the others to the right."""
    first, *others = (
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown: the first column to the left, the others to the right."""
    lines = [[_escaped(cell, _MARKDOWN) for cell in row] for row in [header, *rows]]
    marks = ["---", *["---:"] * (len(header) - 1)]
    texts = ["| " + " | ".join(line) + " |" for line in [lines[0], marks, *lines[1:]]]
    return "\n".join(texts) + "\n"


def latex_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a ``tabular`` with the rules of booktabs."""
    lines = [" & ".join(_escaped(cell, _LATEX) for cell in row) + r" \\" for row in [header, *rows]]
    begin = r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}"
    parts = [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"


def side_by_side(facts: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and values in two columns."""
    half = (len(facts) + 1) // 2
    column = (width - 2) // 2
    lines = []
    for place in range(half):
        pair = [facts[place], *facts[place + half : place + half + 1]]
        cells = [name + ":" + value.rjust(column - len(name) - 1) for name, value in pair]
        lines.append("  ".join(cells))
    return lines


def _escaped(text: str, marks: dict[str, str]) -> str:
    return "".join(marks.get(letter, letter) for letter in text)
