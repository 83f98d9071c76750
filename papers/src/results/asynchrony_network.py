"""The network of docs/results/deep.md as a problem of the study of asynchronous runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from numpy.typing import NDArray

from privet.client_apps import LoopParticipant, initial_arrays
from privet.kernel import stream
from privet.sim.engine import InlineGrid
from studies.small_network import Digits, network

IMAGES = 2000
"""Test images that are looked at over the clock."""

digits = lru_cache(maxsize=1)(Digits)


class Network:
    """Agents that train the network with SGD, and the share of test images that it gets wrong.

    Attributes
    ----------
    start : ArrayRecord
        The model that runs begin with, another for each seed; so are who holds what, and batches.
    """

    def __init__(self, file: Path, agents: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.digits, self.seed = digits(file), seed
        self.parts = self.digits.parts(agents, seed)
        self.model = network(seed)  # one for all agents: they are asked one after the other
        self.start: ArrayRecord = initial_arrays(network(seed))
        self._judge = network(seed)
        self._layout = [(name, array.shape) for name, array in self.start.items()]

    def grid(self, algorithm: str) -> InlineGrid:
        """Return the engine whose agents train the network."""

        def size(context: Context) -> int:
            return len(self.parts[_own(context)])

        participant = LoopParticipant(algorithm, network(self.seed), size)
        app = participant.app()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            own = _own(context)
            with participant.round(message, context, self.model) as local:
                draw = stream(self.seed, "batches", str(own), round_=local.round)
                self.digits.train(
                    self.model, self.parts[own], draw, local.steps, local.step_size,
                    lambda: local.correct(self.model),
                )  # fmt: skip
            return local.reply()

        return InlineGrid(app, len(self.parts))

    def error(self, x: NDArray[Any]) -> float:
        """Return the share of the test images that a model (d,) gets wrong; NaN as it is."""
        if not np.isfinite(x).all():
            return float("nan")
        ends = np.cumsum([np.prod(shape, dtype=int) for _, shape in self._layout])[:-1]
        arrays = {
            name: Array(part.reshape(shape).astype("f4"))
            for (name, shape), part in zip(self._layout, np.split(x, ends), strict=True)
        }
        self._judge.load_state_dict(ArrayRecord(arrays).to_torch_state_dict())
        return 1.0 - self.digits.accuracy(self._judge, IMAGES)


def _own(context: Context) -> int:
    return int(context.node_config["partition-id"])
