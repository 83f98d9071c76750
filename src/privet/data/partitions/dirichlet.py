"""``dirichlet``: each class is divided in proportions drawn from Dirichlet(alpha, ..., alpha).

They are drawn again, up to 100 times, while an agent has nothing. The draws go through numpy's
``Generator``, whose stream may change between versions: agents that use this scheme should run one
version of numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.core.key import LARGEST, setting

from ..dataset import DataError, Indices
from ..dealing import Partition, Pool
from ..held_out import permutation

_DRAWS = 100


@dataclass(frozen=True)
class DirichletKeys:
    """The key of partitions with Dirichlet shares."""

    topic: ClassVar[str] = "Data, loss and regulariser"

    dirichlet_alpha: float = setting(
        0.5,
        "concentration of the shares; small values give each agent few labels",
        low=0,
        open_low=True,
        high=LARGEST,
        needs={"partition": ("dirichlet", "flwr-dirichlet")},
    )


def _deal(pool: Pool, keys: DirichletKeys) -> list[Indices]:
    labels, num_agents, alpha, source = (*pool[:2], keys.dirichlet_alpha, pool.source)
    generator = np.random.Generator(source)
    order = permutation(len(labels), source)
    members = [order[labels[order] == value] for value in np.unique(labels)]
    concentration = np.full(num_agents, alpha)
    for _ in range(_DRAWS):
        owned: list[list[Indices]] = [[] for _ in range(num_agents)]
        for indices in members:
            shares = np.cumsum(generator.dirichlet(concentration))[:-1]
            cuts = np.minimum(shares * len(indices), len(indices)).astype(np.intp)
            for agent, part in zip(owned, np.split(indices, cuts), strict=True):
                agent.append(part)
        parts = [np.concatenate(pieces) for pieces in owned]
        if all(len(part) for part in parts):
            return parts
    raise DataError(
        f"partition dirichlet: with dirichlet-alpha {alpha} some of the {num_agents} agents "
        f"have no example in {_DRAWS} draws; expected a larger alpha or fewer agents"
    )


PARTITION = Partition("dirichlet", _deal, keys=DirichletKeys)
