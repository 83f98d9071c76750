"""A package that is not installed, though the environment of the tests has it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest


class Absent:
    """A finder that stands before all others and finds no package of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise ``ModuleNotFoundError`` for the package; leave others to the next finder."""
        if fullname == self.name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let importing a package fail, also where it was imported before."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(name), *sys.meta_path])
