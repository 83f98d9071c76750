"""The model, and which data a node has: edit this file."""

from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from sklearn.linear_model import LogisticRegression

from privet import load_model
from privet.client_apps import SklearnModel
from privet.data import (
    Dataset,
    Federation,
    encoded_rows,
    federation_from_config,
    read_rows,
)
from privet.kernel import Problem

DATA: dict[str, Any] = {"dataset": "digits"}
"""Run-config keys about data: for a table of yours those of the line that `privet data FILE` ends
with, such as {"dataset": "csv", "data-path": "/data/patients.csv", "label-column": "outcome"}."""

SETTINGS: dict[str, Any] = {"rho": 10.0}
"""Arguments of the strategy that go with this model."""


@cache
def dealt(nodes: int) -> Federation:
    """Return the data as they are dealt to so many nodes; LogisticRegression has an intercept."""
    return federation_from_config({**DATA, "intercept": "no"}, nodes)


def data() -> Dataset:
    """Return training and test set."""
    return dealt(1).dataset


@cache
def model() -> SklearnModel:
    """Return what all nodes and the server must agree on: estimator, features, classes."""
    classes = np.unique(data().train_labels).tolist()
    return SklearnModel(LogisticRegression(C=1.0), num_features=data().columns, classes=classes)


def data_of(context: Context) -> tuple[Any, Any]:
    """Return this node's features (n, d) and labels (n,): by default a share with few classes."""
    shares = dealt(int(context.node_config["num-partitions"]))
    mine = shares.parts[int(context.node_config["partition-id"])]
    return data().train_features[mine], data().train_labels[mine]


def problem(context: Context) -> Problem:
    """Return what this node minimises: the estimator's loss on its own data."""
    return model().problem(*data_of(context))


def start() -> ArrayRecord:
    """Return the model before round 1."""
    return model().arrays()


def accuracy(arrays: ArrayRecord) -> float:
    """Return the share of the test rows that a model gets right."""
    return float(model().fitted(arrays).score(data().test_features, data().test_labels))


def predict(folder: str, rows: str) -> Any:
    """Return the labels that the model of a run's folder gives to the rows of another table."""
    saved = {name: one for name, one in load_model(folder).arrays.items() if "/" not in name}
    estimator = model().fitted(ArrayRecord({name: Array(one) for name, one in saved.items()}))
    encoding = data().encoding
    if encoding is None:
        raise ValueError(f"{DATA} is no table with named columns")
    codes = estimator.predict(encoded_rows(read_rows(rows).table, encoding))
    return np.array(encoding.label.categories)[np.searchsorted(model().classes, codes)]
