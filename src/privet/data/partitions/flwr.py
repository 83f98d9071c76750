"""``flwr-iid``, ``flwr-dirichlet``, ``flwr-pathological``: dealt by flwr-datasets' partitioners.

The split is that of a FederatedDataset that shuffles with this seed and then deals by its
IidPartitioner, DirichletPartitioner (at least one example each) or PathologicalPartitioner, which
gives an agent exactly ``classes_per_agent`` labels, the first by its number, and leaves labels that
no agent drew to nobody.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from privet.core.rows import NoKeys

from ..dataset import DataError, Indices
from ..dealing import Partition, Pool
from ..extras import optional
from .dirichlet import DirichletKeys
from .label import LabelKeys

log = logging.getLogger("flwr.privet")


def _iid(pool: Pool, _: NoKeys) -> list[Indices]:
    why = f"{len(pool.values)} examples cannot be dealt to {pool.num_agents} agents"
    return _dealt("flwr-iid", pool, why, "IidPartitioner")


def _dirichlet(pool: Pool, keys: DirichletKeys) -> list[Indices]:
    return _dealt(
        "flwr-dirichlet",
        pool,
        f"with dirichlet-alpha = {keys.dirichlet_alpha:g} an agent has no example in 10 draws; "
        "expected a larger dirichlet-alpha or fewer agents",
        "DirichletPartitioner",
        partition_by="label",
        alpha=keys.dirichlet_alpha,
        min_partition_size=1,
        seed=pool.seed,
    )


def _pathological(pool: Pool, keys: LabelKeys) -> list[Indices]:
    known, wanted = len(np.unique(pool.values)), keys.classes_per_agent
    if wanted > known:
        raise DataError(
            f"partition flwr-pathological: classes-per-agent must be in 1 ... {known}, the number "
            f"of labels, got {wanted}"
        )
    return _dealt(
        "flwr-pathological",
        pool,
        f"too few examples of a label for {pool.num_agents} agents of {wanted} labels; expected a "
        "smaller classes-per-agent or fewer agents",
        "PathologicalPartitioner",
        partition_by="label",
        num_classes_per_partition=wanted,
        class_assignment_mode="first-deterministic",
        seed=pool.seed,
    )


def _dealt(scheme: str, pool: Pool, why: str, kind: str, **options: Any) -> list[Indices]:
    """Return the index arrays that one of flwr-datasets' partitioners deals.

    Raises
    ------
    DataError
        flwr-datasets is not installed, or refuses, which ``why`` explains.
    """
    count, seed = len(pool.values), pool.seed
    library = optional("flwr_datasets.partitioner")
    table = optional("datasets").Dataset.from_dict(
        {"label": pool.values.tolist(), "row": np.arange(count)}
    )
    try:
        # It warns of every draw it throws away and of labels nobody has, over several lines.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            partitioner = getattr(library, kind)(num_partitions=pool.num_agents, **options)
            partitioner.dataset = table.shuffle(seed=seed)
            parts = [
                np.array(partitioner.load_partition(agent)["row"][:], dtype=np.intp)
                for agent in range(pool.num_agents)
            ]
    except ValueError:  # its own texts name its own parameters
        raise DataError(f"partition {scheme}: {why}") from None
    unused = count - sum(map(len, parts))
    if unused:
        log.warning("partition %s: %d examples are of labels that no agent has", scheme, unused)
    return parts


IID = Partition("flwr-iid", _iid, by="")
DIRICHLET = Partition("flwr-dirichlet", _dirichlet, keys=DirichletKeys)
PATHOLOGICAL = Partition("flwr-pathological", _pathological, keys=LabelKeys)
