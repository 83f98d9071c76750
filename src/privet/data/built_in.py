"""Data sets that need no file: scikit-learn's own, and generated ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dataset import (
    DENSE_BYTES,
    DataError,
    Dataset,
    Encoding,
    FloatArray,
    Part,
)
from .held_out import HELD_OUT, split
from .source_column import SourceColumn

EIGENVALUES = (0.05, 1.0)
NOISE_VARIANCES = (0.1, 0.3)
"""Ranges from which the agents of ``regression`` draw their covariances and noises."""


def _standardising(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and deviation of training columns, 1 for a deviation of 0.

    Privacy: for the public data of this file alone. Of a node's own records the result would
    depend on all of them, which no account covers.
    """
    deviation = columns.std(axis=0)
    return columns.mean(axis=0), np.where(deviation > 0, deviation, 1.0)


_CELLS = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity",
    "concave points", "symmetry", "fractal dimension",
)  # fmt: skip
"""What was measured of each cell nucleus of ``breast-cancer``."""


def _shipped(name: str, skip: int = 0) -> tuple[FloatArray, NDArray[Any]]:
    """Return the columns and labels of a file of numbers that scikit-learn ships.

    Importing scikit-learn takes longer than all else that a deployed agent does with a message.

    Raises
    ------
    DataError
        If the installed scikit-learn has no such file.
    """
    package = find_spec("sklearn")
    path = Path(str(package and package.origin)).parent / "datasets" / "data" / name
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a scikit-learn below version 2")
    table = np.loadtxt(path, delimiter=",", skiprows=skip, ndmin=2)
    return table[:, :-1], table[:, -1].astype(np.int64)


def _breast_cancer(seed: int | None) -> Dataset:
    features, target = _shipped("breast_cancer.csv", skip=1)
    # scikit-learn codes malignant as 0; +1 is the finding a screening looks for.
    train, test = split(Part(features, np.where(target == 0, 1, -1)), seed)
    names = (form.format(cell) for form in ("mean {}", "{} error", "worst {}") for cell in _CELLS)
    encoding = Encoding.of_numbers(
        names,
        SourceColumn("diagnosis", 0, ("benign", "malignant")),
        *_standardising(train.features),
    )
    return Dataset.of(
        "breast-cancer",
        *map(encoding.applied, (train, test)),
        classes=2,
        task="binary",
        description="Wisconsin breast cancer (scikit-learn): 30 columns, standardised with "
        "training statistics; +1 is malignant",
        encoding=encoding,
    )


def _digits(seed: int | None) -> Dataset:
    features, target = _shipped("digits.csv.gz")
    label = SourceColumn("digit", 0, tuple(map(str, range(10))))
    names = (f"pixel_{row}_{column}" for row in range(8) for column in range(8))
    encoding = Encoding.of_numbers(names, label, unit=16.0)
    return Dataset.of(
        "digits",
        *map(encoding.applied, split(Part(features, target), seed)),
        classes=10,
        task="multinomial",
        description="8 x 8 handwritten digits (scikit-learn): 64 columns in [0, 1], pixel / 16",
        encoding=encoding,
    )


def _diabetes(seed: int | None) -> Dataset:
    from sklearn.datasets import load_diabetes

    table = load_diabetes()
    train, test = split(Part(table.data, table.target), seed)
    encoding = Encoding.of_numbers(
        table.feature_names, SourceColumn("progression", 0), *_standardising(train.features)
    )
    mean, deviation = _standardising(train.labels)
    encoding = replace(encoding, target=(float(mean), float(deviation)))
    return Dataset.of(
        "diabetes",
        *map(encoding.applied, (train, test)),
        classes=0,
        task="regression",
        description="Diabetes progression (scikit-learn): 10 columns; columns and target "
        "standardised with training statistics",
        encoding=encoding,
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
    _require_room("synthetic", examples + held_out, features, examples)
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
    return Dataset.of(
        "synthetic",
        Part(x[:examples], labels[:examples]),
        Part(x[examples:], labels[examples:]),
        classes=2,
        task="binary",
        description=f"scikit-learn make_classification: {features} columns, not scaled",
    )


def linear_examples(
    rng: np.random.Generator, truth: NDArray[Any], rows: int, scale: float = 1.0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return u and d of an agent of `regression`, with ``scale`` times its covariance."""
    rotation, _ = np.linalg.qr(rng.standard_normal((len(truth), len(truth))))
    spread = np.sqrt(scale * rng.uniform(*EIGENVALUES, len(truth)))
    u: NDArray[Any] = (rng.standard_normal((rows, len(truth))) * spread) @ rotation.T
    noise = np.sqrt(rng.uniform(*NOISE_VARIANCES)) * rng.standard_normal(rows)
    return u, u @ truth + noise


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
    _require_room("regression", max(agents * rows, features), features, examples)
    rng = np.random.Generator(np.random.Philox(seed))
    truth = rng.standard_normal(features)
    u = np.empty((agents, rows, features))
    d = np.empty((agents, rows))
    for agent in range(agents):
        u[agent], d[agent] = linear_examples(rng, truth, rows)

    def flat(part: NDArray[Any]) -> NDArray[Any]:
        return part.reshape(-1, *part.shape[2:])

    return Dataset.of(
        "regression",
        Part(flat(u[:, :each]), flat(d[:, :each]), np.repeat(np.arange(agents), each)),
        Part(flat(u[:, each:]), flat(d[:, each:])),
        classes=0,
        task="regression",
        description=f"Gaussian linear regression: {features} columns, another covariance and "
        f"another noise for each of {agents} agents",
    )


def _require_room(name: str, rows: int, features: int, examples: int) -> None:
    if rows * features * 8 > DENSE_BYTES:
        raise DataError(
            f"{name}: {examples} examples of {features} features are too many to hold; expected "
            "smaller num-agents, examples-per-agent or features"
        )


BUILT_IN: dict[str, Callable[[int | None], Dataset]] = {
    "breast-cancer": _breast_cancer,
    "digits": _digits,
    "diabetes": _diabetes,
}
"""Data sets of scikit-learn, by name: the seed fixes their held-out fifth, None holds none out."""
STANDARDISED = ("breast-cancer", "diabetes")
"""Those whose scaling depends on which rows are held out."""
