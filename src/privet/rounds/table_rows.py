"""Some rows of a large table in a file: ``name.rows`` (k, d), and ``name.places`` (1 + k,).

The places begin with the number of all rows. In a whole checkpoint the other rows are zeros, as
those of agents that never took part; in one that holds what changed they are as they were before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped

Arrays = Mapping[str, NDArray[Any]]
Places = NDArray[np.intp]

ROWS, PLACES = ".rows", ".places"
"""Ends of the names of such rows and their places."""


def is_large(table: NDArray[Any]) -> bool:
    """Whether it is worthwhile to leave rows of a table out."""
    return table.ndim == 2 and table.nbytes >= mapped.SPARSE and table.shape[1] > 1


def some_rows(name: str, table: NDArray[Any], places: Places) -> dict[str, NDArray[Any]]:
    """Return these rows of a table, by the names that they have in a file."""
    return {name + PLACES: np.concatenate([[len(table)], places]), name + ROWS: table[places]}


def tables_of_rows(arrays: Arrays) -> set[str]:
    """Return the names of the tables of which some rows are there."""
    ends = {name.removesuffix(ROWS) for name in arrays if name.endswith(ROWS)}
    return {name for name in ends if name + PLACES in arrays}


def filled(arrays: Arrays, name: str, folder: Path | None) -> NDArray[Any]:
    """Return a table of which some rows are there, the others zeros."""
    rows, (count, *places) = arrays[name + ROWS], arrays[name + PLACES].tolist()
    table = mapped.repeated(np.zeros(rows.shape[1], rows.dtype), count, folder)
    table[places] = rows
    return table


class Latest:
    """The arrays of a whole file and of later ones with what changed, taken over last to first.

    ``add`` and ``arrays`` raise ``ValueError`` if rows do not belong to one table.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._changed: dict[str, _Changed] = {}

    def add(self, arrays: Arrays) -> None:
        """Take the arrays and rows of a file over that no later file has."""
        some = tables_of_rows(arrays)
        for name in some - self._arrays.keys():
            changed = self._changed.setdefault(name, _Changed())
            changed.add(arrays[name + PLACES], arrays[name + ROWS])
        whole = arrays.keys() - {name + end for name in some for end in (ROWS, PLACES)}
        for name in whole - self._arrays.keys():
            rows = self._changed.pop(name, None)
            self._arrays[name] = arrays[name] if rows is None else rows.put_into(arrays[name])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays as those of one file."""
        for name in list(self._changed):
            self._arrays |= self._changed.pop(name).joined(name)
        return self._arrays


class _Changed:
    """The last rows of a table, from files that are given last to first."""

    def __init__(self) -> None:
        self._count, self._seen = -1, np.zeros(0, bool)
        self._parts: list[tuple[Places, NDArray[Any]]] = []

    def add(self, places: NDArray[Any], rows: NDArray[Any]) -> None:
        """Take the rows over that no later file has."""
        count, where = int(places[0]), places[1:]
        if self._count < 0:
            self._count, self._seen = count, np.zeros(count, bool)
        if count != self._count or len(where) != len(rows):
            raise ValueError("rows of a table do not belong together")
        new = ~self._seen[where]
        self._seen[where] = True
        self._parts.append((where, rows) if new.all() else (where[new], rows[new]))

    def put_into(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the table of an earlier file with these rows."""
        if len(table) != self._count:
            raise ValueError("rows of a table do not belong together")
        for places, rows in self._parts:
            table[places] = rows
        return table

    def joined(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the rows as those of one file."""
        if len(self._parts) == 1:
            ((places, rows),) = self._parts
        else:
            places = np.concatenate([places for places, _ in self._parts])
            rows = np.concatenate([rows for _, rows in self._parts])
        return {name + PLACES: np.concatenate([[self._count], places]), name + ROWS: rows}
