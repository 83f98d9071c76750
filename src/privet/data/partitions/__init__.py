"""Which agent holds which examples; each module has a partition, with its row of the table.

Not public: names in here may move without notice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privet.core import ConfigError
from privet.core.key import check_fields
from privet.core.rows import rows

from ..dataset import DataError, Indices, LabelArray
from ..dealing import Partition, Pool
from ..held_out import by_person, rows_of

PARTITIONS: dict[str, Partition] = rows(__name__, __path__, Partition)
"""The partitions by the names that the key ``partition`` has for them."""
SCHEMES = tuple(PARTITIONS)
"""Names of the partitions."""


def partition(
    labels: LabelArray,
    num_agents: int,
    scheme: str = "iid",
    *,
    seed: int = 0,
    ids: LabelArray | None = None,
    persons: LabelArray | None = None,
    **own: Any,
) -> list[Indices]:
    """Split examples over agents: disjoint, nobody empty, fixed by the seed.

    Every example is dealt to one agent, except as ``natural-id``, ``none`` and
    ``flwr-pathological`` say.

    Parameters
    ----------
    labels : array of shape (examples,)
        Class labels, or any values that can be sorted.
    num_agents : int
    scheme : str
        One of ``SCHEMES``; the modules of `privet.data.partitions` say what each does.
    seed : int
        Non-negative.
    ids : array of shape (examples,), optional
        The natural id of each example.
    persons : array of shape (examples,), optional
        Whose each example is. Persons are dealt then, each with all examples, by the label or id
        of the first.
    own
        Run-config keys of the scheme's own, with underscores, such as ``dirichlet_alpha``.

    Returns
    -------
    list of sorted index arrays, one per agent

    Raises
    ------
    DataError
        Unknown scheme, a parameter that it does not have or out of range, too few examples or ids
        for the agents, or flwr-datasets is needed and not installed.
    """
    if persons is not None:
        return _of_persons(persons, labels, num_agents, scheme, seed, ids, own)
    count = len(labels)
    if num_agents < 1:
        raise DataError(f"num-agents must be >= 1, got {num_agents}")
    if seed < 0:
        raise DataError(f"partition-seed must be >= 0, got {seed}")
    if scheme != "none" and count < num_agents:
        raise DataError(f"num-agents: {count} examples cannot give each of {num_agents} agents one")
    if scheme not in PARTITIONS:
        raise DataError(f"partition {scheme!r} is unknown; expected one of {', '.join(SCHEMES)}")
    row = PARTITIONS[scheme]
    if foreign := own.keys() - row.keys.__dataclass_fields__.keys():
        raise DataError(f"partition {scheme}: {', '.join(sorted(foreign))} is no parameter of it")
    settings = row.keys(**own)
    try:
        check_fields(settings)
    except ConfigError as error:
        raise DataError(f"partition {scheme}: {error}") from None
    if row.by == "ids" and ids is None:
        raise DataError(
            f"partition {scheme}: the data have no ids; give id-column (dataset csv, or an hf: "
            "table), a folder of csv files, one an agent, or take dataset femnist"
        )
    values: Any = {"labels": labels, "ids": ids, "": np.arange(count)}[row.by]
    parts = row.deal(Pool(np.asarray(values), num_agents, seed), settings)
    return [np.sort(part) for part in parts]


def _of_persons(
    persons: LabelArray,
    labels: LabelArray,
    num_agents: int,
    scheme: str,
    seed: int,
    ids: LabelArray | None,
    own: dict[str, Any],
) -> list[Indices]:
    """Deal persons in place of examples (raises ``DataError``)."""
    rows = by_person(persons)
    if scheme != "none" and len(rows) < num_agents:
        raise DataError(
            f"num-agents: {len(rows)} persons cannot give each of {num_agents} agents one"
        )
    if ids is not None and scheme in PARTITIONS and PARTITIONS[scheme].by == "ids":
        several = sum(len(np.unique(ids[each])) > 1 for each in rows)
        if several:
            who = "1 person has" if several == 1 else f"{several} persons have"
            raise DataError(
                f"partition {scheme}: {who} rows under more than one id, and one agent has to hold "
                "all rows of a person: deal them by partition = iid, or leave out person-column"
            )
    first = [one[0] for one in rows]
    firsts = None if ids is None else ids[first]
    parts = partition(labels[first], num_agents, scheme, seed=seed, ids=firsts, **own)
    return list(rows_of(rows, *parts))
