"""Which agent holds which examples.

Deployed agents each compute the split for themselves, so it must come out the same on every
machine. Shuffles therefore order raw Philox words, whose stream numpy keeps stable between
versions, which it does not promise for ``Generator.permutation``. Dirichlet draws do go through
``Generator``: agents that use that scheme should run one version of numpy.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.data.dataset import DataError, Indices, LabelArray, Part

FLWR_SCHEMES = ("flwr-iid", "flwr-dirichlet", "flwr-pathological")
SCHEMES = ("iid", "label", "dirichlet", "natural-id", "none", *FLWR_SCHEMES)
HELD_OUT = 0.2
_DIRICHLET_DRAWS = 100

log = logging.getLogger("flwr.privet")


def permutation(count: int, source: np.random.Philox) -> Indices:
    """Return a uniform permutation of 0 ... count - 1 from raw 64-bit words of the source."""
    return np.argsort(source.random_raw(count), kind="stable")


def hold_out(
    count: int, seed: int | None, ids: LabelArray | None = None
) -> tuple[Indices, Indices]:
    """Return training and held-out positions, ascending: a fifth is held out, fixed by the seed.

    With ``ids``, it is a fifth of the examples of each id, rounded: who has one or two keeps them.
    Without a seed nothing is held out.
    """
    if seed is None:
        return np.arange(count), np.arange(0)
    order = permutation(count, np.random.Philox(seed))
    parts = [order]
    if ids is not None:
        drawn = np.argsort(order)
        parts = [part[np.argsort(drawn[part])] for part in by_id(ids)]
    cuts = [round(len(part) * HELD_OUT) for part in parts]
    test = np.concatenate([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
    train = np.concatenate([part[cut:] for part, cut in zip(parts, cuts, strict=True)])
    return np.sort(train), np.sort(test)


def split(whole: Part, seed: int | None) -> tuple[Part, Part]:
    """Return the examples that `hold_out` leaves for training, and those that it holds out."""
    train, test = hold_out(len(whole.labels), seed, whole.ids)
    return whole.rows(train), whole.rows(test)


def by_id(ids: LabelArray) -> list[Indices]:
    """Return the positions of each distinct id, ascending, in the order of the sorted ids."""
    values, first = np.unique(np.sort(ids), return_index=True)
    order = np.argsort(ids, kind="stable")
    return np.split(order, first[1:]) if len(values) else []


def partition(
    labels: LabelArray,
    num_agents: int,
    scheme: str = "iid",
    *,
    seed: int = 0,
    classes_per_agent: int = 2,
    alpha: float = 0.5,
    ids: LabelArray | None = None,
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
        ``iid``: uniformly at random, sizes differ by at most one.
        ``label``: the examples, sorted by label, are cut into ``num_agents * classes_per_agent``
        shards whose sizes differ by at most one, and every agent is dealt ``classes_per_agent``
        of them. The fewer, the more the class ratios differ. A shard may span two labels, and
        two shards of an agent may share one.
        ``dirichlet``: each class is divided in proportions drawn from Dirichlet(alpha, ...,
        alpha); drawn again, up to 100 times, while an agent has nothing.
        ``natural-id``: agent i has the examples of the i-th of the sorted ids; with fewer agents
        than ids, those of the other ids are nobody's.
        ``none``: every agent has everything; for a node whose files are its own alone.
        ``flwr-iid``, ``flwr-dirichlet``, ``flwr-pathological``: as a FederatedDataset of
        flwr-datasets shuffles with this seed and then deals by its IidPartitioner,
        DirichletPartitioner (at least one example each) or PathologicalPartitioner, which gives
        an agent exactly ``classes_per_agent`` labels, the first by its number, and leaves labels
        that no agent drew to nobody.
    seed : int
        Non-negative.
    classes_per_agent : int
        Shards per agent (``label``), labels per agent (``flwr-pathological``).
    alpha : float
        Concentration (``dirichlet``, ``flwr-dirichlet``): small is skewed, large is iid.
    ids : array of shape (examples,), optional
        The natural id of each example.

    Returns
    -------
    list of sorted index arrays, one per agent

    Raises
    ------
    DataError
        Unknown scheme, a parameter out of range, too few examples or ids for the agents, or
        flwr-datasets is needed and not installed.
    """
    values = np.asarray(labels)
    if num_agents < 1:
        raise DataError(f"num-agents must be >= 1, got {num_agents}")
    if seed < 0:
        raise DataError(f"partition-seed must be >= 0, got {seed}")
    if scheme != "none" and len(values) < num_agents:
        raise DataError(
            f"num-agents: {len(values)} examples cannot give each of {num_agents} agents one"
        )
    if scheme.endswith("dirichlet") and not (math.isfinite(alpha) and alpha > 0):
        raise DataError(
            f"partition {scheme}: dirichlet-alpha must be a positive number, got {alpha}"
        )
    source = np.random.Philox(seed)
    if scheme in FLWR_SCHEMES:
        from privet.data.flwr_partitions import flwr_partition

        parts = flwr_partition(values, num_agents, scheme, seed, classes_per_agent, alpha)
    elif scheme == "none":
        parts = [np.arange(len(values))] * num_agents
    elif scheme == "natural-id":
        parts = _natural(ids, num_agents)
    elif scheme == "iid":
        parts = np.array_split(permutation(len(values), source), num_agents)
    elif scheme == "label":
        parts = _by_label(values, num_agents, classes_per_agent, source)
    elif scheme == "dirichlet":
        parts = _dirichlet(values, num_agents, alpha, source)
    else:
        raise DataError(f"partition {scheme!r} is unknown; expected one of {', '.join(SCHEMES)}")
    return [np.sort(part) for part in parts]


def _natural(ids: LabelArray | None, num_agents: int) -> list[Indices]:
    if ids is None:
        raise DataError(
            "partition natural-id: the data have no ids; give id-column (dataset csv, or an hf: "
            "table), a folder of csv files, one an agent, or take dataset femnist"
        )
    parts = by_id(ids)
    if len(parts) < num_agents:
        raise DataError(f"partition natural-id: {len(parts)} ids for {num_agents} agents")
    if len(parts) > num_agents:
        left = sum(map(len, parts[num_agents:]))
        log.warning(
            "partition natural-id: %d ids for %d agents, %d examples are not used",
            len(parts),
            num_agents,
            left,
        )
    return parts[:num_agents]


def _by_label(
    labels: NDArray[Any], num_agents: int, per_agent: int, source: np.random.Philox
) -> list[Indices]:
    if per_agent < 1:
        raise DataError(f"classes-per-agent must be >= 1, got {per_agent}")
    shards = num_agents * per_agent
    if shards > len(labels):
        raise DataError(
            f"partition label: {len(labels)} examples are too few for {num_agents} agents "
            f"of {per_agent} shards each"
        )
    shuffled = permutation(len(labels), source)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(by_label, shards)
    dealt = permutation(shards, source).reshape(num_agents, per_agent)
    return [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]


def _dirichlet(
    labels: NDArray[Any], num_agents: int, alpha: float, source: np.random.Philox
) -> list[Indices]:
    generator = np.random.Generator(source)
    order = permutation(len(labels), source)
    members = [order[labels[order] == value] for value in np.unique(labels)]
    concentration = np.full(num_agents, alpha)
    for _ in range(_DIRICHLET_DRAWS):
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
        f"have no example in {_DIRICHLET_DRAWS} draws; expected a larger alpha or fewer agents"
    )
