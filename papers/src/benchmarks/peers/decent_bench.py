"""decent-bench: Fed-LT, which is Fed-PLT without privacy, on its NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import FedLT
from decent_bench.costs import L2RegularizerCost, LogisticRegressionCost
from decent_bench.networks import FedNetwork

from .work import Work


def play(work: Work, mark: Callable[[], None]) -> Any:
    """Play the rounds and return the model that the last one sends: that after one round less."""
    iop.set_backend("numpy")
    term = L2RegularizerCost(work.start.shape)
    agents = []
    for features, labels in zip(work.features, work.labels, strict=True):
        rows = zip(features, labels[:, None], strict=True)
        loss = LogisticRegressionCost([(iop.asarray(a), iop.asarray(b)) for a, b in rows])
        agents.append(Agent(loss + work.l2 * term, state_snapshot_period=work.rounds))
    network = FedNetwork(agents)
    algorithm = FedLT(step_size=work.step_size, num_local_steps=work.epochs, penalty=work.penalty)
    algorithm.run(network, work.rounds, progress_callback=lambda _: mark())
    return np.asarray(iop.to_numpy(network.server().x))
