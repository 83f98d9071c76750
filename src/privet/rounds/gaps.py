"""`Gaps`: every enrolled agent's part of the residual, since its upload was folded last.

A round knows the parts of its participants alone. Their mean says nothing about agents that are
late in every round, and goes to zero without them. So the part of every agent is kept, and the
residual is the mean over all: NaN, which means unknown, while there is an agent without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privet.core import RunError

from .table_rows import some_rows

UNKNOWN = math.nan
"""The part of an agent that was never folded, or not since it started again."""

SAVED = "gaps/"
"""What the names of these tables begin with in a checkpoint."""


@dataclass
class Gaps:
    """The last known squared gaps of all enrolled agents.

    Attributes
    ----------
    count : int
        N, the number of enrolled agents.
    tables : dict of str to float64 array (N,)
        Squared gaps by the name of the array that they are of, NaN where unknown. A gap that was
        computed and is not a number is infinite.
    """

    count: int
    tables: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def noted(
        self, name: str, positions: Sequence[int], squares: float | NDArray[np.float64]
    ) -> float:
        """Write the squared gaps of some agents, and return the mean over all."""
        table = self.tables.get(name)
        if table is None:
            table = self.tables[name] = np.full(self.count, UNKNOWN)
        table[list(positions)] = squares
        return mean_in_order(table)

    def insert(self, position: int) -> None:
        """Insert a newcomer, whose gap is unknown."""
        self.count += 1
        for name, table in self.tables.items():
            self.tables[name] = np.insert(table, position, UNKNOWN)

    def forget(self, position: int) -> None:
        """Make the gap of an agent that starts again unknown."""
        for table in self.tables.values():
            table[position] = UNKNOWN

    def dump(self, changed: NDArray[np.intp] | None = None) -> dict[str, NDArray[Any]]:
        """Return the tables for a checkpoint, by name; with ``changed`` these places alone."""
        if changed is None:
            return {f"{SAVED}{name}": table for name, table in self.tables.items()}
        arrays: dict[str, NDArray[Any]] = {}
        for name, table in self.tables.items():
            arrays |= some_rows(f"{SAVED}{name}", table, changed)
        return arrays

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], count: int) -> Self:
        """Return the gaps of ``dump`` (raises ``RunError`` for tables of other agents)."""
        for name, table in arrays.items():
            if table.shape != (count,) or table.dtype != np.float64:
                raise RunError(
                    f"resume: the checkpoint's table {name} is of {table.shape} {table.dtype}, "
                    f"not ({count},) float64"
                )
        return cls(count, {name[len(SAVED) :]: table.copy() for name, table in arrays.items()})

    def unknown(self) -> list[int]:
        """Return the positions of the agents without a known gap; all if none was ever noted."""
        if not self.tables:
            return list(range(self.count))
        missing = np.isnan(list(self.tables.values())).any(axis=0)
        return np.flatnonzero(missing).tolist()


def mean_in_order(squares: NDArray[np.float64]) -> float:
    """Return the mean of squares, added one after the other; NaN if one of them is unknown."""
    total = float(np.add.accumulate(squares)[-1])
    if math.isnan(total) and np.isinf(squares).any():  # whatever the unknown ones are
        return math.inf
    return total / len(squares)
