"""The public names: what the ``__init__`` of a package lists in ``__all__``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from support.paths import PACKAGE
from support.wheel import ROOMS


def packages() -> Iterator[str]:
    """Yield the name of every package; those of the templates are other people's."""
    yield "privet"
    for room in sorted(ROOMS):
        folder = (PACKAGE / room).resolve()
        for path in sorted(folder.rglob("__init__.py")):
            if "templates" not in path.parts:
                yield ".".join(("privet", room, *path.relative_to(folder).parts[:-1]))


def public_names() -> list[tuple[str, str]]:
    """Return a package and a name for each public name, sorted."""
    found = ((each, getattr(import_module(each), "__all__", ())) for each in packages())
    return sorted((package, name) for package, names in found for name in names)
