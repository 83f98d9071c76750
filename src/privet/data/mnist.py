"""MNIST, and what has its shape: 28 x 28 grey images of ten classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import near_path
from privet.core.files import read_npz

from . import hub
from .dataset import DataError, Dataset, LabelArray, Part, Source, brief

PIXELS = 784
KEYS = ("x_train", "y_train", "x_test", "y_test")


def load_mnist(source: Source) -> Dataset:
    """Read an ``.npz`` file with uint8 ``x_train, y_train, x_test, y_test``, or an ``hf:`` table.

    The table has columns ``image`` and ``label`` (or ``label_column``). Pixels are divided by 255.

    Raises
    ------
    DataError
        No such file or table, or not 28 x 28 uint8 images with labels 0 ... 9.
    """
    train_ids = None
    if source.path.startswith(hub.PREFIX):
        train, test = hub.train_and_test(source.path, source.held_out, source.id_column)
        train_ids = hub.ids(train, source.id_column, source.path)
        arrays = {}
        for part, table in (("train", train), ("test", test)):
            arrays[f"x_{part}"] = hub.image_rows(table, source.path)
            label = source.label_column or "label"
            arrays[f"y_{part}"] = np.asarray(hub.column(table, label, source.path))
    else:
        arrays = _read_npz(Path(source.path))
    for part in ("train", "test"):
        # Where nothing is held out, there may be no test set.
        if part == "train" or not source.whole or arrays["y_test"].size:
            _check(source.path, arrays[f"x_{part}"], arrays[f"y_{part}"], part)

    def features(part: str) -> NDArray[Any]:
        images = arrays[f"x_{part}"]
        scaled: NDArray[Any] = images.reshape(len(images), PIXELS).astype(source.dtype)
        scaled /= 255
        return scaled

    return Dataset.of(
        "mnist",
        Part(features("train"), arrays["y_train"], train_ids),
        Part(features("test"), arrays["y_test"]),
        classes=10,
        task="multinomial",
        description="MNIST: 784 columns in [0, 1], pixel / 255",
    )


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    expected = f"expected an .npz file with uint8 arrays {', '.join(KEYS)}"
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}; {expected}{near_path(path)}")
    try:
        arrays = read_npz(path, compressed=True)
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: {expected} ({brief(error)})") from None
    if missing := [key for key in KEYS if key not in arrays]:
        raise DataError(f"{path}: {expected}; there is no {missing[0]}")
    return arrays


def _check(source: str, images: NDArray[Any], labels: LabelArray, part: str) -> None:
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu":
        raise DataError(f"{source}: expected y_{part} a non-empty vector of integers")
    if images.dtype != np.uint8 or images.shape not in {
        (len(labels), PIXELS),
        (len(labels), 28, 28),
    }:
        raise DataError(
            f"{source}: expected x_{part} uint8 of shape ({len(labels)}, 784) or "
            f"({len(labels)}, 28, 28), got {images.dtype} of shape {images.shape}"
        )
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(
            f"{source}: expected y_{part} in 0 ... 9, got {labels.min()} ... {labels.max()}"
        )
