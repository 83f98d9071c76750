"""Section V-B of the graph federated learning paper on Adult in place of the click data.

5 units of 10 agents, 5,101 training examples dealt unequally, agents whose features carry noise of
their own, regularised logistic loss; the error is measured on the clean test set.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.datasets.loaders import load
from privet.problems import L2, BinaryLogistic
from privet.strategies.gfl.graph import graph_edges, metropolis
from privet.wire import stream

from .gfl import BATCHES, EPOCHS, Network

UNITS, EACH, EXAMPLES = 5, 10, 5101
RHO, MU, VARIANCE = 0.03, 0.5, 0.6
LEAST, LARGEST_NOISE = 20, 1.0
"""Examples of an agent at least; noise on its features is uniform up to this deviation."""


@lru_cache(maxsize=2)
def adult_network(data_path: str, seed: int = 0) -> Network:
    """Return the agents' problems on a ring of five servers; all agents of a unit take part."""
    data = load("adult", data_path=data_path)
    rng = stream(seed, "gfl adult")
    agents = UNITS * EACH
    order = rng.permutation(len(data.train_labels))[:EXAMPLES]
    spare = EXAMPLES - LEAST * agents
    cuts = np.sort(rng.integers(0, spare + 1, agents - 1))
    sizes = LEAST + np.diff(np.concatenate([[0], cuts, [spare]]))
    problems = []
    for rows in np.split(order, np.cumsum(sizes)[:-1]):
        features = np.array(data.train_features[rows])
        deviation = rng.uniform(0.0, LARGEST_NOISE)
        features[:, :-1] += deviation * rng.standard_normal((len(rows), features.shape[1] - 1))
        problems.append(
            BinaryLogistic(features, data.train_labels[rows], regularizer=L2(2.0 * RHO))
        )
    epochs = tuple(int(e) for e in rng.integers(EPOCHS[0], EPOCHS[1] + 1, agents))
    batches = tuple(int(b) for b in rng.integers(BATCHES[0], BATCHES[1] + 1, agents))
    weights = metropolis(graph_edges("ring", UNITS), UNITS)
    return Network(tuple(problems), UNITS, epochs, batches, EACH, weights)


def clean_error(data_path: str, model: NDArray[Any]) -> float:
    """Return the share of the clean test set that a model gets wrong."""
    data = load("adult", data_path=data_path)
    return 1.0 - BinaryLogistic.accuracy(model, data.test_features, data.test_labels)
