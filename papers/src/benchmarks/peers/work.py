"""The work that all play alike: agents with data, a model to start from, steps of gradient descent.

A file of NumPy's carries it from one interpreter to another.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Work:
    """What agents hold and do in a round.

    Parameters
    ----------
    model : str
        "logistic", or a network of `peers.torch_model.network`.
    features : (N, n, d) array
        Of N agents.
    labels : (N, n) array
        0 or 1 for "logistic", else classes.
    start : (D,) array
        The first model.
    step_size, l2
        Of w - step_size * (gradient of the mean loss + l2 * w).
    penalty
        Of Fed-PLT's splitting, rho.
    epochs, batch
        Passes over the n examples in a round, and the examples of a step, in the order given.
    rounds
        The first is not timed.
    """

    model: str
    features: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    start: npt.NDArray[Any]
    step_size: float
    l2: float = 0.0
    penalty: float = 1.0
    epochs: int = 1
    batch: int = 1
    rounds: int = 3

    @property
    def agents(self) -> int:
        """Number of agents."""
        return len(self.features)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        np.savez(path, **asdict(self))

    @classmethod
    def load(cls, path: Path) -> Work:
        """Read a file of `save`."""
        with np.load(path) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        return cls(**{name: each if each.ndim else each.item() for name, each in values.items()})
