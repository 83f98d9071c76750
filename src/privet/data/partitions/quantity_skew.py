"""``quantity-skew``: random examples, of sizes proportional to i^-p for agents i = 1 ... N.

Agent i has the examples from round(n S(i-1) / S(N)) to round(n S(i) / S(N)) of a random order, with
S(i) = 1^-p + ... + i^-p, and at least one: the first agent has most, and p = 0 gives all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.core.key import setting

from ..dataset import Indices
from ..dealing import Partition, Pool
from ..held_out import permutation


@dataclass(frozen=True)
class QuantitySkewKeys:
    """The partition's own run-config key."""

    topic: ClassVar[str] = "Data, loss and regulariser"

    quantity_power: float = setting(
        1.0,
        "how fast the agents' sizes fall: that of the i-th is proportional to i^-power",
        low=0,
        high=100,
        needs={"partition": "quantity-skew"},
    )


def _deal(pool: Pool, keys: QuantitySkewKeys) -> list[Indices]:
    count, num_agents, _ = len(pool.values), *pool[1:]
    ranks = np.arange(1, num_agents + 1)
    sums = np.cumsum(ranks**-keys.quantity_power)
    spare = np.rint(sums * (count / sums[-1])) - ranks  # beside one example each
    ends = ranks + np.clip(np.maximum.accumulate(spare), 0, count - num_agents)
    return np.split(permutation(count, pool.source), ends[:-1].astype(np.intp))


PARTITION = Partition("quantity-skew", _deal, by="", keys=QuantitySkewKeys)
