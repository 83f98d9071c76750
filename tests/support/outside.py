"""Packages of others that bring algorithms, data sets or commands, as they are once installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from privet.core import plugins, registry


@contextmanager
def installed(project: Path) -> Iterator[None]:
    """Let a project's package and its entry points be found, as an installation does.

    The modules stay imported, as halves of theirs may be kept.
    """
    told = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        about = Path(folder) / f"{told['name']}-{told['version']}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {told['name']}\nVersion: {told['version']}\n")
        lines = []
        for group, points in told["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
        (about / "entry_points.txt").write_text("\n".join(lines))
        patch.syspath_prepend(str(project))
        patch.syspath_prepend(folder)
        _forget()
        yield
    _forget()


def _forget() -> None:
    """Let entry points be looked for again."""
    registry._available.cache_clear()
    plugins.plugins.cache_clear()
