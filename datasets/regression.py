"""A generated regression whose agents differ: the problem of the GFL paper, Section V-A."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.datasets.dataset import DENSE_BYTES, DataError, Dataset
from privet.datasets.partitions import HELD_OUT

EIGENVALUES = (0.05, 1.0)
NOISE_VARIANCES = (0.1, 0.3)


def regression(seed: int, features: int, examples: int, agents: int) -> Dataset:
    """Return linear data in which every agent has a covariance and a noise of its own.

    Agent k has u ~ N(0, R_k) and d = <u, w*> + v with v ~ N(0, s_k), eq. (53) of E. Rizk,
    S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning". R_k is a random rotation of
    eigenvalues uniform in [0.05, 1], s_k is uniform in [0.1, 0.3], and w* ~ N(0, I) is common. The
    paper does not give its covariances and noises; with these the steady states come out at the
    size of its figures, and a step of 5 diverges.

    The natural id of an example is its agent: deal with partition natural-id. A fifth as many
    examples again, of all agents, are held out.

    Raises
    ------
    DataError
        Fewer than 2 features, fewer than 1 example an agent, or more than fit in memory.
    """
    each = examples // max(agents, 1)
    if features < 2 or each < 1:
        raise DataError(
            f"regression: expected features >= 2 and an example for each agent, got {features} "
            f"and {examples} for {agents}"
        )
    held_out = max(1, round(each * HELD_OUT))
    rows = each + held_out
    if max(agents * rows, features) * features * 8 > DENSE_BYTES:
        raise DataError(
            f"regression: {examples} examples of {features} features are too many to hold; "
            "expected smaller num-agents, examples-per-agent or features"
        )
    rng = np.random.Generator(np.random.Philox(seed))
    truth = rng.standard_normal(features)
    u = np.empty((agents, rows, features))
    d = np.empty((agents, rows))
    for agent in range(agents):
        rotation, _ = np.linalg.qr(rng.standard_normal((features, features)))
        spread = np.sqrt(rng.uniform(*EIGENVALUES, features))
        u[agent] = (rng.standard_normal((rows, features)) * spread) @ rotation.T
        noise = np.sqrt(rng.uniform(*NOISE_VARIANCES)) * rng.standard_normal(rows)
        d[agent] = u[agent] @ truth + noise

    def flat(part: NDArray[Any]) -> NDArray[Any]:
        return part.reshape(-1, *part.shape[2:])

    return Dataset(
        name="regression",
        train_features=flat(u[:, :each]),
        train_labels=flat(d[:, :each]),
        test_features=flat(u[:, each:]),
        test_labels=flat(d[:, each:]),
        classes=0,
        task="regression",
        description=f"Gaussian linear regression: {features} columns, another covariance and "
        f"another noise for each of {agents} agents",
        train_ids=np.repeat(np.arange(agents), each),
    )
