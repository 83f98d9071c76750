"""Tables whose rows are files: what a folder's modules declare, by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True)
class NoKeys:
    """The run-config keys of a row that has none of its own."""


class Row(Protocol):
    """The fields that every row has.

    Attributes
    ----------
    name : str
        What the run config calls it.
    keys : type
        A frozen dataclass whose fields are the row's own run-config keys.
    """

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> type[Any]: ...


R = TypeVar("R", bound=Row)


def rows(package: str, folder: Iterable[str], kind: type[R]) -> dict[str, R]:
    """Return the rows of a table by name, in the order of their modules' names.

    Parameters
    ----------
    package : str
        Name of the package whose modules have the rows, each as a global.
    folder : iterable of str
        The package's ``__path__``.
    kind : type
        Class of a row.

    Raises
    ------
    ValueError
        For two rows of one name.
    """
    rows: dict[str, R] = {}
    for module in sorted(module.name for module in iter_modules(folder)):
        for value in vars(import_module(f"{package}.{module}")).values():
            if isinstance(value, kind) and rows.setdefault(value.name, value) is not value:
                raise ValueError(f"{package}.{module}: a second row has the name {value.name!r}")
    return rows


def owners(*tables: dict[str, Any]) -> tuple[type, ...]:
    """Return the classes of keys that the rows of some tables have, each once."""
    kinds = dict.fromkeys(row.keys for table in tables for row in table.values())
    return tuple(kind for kind in kinds if kind is not NoKeys)
