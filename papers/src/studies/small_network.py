"""A small network on MNIST that agents train with plain SGD steps; several studies share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privet.data.partitions import partition

BATCH = 32


def network(seed: int) -> torch.nn.Module:
    """Return a network of two convolutions, 20,522 parameters."""
    torch.manual_seed(seed)
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


class Digits:
    """MNIST's images and labels as tensors, and who holds what."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as held:
            self.inputs = {p: self._images(held[f"x_{p}"]) for p in ("train", "test")}
            self.labels = {p: torch.tensor(held[f"y_{p}"].astype("i8")) for p in ("train", "test")}

    @staticmethod
    def _images(rows: Any) -> torch.Tensor:
        return torch.tensor(rows.astype("f4") / 255).reshape(-1, 1, 28, 28)

    def parts(self, agents: int, seed: int) -> list[Any]:
        """Return the rows of each agent, dealt by Dirichlet(0.3)."""
        labels = self.labels["train"].numpy()
        return list(partition(labels, agents, "dirichlet", seed=seed, dirichlet_alpha=0.3))

    def accuracy(self, model: torch.nn.Module, images: int | None = None) -> float:
        """Return the share of the (first) test images that the model names."""
        with torch.no_grad():
            inputs: Any = self.inputs["test"][:images]
            outputs = [model(part) for part in inputs.split(1000)]
        found = torch.cat(outputs).argmax(1) == self.labels["test"][:images]
        return float(found.float().mean())

    def train(
        self, model: torch.nn.Module, part: Sequence[int], draw: np.random.Generator,
        steps: int, step_size: float, correct: Callable[[], object],
    ) -> None:  # fmt: skip
        """Take SGD steps of `BATCH` examples of a part; ``correct`` changes gradients in place."""
        optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
        for _ in range(steps):
            rows = draw.choice(part, BATCH, replace=len(part) < BATCH)
            optimizer.zero_grad()
            outputs = model(self.inputs["train"][rows])
            loss: Any = torch.nn.functional.cross_entropy(outputs, self.labels["train"][rows])
            loss.backward()
            correct()
            optimizer.step()
