"""``iid``: a share drawn uniformly at random; sizes differ by at most one."""

from __future__ import annotations

import numpy as np

from privet.core.rows import NoKeys

from ..dataset import Indices
from ..dealing import Partition, Pool
from ..held_out import permutation


def _deal(pool: Pool, _: NoKeys) -> list[Indices]:
    if pool.num_agents == 1:  # who has all examples has them in their order
        return [np.arange(len(pool.values))]
    return np.array_split(permutation(len(pool.values), pool.source), pool.num_agents)


PARTITION = Partition("iid", _deal, by="")
