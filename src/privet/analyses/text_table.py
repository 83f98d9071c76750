"""Rows of texts as Markdown, LaTeX and columns of one width."""

from __future__ import annotations

from collections.abc import Sequence

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}
_MARKDOWN = {mark: "\\" + mark for mark in "\\|*_`[]<>"}


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
