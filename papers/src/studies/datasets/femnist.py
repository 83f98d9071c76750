"""FEMNIST: handwritten characters by writer, in the JSON format of LEAF.

S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097. A file is an object
with ``users`` (names), ``num_samples`` (a number each) and ``user_data`` (name -> ``x``, ``y``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import near_path
from privet.data import hub
from privet.data.dataset import DataError, Dataset, Part, Source
from privet.data.held_out import split

PIXELS = 784
CLASSES = 62
_EXPECTED = "expected LEAF's FEMNIST as JSON: users, num_samples, user_data"


def load_femnist(source: Source) -> Dataset:
    """Read LEAF's files, or an ``hf:`` table with ``image``, ``character`` and ``writer_id``.

    ``source`` is a folder with sub-folders ``train`` and ``test``, each with any number of
    ``*.json`` files as LEAF's split leaves them; or a folder of such files, or one file, of which
    a fifth of the examples of each writer is held out. 784 columns in [0, 1], white is 1; labels 0
    to 61 are the digits, the capitals and the small letters. The natural id is the writer.

    Raises
    ------
    DataError
        A file is missing or is not of that format: names the file and the writer.
    """
    if source.path.startswith(hub.PREFIX):
        train, test = _from_hub(source)
    else:
        path = Path(source.path)
        if all((path / part).is_dir() for part in ("train", "test")):
            train, test = _read(path / "train"), _read(path / "test")
        else:
            train, test = split(_read(path), source.held_out)
    return Dataset.of(
        "femnist",
        train,
        test,
        classes=CLASSES,
        task="multinomial",
        description="FEMNIST: 784 columns in [0, 1], white is 1; 62 characters, by writer",
    )


def _read(path: Path) -> Part:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no *.json file and no folders train and test; {_EXPECTED}")
    seen: dict[str, Path] = {}
    features, labels, writers = [], [], []
    for file in files:
        for writer, x, y in _writers(file):
            if writer in seen:
                raise DataError(f"{file}: writer {writer!r} is in {seen[writer].name} already")
            seen[writer] = file
            features.append(x)
            labels.append(y)
            writers.append(np.repeat(writer, len(y)))
    if not sum(map(len, labels)):
        raise DataError(f"{path}: expected at least one example")
    return Part(np.concatenate(features), np.concatenate(labels), np.concatenate(writers))


def _writers(file: Path) -> list[tuple[str, NDArray[np.float32], NDArray[np.int64]]]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; {_EXPECTED}{near_path(file)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: {_EXPECTED} ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: {_EXPECTED}")
    users, counts, data = (content.get(key) for key in ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise DataError(f"{file}: {_EXPECTED}")
    if len(users) != len(counts) or set(map(str, users)) != data.keys():
        raise DataError(
            f"{file}: expected num_samples and user_data to have an entry for each of users"
        )
    return [
        (str(user), *_examples(f"{file}, writer {user!r}", data[str(user)], count))
        for user, count in zip(users, counts, strict=True)
    ]


def _examples(where: str, entry: Any, count: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    if not isinstance(entry, Mapping) or not {"x", "y"} <= entry.keys():
        raise DataError(f"{where}: expected x and y")
    pixels, characters = entry["x"], entry["y"]
    if not (isinstance(pixels, list) and isinstance(characters, list)):
        raise DataError(f"{where}: expected lists x and y")
    if not len(pixels) == len(characters) == count:
        raise DataError(
            f"{where}: expected {count} examples as in num_samples, got {len(pixels)} x and "
            f"{len(characters)} y"
        )
    try:
        # What overflows is not in 0 ... 1 either.
        with np.errstate(over="ignore"):
            x = np.array(pixels, dtype=np.float32).reshape(len(pixels), -1 if pixels else PIXELS)
        y = np.array(characters)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where}: expected {PIXELS} numbers in each x and a number y") from None
    _check(where, x, y)
    return x, y.astype(np.int64)


def _check(where: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    # Written so that a nan fails too.
    if x.shape[1] != PIXELS or not np.all((x >= 0) & (x <= 1)):
        raise DataError(f"{where}: expected {PIXELS} pixels in 0 ... 1 in each x")
    if len(y) and (y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= CLASSES):
        raise DataError(f"{where}: expected each y a character's number in 0 ... {CLASSES - 1}")


def _from_hub(source: Source) -> tuple[Part, Part]:
    path, writer = source.path, source.id_column or "writer_id"

    def part(table: Any) -> Part:
        images = hub.image_rows(table, path)
        if images.dtype != np.uint8:
            raise DataError(f"{path}: expected grey images of 28 x 28 pixels of 8 bits")
        flat = images.reshape(len(images), math.prod(images.shape[1:]))
        x = flat.astype(np.float32) / np.float32(255)
        y = np.asarray(hub.column(table, source.label_column or "character", path))
        _check(path, x, y)
        return Part(x, y, np.asarray(hub.ids(table, writer, path)))

    train, test = hub.train_and_test(path, source.held_out, writer)
    return part(train), part(test)
