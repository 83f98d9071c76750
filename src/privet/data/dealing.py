"""One way to deal a data set's examples to agents: its name, its function and its own keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core.rows import NoKeys

from .dataset import Indices


class Pool(NamedTuple):
    """The examples that are dealt to the agents.

    Attributes
    ----------
    values : array (examples,)
        What the scheme goes by (`Partition.by`): the examples' numbers, labels or ids.
    num_agents : int
    seed : int
        Non-negative.
    """

    values: NDArray[Any]
    num_agents: int
    seed: int

    @property
    def source(self) -> np.random.Philox:
        """A fresh source of random words."""
        return np.random.Philox(self.seed)


@dataclass(frozen=True, slots=True)
class Partition:
    """A row of the table of partitions; a module of `privet.data.partitions` has it as a global.

    Attributes
    ----------
    name : str
        Value of the run-config key ``partition``.
    deal : function
        Of the pool and of the values of the row's own keys (an instance of ``keys``), fixed by the
        seed: an index array for each agent, disjoint and none empty, in any order. It raises
        `DataError` where it cannot.
    by : {"labels", "ids", ""}
        What it goes by. It is given nothing else, so that with "" a record that changes moves no
        other; a split by labels or ids of a node's own records is refused in private runs.
    keys : type
        Frozen dataclass of the row's own run-config keys, made with `privet.core.key.setting` and
        ``needs={"partition": name}``.
    seeded : bool
        Whether ``partition-seed`` has a part in it.
    """

    name: str
    deal: Callable[[Pool, Any], list[Indices]]
    by: Literal["labels", "ids", ""] = "labels"
    keys: type[Any] = NoKeys
    seeded: bool = True
