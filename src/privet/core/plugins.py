"""What other packages bring by entry points: data sets and commands.

Entry points are looked for where this library has none of a name, as that reads a file of each
installed package. The object behind one is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import ConfigError, said_of

DATA_SETS, COMMANDS = "privet.datasets", "privet.commands"
"""Groups of entry points."""
PAPERS = {
    DATA_SETS: ("adult", "femnist"),
    COMMANDS: ("bench", "errata", "replay", "reproduce"),
}
"""Names of each group that ``papers/`` of this library's repository brings."""


@lru_cache(maxsize=8)
def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load_plugin(group: str, name: str, kind: type | None = None) -> Any:
    """Return the object of an entry point.

    Raises
    ------
    ConfigError
        If it cannot be imported, or is not of the ``kind`` that is expected.
    """
    entry = plugins(group)[name]
    try:
        loaded = entry.load()
    except Exception as error:  # whatever another package's import does
        raise ConfigError(
            f"{name}: {entry.value} of entry point group {group} cannot be imported: "
            f"{said_of(error)}"
        ) from error
    if kind is not None and not isinstance(loaded, kind):
        raise ConfigError(
            f"{name}: {entry.value} of entry point group {group} is of type "
            f"{type(loaded).__name__}, not a {kind.__name__}"
        )
    return loaded


def where(group: str, name: str) -> str:
    """Return where a name of the papers is that is not installed; empty for any other name."""
    if name not in PAPERS[group] or name in plugins(group):
        return ""
    return f"{name} is in papers/ of Privet's repository: pip install -e papers in a checkout of it"


class Names(tuple[str, ...]):
    """Names of this library's own, and after them those of a group of entry points.

    As a tuple it has the own ones alone. Entry points with those names, or with a name that is
    ``taken`` for something else, are not looked at.
    """

    group: str
    taken: frozenset[str]

    def __new__(cls, own: Iterable[str], group: str, taken: Iterable[str] = ()) -> Names:
        """Return the names."""
        own = tuple(own)
        made = super().__new__(cls, own)
        made.group, made.taken = group, frozenset((*own, *taken))
        return made

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):  # a damaged file may hold anything
            return False
        own = super().__contains__(name)
        return own or (name not in self.taken and name in plugins(self.group))

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from (name for name in plugins(self.group) if name not in self.taken)

    def where(self, name: str) -> str:
        """Return the end of a line on a name of the papers that is not installed, or nothing."""
        return f"; {said}" if (said := where(self.group, name)) else ""
