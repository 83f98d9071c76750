"""Data sets by name: built into scikit-learn, generated, or read from a path."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.datasets.adult import load_adult
from privet.datasets.dataset import DataError, Dataset, LabelArray, finished, standardise
from privet.datasets.partitions import permutation

HELD_OUT = 0.2
DTYPES = ("float64", "float32")
# Data sets whose columns carry a constant one unless the caller says otherwise.
_INTERCEPT = {"breast-cancer", "diabetes", "adult"}


def _split(count: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return training and held-out positions (a fifth), in ascending order, fixed by the seed."""
    order = permutation(count, np.random.Philox(seed))
    held_out = round(count * HELD_OUT)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _breast_cancer(seed: int) -> Dataset:
    from sklearn.datasets import load_breast_cancer

    features, target = load_breast_cancer(return_X_y=True)
    train, test = _split(len(target), seed)
    train_features, test_features = standardise(features[train], features[test])
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


def _digits(seed: int) -> Dataset:
    from sklearn.datasets import load_digits

    features, target = load_digits(return_X_y=True)
    train, test = _split(len(target), seed)
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


def _diabetes(seed: int) -> Dataset:
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    train, test = _split(len(target), seed)
    train_features, test_features = standardise(features[train], features[test])
    train_targets, test_targets = standardise(target[train, None], target[test, None])
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


def _synthetic(seed: int, features: int, examples: int) -> Dataset:
    from sklearn.datasets import make_classification

    if features < 2 or examples < 5:
        raise DataError(
            f"synthetic: expected features >= 2 and examples >= 5, got {features} and {examples}"
        )
    held_out = round(examples * HELD_OUT)
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


def _mnist(path: Path, dtype: str) -> Dataset:
    keys = ("x_train", "y_train", "x_test", "y_test")
    expected = f"expected an .npz file with uint8 arrays {', '.join(keys)}"
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; {expected}")
    try:
        # numpy leaves a file it opened itself open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: dict[str, NDArray[Any]] = {key: archive[key] for key in keys}
    except KeyError as error:
        raise DataError(f"{path}: {expected}; {error.args[0]}") from None
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile):
        raise DataError(f"{path}: {expected}") from None
    for part in ("train", "test"):
        _check_images(path, arrays[f"x_{part}"], arrays[f"y_{part}"], part)

    def features(part: str) -> NDArray[Any]:
        images = arrays[f"x_{part}"]
        scaled: NDArray[Any] = images.reshape(len(images), -1).astype(dtype)
        scaled /= 255
        return scaled

    return Dataset(
        name="mnist",
        train_features=features("train"),
        train_labels=arrays["y_train"],
        test_features=features("test"),
        test_labels=arrays["y_test"],
        classes=10,
        task="multinomial",
        description="MNIST: 784 columns in [0, 1], pixel / 255",
    )


def _check_images(path: Path, images: NDArray[Any], labels: LabelArray, part: str) -> None:
    if images.dtype != np.uint8 or images.shape not in {
        (len(labels), 784),
        (len(labels), 28, 28),
    }:
        raise DataError(
            f"{path}: expected x_{part} uint8 of shape ({len(labels)}, 784) or "
            f"({len(labels)}, 28, 28), got {images.dtype} of shape {images.shape}"
        )
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu":
        raise DataError(f"{path}: expected y_{part} a non-empty vector of integers")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(
            f"{path}: expected y_{part} in 0 ... 9, got {labels.min()} ... {labels.max()}"
        )


_BUILT_IN: dict[str, Callable[[int], Dataset]] = {
    "breast-cancer": _breast_cancer,
    "digits": _digits,
    "diabetes": _diabetes,
}
_FROM_PATH = {
    "mnist": "an .npz file with x_train, y_train, x_test, y_test",
    "adult": "a folder with adult-train.csv.gz and adult-test.csv.gz",
}
NAMES: tuple[str, ...] = (*_BUILT_IN, "synthetic", *_FROM_PATH)


def load(
    name: str,
    *,
    data_path: str | Path | None = None,
    seed: int = 42,
    dtype: str = "float64",
    intercept: bool | None = None,
    features: int = 5,
    examples: int = 25_000,
) -> Dataset:
    """Return a data set; the result is cached per process and its arrays are read-only.

    ============= ========================== ======= ======== ====================
    name          source                     columns train    test
    ============= ========================== ======= ======== ====================
    breast-cancer scikit-learn               30 + 1  455      114
    digits        scikit-learn               64      1438     359
    diabetes      scikit-learn               10 + 1  354      88
    synthetic     make_classification        given   given    a fifth of the given
    mnist         ``data_path``, an .npz     784     in file  in file
    adult         ``data_path``, a folder    82 + 1  32,561   16,281
    ============= ========================== ======= ======== ====================

    Parameters
    ----------
    name : str
        One of the table above; "+ 1" is an intercept, a last column of ones.
    data_path : path, optional
        Where ``mnist`` and ``adult`` are read from; the others ignore it.
    seed : int
        Non-negative. Fixes the held-out fifth of the scikit-learn data sets and the draw of
        ``synthetic``.
    dtype : "float64" or "float32"
    intercept : bool, optional
        Whether to append a column of ones; by default as in the table.
    features, examples : int
        Columns and training examples of ``synthetic``. The defaults are the problem of the
        Fed-PLT paper: 100 agents of 250 examples with 5 features.

    Raises
    ------
    DataError
        Unknown name or dtype, missing path, or a file that is not what was expected.
    """
    if name not in NAMES:
        raise DataError(f"dataset {name!r} is unknown; expected one of {', '.join(NAMES)}")
    if dtype not in DTYPES:
        raise DataError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    if seed < 0:
        raise DataError(f"seed must be >= 0, got {seed}")
    if name in _FROM_PATH and not data_path:
        raise DataError(f"data-path is needed for dataset {name}: {_FROM_PATH[name]}")
    constant = name in _INTERCEPT if intercept is None else intercept
    return _load(
        name=name,
        path=str(data_path or ""),
        seed=seed,
        dtype=dtype,
        intercept=constant,
        features=features,
        examples=examples,
    )


# Four covers a sweep over data sets; one MNIST in float64 is 125 MB.
@lru_cache(maxsize=4)
def _load(
    *, name: str, path: str, seed: int, dtype: str, intercept: bool, features: int, examples: int
) -> Dataset:
    if name == "synthetic":
        dataset = _synthetic(seed, features, examples)
    elif name == "mnist":
        dataset = _mnist(Path(path), dtype)
    elif name == "adult":
        dataset = load_adult(Path(path))
    else:
        dataset = _BUILT_IN[name](seed)
    return finished(dataset, dtype, intercept)
