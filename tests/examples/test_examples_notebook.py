"""The notebook runs, shows what it promises, and imports what exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from privet.rounds.views import History
from privet.server_apps import Finished
from privet.server_apps.account import Account
from privet.server_apps.config import defaults
from support.absent import hide
from support.notebooks import cells, run
from support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PAGE = ROOT / "docs" / "how-to" / "notebook.md"


def test_cells_import_what_exists_and_name_keys_that_exist() -> None:
    sources = cells(NOTEBOOK)
    assert len(sources) >= 8
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privet"):
                exec(ast.unparse(node))
    (settings,) = [source for source in sources if "settings = {" in source]
    assert set(re.findall(r'^ +"([a-z-]+)": ', settings, re.M)) <= set(defaults())


def test_the_notebook_is_stored_without_output() -> None:
    assert '"output_type"' not in NOTEBOOK.read_text()


@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables_and_curves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hide(monkeypatch, "pandas")  # its first lines name no extra that has it
    values: list[Any] = run(NOTEBOOK)
    tables = {type(value): value._repr_html_() for value in values if _is_table(value)}
    assert set(tables) >= {History, Account, Finished}
    assert "95." in tables[History]
    assert "epsilon 4 at delta" in tables[Account]
    assert "model-best.npz is of round" in tables[Finished]
    assert sum(hasattr(value, "_repr_png_") for value in values) == 3
    printed = capsys.readouterr().out
    together, pooled, alone = map(float, re.findall(r"(0\.\d+)", printed)[:3])
    assert together > alone
    assert abs(together - pooled) < 0.02


def _is_table(value: Any) -> bool:
    return isinstance(value, History | Account | Finished)
