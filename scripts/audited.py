"""The files that docs/auditor.md lists, with their lines, and lines of code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path("docs/auditor.md")
PACKAGE = "src/privet/"
"""What the paths of the page are relative to."""
LABEL = '"""Privacy-critical:'
_ROW = re.compile(r"\| `([^`]+\.py)` \|")
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Audited(NamedTuple):
    """A file of the list."""

    section: str
    path: str
    lines: int
    code: int
    """Lines that are neither blank nor of a comment or a docstring."""


def audited(root: Path) -> Iterator[Audited]:
    """Yield the files of the page, in its order."""
    section = ""
    for line in (root / PAGE).read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif row := _ROW.match(line):
            text = (root / PACKAGE / row[1]).read_text()
            yield Audited(section, row[1], len(text.splitlines()), code_lines(text))


def code_lines(text: str) -> int:
    """Return the number of a file's lines that are code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def print_audited(root: Path) -> None:
    """Print the files with their lines, and the sums of each section."""
    files = list(audited(root))
    print("what an auditor reads (docs/auditor.md): lines, of which code")
    for section in dict.fromkeys(one.section for one in files):
        part = [one for one in files if one.section == section]
        print(f"  {section}: {sum(one.lines for one in part)}, {sum(one.code for one in part)}")
        for one in part:
            print(f"    {one.path}: {one.lines}, {one.code}")
    print(f"  in all: {sum(one.lines for one in files)}, {sum(one.code for one in files)}")
