"""What editors see: basedpyright resolves every public name, here and in a neighbouring project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.public import public_names
from support.wheel import LINKED, clean_environ

pytest.importorskip("basedpyright")

SECONDS = 600.0
"""The longest that one look may take; ten are usual."""


def looked_at(file: Path, folder: Path) -> list[dict[str, Any]]:
    """Return what basedpyright says of a file, seen from a folder in this environment."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson"]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable, str(file)],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return said


def unresolved(said: list[dict[str, Any]]) -> list[str]:
    """Return the messages on imports that lead nowhere."""
    rules = {"reportMissingImports", "reportMissingModuleSource", "reportAttributeAccessIssue"}
    return [each["message"] for each in said if each.get("rule") in rules]


@pytest.mark.parametrize("place", ["checkout", "neighbour"])
def test_every_public_name_has_a_type(tmp_path: Path, place: str) -> None:
    names = public_names()
    assert len(names) > 200
    file = tmp_path / "names.py"
    lines = [f"from {package} import {name}\nreveal_type({name})\n" for package, name in names]
    file.write_text("".join(lines))
    said = looked_at(file, ROOT if place == "checkout" else tmp_path)
    assert not unresolved(said)
    types = [each for each in said if each["message"].startswith("Type of ")]
    assert len(types) == len(names)
    unknown = [each["message"] for each in types if '" is "Unknown"' in each["message"]]
    assert not unknown


def test_a_neighbour_resolves_nothing_else_of_a_checkout(tmp_path: Path) -> None:
    others = [*LINKED, "tests", "papers", "scripts", "privet.nothing"]
    file = tmp_path / "names.py"
    file.write_text("".join(f"import {name}\n" for name in ["privet.strategies", *others]))
    missing = [f'Import "{name}" could not be resolved' for name in others]
    assert unresolved(looked_at(file, tmp_path)) == missing
