"""Packages of others that bring an algorithm, as they are once installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from privet.core import registry

GROUP = "privet.algorithms"


@contextmanager
def installed(project: Path) -> Iterator[None]:
    """Let a project's package and its entry points be found, as an installation does.

    The modules stay imported, as halves of theirs may be kept.
    """
    told = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    points = told["entry-points"][GROUP]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        about = Path(folder) / f"{told['name']}-{told['version']}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {told['name']}\nVersion: {told['version']}\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (about / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        patch.syspath_prepend(str(project))
        patch.syspath_prepend(folder)
        registry._available.cache_clear()
        yield
    registry._available.cache_clear()
