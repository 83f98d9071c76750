"""The page for auditors lists the files that say of themselves that a promise rests on them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("audited", ROOT / "scripts" / "audited.py")
assert SPEC is not None
assert SPEC.loader is not None
MODULE = importlib.util.module_from_spec(SPEC)
sys.modules["audited"] = MODULE
SPEC.loader.exec_module(MODULE)


def labelled() -> set[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        path.removeprefix(MODULE.PACKAGE)
        for path in found.stdout.splitlines()
        if (ROOT / path).is_file() and (ROOT / path).read_text().startswith(MODULE.LABEL)
    }


def test_the_page_lists_every_file_that_the_promise_rests_on_once() -> None:
    listed = [one.path for one in MODULE.audited(ROOT)]
    assert len(listed) == len(set(listed))
    assert set(listed) == labelled()


def test_all_of_the_kernel_is_on_the_list() -> None:
    package = ROOT / MODULE.PACKAGE
    kernel = {str(path.relative_to(package)) for path in (package / "kernel").rglob("*.py")}
    listed = {one.path for one in MODULE.audited(ROOT)}
    assert kernel - listed == {"kernel/__init__.py"}  # names alone


def test_lines_of_code_are_those_without_blanks_comments_and_docstrings() -> None:
    text = '"""Doc.\n\nMore.\n"""\n\n# why\nx = (\n    1\n)  # here\n\n\n'
    text += 'def f():\n    """Doc."""\n    return x\n'
    assert MODULE.code_lines(text) == 5
