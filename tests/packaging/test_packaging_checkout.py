"""A checkout: one package at a plain path, and each file read once."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import privet
from support.paths import PACKAGE, ROOT
from support.wheel import LINKED, ROOMS, clean_environ

CHECKOUT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")


@CHECKOUT
def test_it_is_installed_by_its_path() -> None:
    assert Path(str(privet.__file__)) == PACKAGE / "__init__.py"
    files = importlib.metadata.files("flwr-privet") or []
    (path,) = (one for one in files if one.suffix == ".pth")
    assert path.read_text().split() == [str(ROOT / "src")]
    assert not [name for name in sys.modules if name.startswith("__editable__")]


@pytest.mark.parametrize("name", [*LINKED, "papers", "scripts", "tests"])
def test_a_neighbour_finds_nothing_else_of_it(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import privet, {name}"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{name}'"


@CHECKOUT
def test_the_rooms_are_folders_of_the_package_or_links_to_the_root() -> None:
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert found == set(ROOMS)
    linked = {path.name: os.readlink(path) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert linked == {name: f"../../{name}" for name in LINKED}
    others = [path for path in PACKAGE.rglob("*") if path.is_symlink() and path.parent != PACKAGE]
    assert not others


@CHECKOUT
def test_no_tool_reads_a_file_twice() -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    for command in (ruff, ["git", "ls-files", "*.py"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        names = {ROOT / line for line in done.stdout.splitlines()}
        assert len(names) > 500
        assert not [name for name in names if any(p.is_symlink() for p in name.parents)]
