"""A partition in one file: blocks of so many examples in turn, the rest to the last agent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privet.core.key import setting
from privet.data.dataset import Indices
from privet.data.dealing import Partition, Pool


@dataclass(frozen=True)
class Keys:
    toy_block: int = setting(5, "examples of a block", low=1, needs={"partition": "toy-blocks"})


def _deal(pool: Pool, own: Keys) -> list[Indices]:
    cuts = own.toy_block * np.arange(1, pool.num_agents)
    return np.split(np.arange(len(pool.values)), cuts)


PARTITION = Partition("toy-blocks", _deal, by="", keys=Keys, seeded=False)
