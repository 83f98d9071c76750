"""Partitions dealt by flwr-datasets, as a FederatedDataset deals them."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.data.dataset import DataError, Indices
from privet.data.extras import optional

log = logging.getLogger("flwr.privet")


def flwr_partition(
    labels: NDArray[Any],
    num_agents: int,
    scheme: str,
    seed: int,
    classes_per_agent: int,
    alpha: float,
) -> list[Indices]:
    """Return the index arrays that flwr-datasets deals; see `privet.data.partition`.

    Raises
    ------
    DataError
        flwr-datasets is not installed, or cannot deal these examples to so many agents.
    """
    known = len(np.unique(labels))
    if scheme == "flwr-pathological" and not 1 <= classes_per_agent <= known:
        raise DataError(
            f"partition {scheme}: classes-per-agent must be in 1 ... {known}, the number of "
            f"labels, got {classes_per_agent}"
        )
    library = optional("flwr_datasets.partitioner")
    table = optional("datasets").Dataset.from_dict(
        {"label": labels.tolist(), "row": np.arange(len(labels))}
    )
    try:
        # It warns of every draw it throws away and of labels nobody has, over several lines.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            partitioner = _partitioner(library, num_agents, scheme, seed, classes_per_agent, alpha)
            partitioner.dataset = table.shuffle(seed=seed)
            parts = [
                np.array(partitioner.load_partition(agent)["row"][:], dtype=np.intp)
                for agent in range(num_agents)
            ]
    # Its own texts name its own parameters.
    except ValueError:
        why = {
            "flwr-dirichlet": f"with dirichlet-alpha = {alpha:g} an agent has no example in 10 "
            "draws; expected a larger dirichlet-alpha or fewer agents",
            "flwr-pathological": f"too few examples of a label for {num_agents} agents of "
            f"{classes_per_agent} labels; expected a smaller classes-per-agent or fewer agents",
        }.get(scheme, f"{len(labels)} examples cannot be dealt to {num_agents} agents")
        raise DataError(f"partition {scheme}: {why}") from None
    unused = len(labels) - sum(map(len, parts))
    if unused:
        log.warning("partition %s: %d examples are of labels that no agent has", scheme, unused)
    return parts


def _partitioner(
    library: Any, num_agents: int, scheme: str, seed: int, classes_per_agent: int, alpha: float
) -> Any:
    if scheme == "flwr-iid":
        return library.IidPartitioner(num_partitions=num_agents)
    if scheme == "flwr-dirichlet":
        return library.DirichletPartitioner(
            num_partitions=num_agents,
            partition_by="label",
            alpha=float(alpha),
            min_partition_size=1,
            seed=seed,
        )
    return library.PathologicalPartitioner(
        num_partitions=num_agents,
        partition_by="label",
        num_classes_per_partition=classes_per_agent,
        class_assignment_mode="first-deterministic",
        seed=seed,
    )
