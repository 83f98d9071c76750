"""Data sets that need no file: scikit-learn's own, and generated ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privet.datasets.dataset import DENSE_BYTES, DataError, Dataset, FloatArray
from privet.datasets.partitions import HELD_OUT, hold_out


def _standardise(train: FloatArray, test: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale both to (x - mean) / deviation of the training columns (deviation 0 counts as 1).

    Privacy: for the public data of this file alone. Of a node's own records the result would
    depend on all of them, which no account covers.
    """
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return (train - mean) / scale, (test - mean) / scale


def _breast_cancer(seed: int | None) -> Dataset:
    from sklearn.datasets import load_breast_cancer

    features, target = load_breast_cancer(return_X_y=True)
    train, test = hold_out(len(target), seed)
    train_features, test_features = _standardise(features[train], features[test])
    # scikit-learn codes malignant as 0; +1 is the finding a screening looks for.
    labels = np.where(target == 0, 1, -1)
    return Dataset(
        name="breast-cancer",
        train_features=train_features,
        train_labels=labels[train],
        test_features=test_features,
        test_labels=labels[test],
        classes=2,
        task="binary",
        description="Wisconsin breast cancer (scikit-learn): 30 columns, standardised with "
        "training statistics; +1 is malignant",
    )


def _digits(seed: int | None) -> Dataset:
    from sklearn.datasets import load_digits

    features, target = load_digits(return_X_y=True)
    train, test = hold_out(len(target), seed)
    return Dataset(
        name="digits",
        train_features=features[train] / 16.0,
        train_labels=target[train],
        test_features=features[test] / 16.0,
        test_labels=target[test],
        classes=10,
        task="multinomial",
        description="8 x 8 handwritten digits (scikit-learn): 64 columns in [0, 1], pixel / 16",
    )


def _diabetes(seed: int | None) -> Dataset:
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    train, test = hold_out(len(target), seed)
    train_features, test_features = _standardise(features[train], features[test])
    train_targets, test_targets = _standardise(target[train, None], target[test, None])
    return Dataset(
        name="diabetes",
        train_features=train_features,
        train_labels=train_targets[:, 0],
        test_features=test_features,
        test_labels=test_targets[:, 0],
        classes=0,
        task="regression",
        description="Diabetes progression (scikit-learn): 10 columns; columns and target "
        "standardised with training statistics",
    )


def synthetic(seed: int, features: int, examples: int) -> Dataset:
    """Return scikit-learn's ``make_classification``: ``examples`` to train on, a fifth to test.

    Raises
    ------
    DataError
        Fewer than 2 features or 5 examples, more than fit in memory, or a seed above 2^32 - 1.
    """
    from sklearn.datasets import make_classification

    if features < 2 or examples < 5:
        raise DataError(
            f"synthetic: expected features >= 2 and examples >= 5, got {features} and {examples}"
        )
    held_out = round(examples * HELD_OUT)
    if (examples + held_out) * features * 8 > DENSE_BYTES:
        raise DataError(
            f"synthetic: {examples} examples of {features} features are too many to hold; expected "
            "smaller num-agents, examples-per-agent or features"
        )
    if seed >= 2**32:
        raise DataError(f"data-seed must be below 2^32 for dataset synthetic, got {seed}")
    x, target = make_classification(
        n_samples=examples + held_out,
        n_features=features,
        n_informative=2,
        n_redundant=min(2, features - 2),
        random_state=seed,
    )
    labels = np.where(target == 1, 1, -1)
    return Dataset(
        name="synthetic",
        train_features=x[:examples],
        train_labels=labels[:examples],
        test_features=x[examples:],
        test_labels=labels[examples:],
        classes=2,
        task="binary",
        description=f"scikit-learn make_classification: {features} columns, not scaled",
    )


BUILT_IN: dict[str, Callable[[int | None], Dataset]] = {
    "breast-cancer": _breast_cancer,
    "digits": _digits,
    "diabetes": _diabetes,
}
"""Data sets of scikit-learn, by name: the seed fixes their held-out fifth, None holds none out."""
