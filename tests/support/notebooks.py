"""Run the cells of a notebook without Jupyter, as its kernel would."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any


def cells(path: Path) -> list[str]:
    """Return the code of the cells, in order."""
    document = json.loads(path.read_text())
    return ["".join(one["source"]) for one in document["cells"] if one["cell_type"] == "code"]


def run(path: Path) -> list[Any]:
    """Run the cells in one namespace; return the value of each one's last expression, or None."""
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for number, source in enumerate(cells(path), start=1):
        tree = ast.parse(source, f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        assert last is None or isinstance(last, ast.Expr)
        value = None
        if last is not None:
            code = compile(ast.Expression(last.value), f"cell {number}", "eval")
            value = eval(code, names)
        values.append(value)
    return values
