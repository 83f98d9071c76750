"""``label``: shards of the examples sorted by label.

The examples are cut into ``num_agents * classes_per_agent`` shards whose sizes differ by at most
one, and every agent is dealt ``classes_per_agent`` of them. The fewer, the more the class ratios
differ. A shard may span two labels, and two shards of an agent may share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.core.key import setting

from ..dataset import DataError, Indices
from ..dealing import Partition, Pool
from ..held_out import permutation


@dataclass(frozen=True)
class LabelKeys:
    """The key of partitions that give an agent so many labels."""

    topic: ClassVar[str] = "Data, loss and regulariser"

    classes_per_agent: int = setting(
        2,
        "label shards or labels that each agent holds",
        low=1,
        needs={"partition": ("label", "flwr-pathological")},
    )


def _deal(pool: Pool, keys: LabelKeys) -> list[Indices]:
    labels, per_agent, source = pool.values, keys.classes_per_agent, pool.source
    shards = pool.num_agents * per_agent
    if shards > len(labels):
        raise DataError(
            f"partition label: {len(labels)} examples are too few for {pool.num_agents} agents "
            f"of {per_agent} shards each"
        )
    shuffled = permutation(len(labels), source)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(by_label, shards)
    dealt = permutation(shards, source).reshape(pool.num_agents, per_agent)
    return [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]


PARTITION = Partition("label", _deal, keys=LabelKeys)
