"""The model, and which data a node has: edit this file."""

from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from privet.client_apps import SklearnModel
from privet.kernel import Problem

SETTINGS: dict[str, Any] = {"rho": 10.0}
"""Arguments of the strategy that go with this model."""


@cache
def model() -> SklearnModel:
    """Return what all nodes and the server must agree on: estimator, features, classes."""
    return SklearnModel(LogisticRegression(C=1.0), num_features=64, classes=range(10))


@cache
def digits() -> Any:
    """Return train and test images, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)


def data_of(context: Context) -> tuple[Any, Any]:
    """Return this node's features (n, 64) and labels (n,): here a share with few of the digits."""
    node = int(context.node_config["partition-id"])
    nodes = int(context.node_config["num-partitions"])
    images, _, labels, _ = digits()
    mine = np.array_split(np.argsort(labels, kind="stable"), nodes)[node]
    return images[mine], labels[mine]


def problem(context: Context) -> Problem:
    """Return what this node minimises: the estimator's loss on its own data."""
    return model().problem(*data_of(context))


def start() -> ArrayRecord:
    """Return the model before round 1."""
    return model().arrays()


def accuracy(arrays: ArrayRecord) -> float:
    """Return the share of the test images that a model gets right."""
    _, images, _, labels = digits()
    return float(model().fitted(arrays).score(images, labels))
