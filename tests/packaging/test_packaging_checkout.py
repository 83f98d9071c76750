"""A checkout: one package at a plain path, and each file read once."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import privet
from support.paths import PACKAGE, ROOT
from support.wheel import LINKED, ROOMS, clean_environ

CHECKOUT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")


@CHECKOUT
def test_it_is_installed_by_its_path() -> None:
    assert Path(str(privet.__file__)) == PACKAGE / "__init__.py"
    environment = [sysconfig.get_path("purelib")]
    (installed,) = importlib.metadata.distributions(name="flwr-privet", path=environment)
    (path,) = (one for one in installed.files or [] if one.suffix == ".pth")
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


@CHECKOUT
def test_pytest_meets_no_link() -> None:
    folders = [ROOT / "tests", ROOT / "papers", *(ROOT / name for name in LINKED)]
    assert not [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]


LOADED = """
import collections, importlib, json, pathlib, pkgutil, sys
import privet
for each in pkgutil.walk_packages(privet.__path__, "privet."):
    if ".templates." not in each.name and not each.name.endswith("__main__"):
        importlib.import_module(each.name)
root = pathlib.Path(sys.argv[1])
names = collections.defaultdict(list)
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and "site-packages" not in file and pathlib.Path(file).resolve().is_relative_to(root):
        names[str(pathlib.Path(file).resolve())].append(name)
print(json.dumps(names))
"""
"""Prints the names under which each file of the repository is loaded once all are imported."""


def test_no_file_is_loaded_under_two_names() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(ROOT)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = json.loads(done.stdout)
    assert len(names) > 350
    assert not {file: each for file, each in names.items() if len(each) > 1}
