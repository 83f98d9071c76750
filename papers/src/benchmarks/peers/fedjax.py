"""fedjax: federated averaging, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from .work import Work


def play(work: Work, mark: Callable[[], None]) -> Any:
    """Play the rounds and return the model."""

    def loss(params: Any, batch: Any, _: Any) -> Any:
        margins = (2 * batch["y"] - 1) * (batch["x"] @ params)
        return jnp.logaddexp(0.0, -margins).mean() + work.l2 / 2 * params @ params

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.step_size),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
    )
    pairs = zip(work.features.astype(np.float32), work.labels.astype(np.float32), strict=True)
    data = [fedjax.ClientDataset({"x": features, "y": labels}) for features, labels in pairs]
    state = algorithm.init(jnp.asarray(work.start, jnp.float32))
    for number in range(work.rounds):
        keys = jax.random.split(jax.random.PRNGKey(number), work.agents)
        clients = [(str(i), data[i], keys[i]) for i in range(work.agents)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        mark()
    return state.params
