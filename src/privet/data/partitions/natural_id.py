"""``natural-id``: agent i has the examples of the i-th of the sorted ids.

With fewer agents than ids, those of the other ids are nobody's.
"""

from __future__ import annotations

import logging

from privet.core.rows import NoKeys

from ..dataset import DataError, Indices
from ..dealing import Partition, Pool
from ..held_out import by_id

log = logging.getLogger("flwr.privet")


def _deal(pool: Pool, _: NoKeys) -> list[Indices]:
    parts, num_agents = by_id(pool.values), pool.num_agents
    if len(parts) < num_agents:
        raise DataError(
            f"partition natural-id: {len(parts)} ids for {num_agents} agents: "
            f"num-agents={len(parts)} gives each id an agent"
        )
    if len(parts) > num_agents:
        left = sum(map(len, parts[num_agents:]))
        log.warning(
            "partition natural-id: %d ids for %d agents, %d examples are not used; num-agents=%d "
            "uses all",
            len(parts),
            num_agents,
            left,
            len(parts),
        )
    return parts[:num_agents]


PARTITION = Partition("natural-id", _deal, by="ids", seeded=False)
