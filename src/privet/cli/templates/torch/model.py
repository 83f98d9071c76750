"""The model, and which data a node has: edit this file."""

from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from privet.client_apps import TorchProblem

SETTINGS: dict[str, Any] = {
    "rho": 5.0,
    "local_solver": "sgd",
    "step_size": 0.2,
    "batch_size": 64,
}
"""Arguments of the strategy that go with this model."""


def network() -> torch.nn.Module:
    """Return a new network: 64 pixels, 10 digits."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@cache
def digits() -> Any:
    """Return train and test images, and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    return train_test_split(images, labels, test_size=0.25, random_state=0)


def data_of(context: Context) -> tuple[Any, Any]:
    """Return this node's features (n, 64) and labels (n,): here a share with few of the digits."""
    node = int(context.node_config["partition-id"])
    nodes = int(context.node_config["num-partitions"])
    images, _, labels, _ = digits()
    mine = np.array_split(np.argsort(labels, kind="stable"), nodes)[node]
    return images[mine], labels[mine]


def problem(context: Context) -> TorchProblem:
    """Return what this node minimises: the mean loss of the network on its own data."""
    return TorchProblem(network(), torch.nn.functional.cross_entropy, data_of(context))


def start() -> ArrayRecord:
    """Return the model before round 1."""
    return ArrayRecord(network().state_dict())


def accuracy(arrays: ArrayRecord) -> float:
    """Return the share of the test images that a model gets right."""
    _, images, _, labels = digits()
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        predicted = model(torch.from_numpy(images)).argmax(dim=1).numpy()
    return float((predicted == labels).mean())
