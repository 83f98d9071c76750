"""Tables of the Hugging Face hub, or saved by its library: what ``data-path = "hf:..."`` names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, LabelArray, brief
from .extras import optional
from .held_out import hold_out
from .stamps import stamps

PREFIX = "hf:"


def train_and_test(source: str, seed: int | None, id_column: str = "") -> tuple[Any, Any]:
    """Return the splits ``train`` and ``test`` of a table; without ``test``, a fifth is held out.

    Parameters
    ----------
    source : str
        ``hf:`` and a name on the hub, a folder written by ``save_to_disk``, or any folder that
        ``datasets.load_dataset`` reads.
    seed : int, optional
        Fixes the held-out fifth; without it all rows are for training.
    id_column : str
        Where given, a fifth of the rows of each id is held out.

    Raises
    ------
    DataError
        The library is not installed, the hub cannot be reached, or there is no such table, or
        one without rows.
    """
    tables = splits(source)
    if "train" not in tables:
        raise DataError(f"{source}: expected a split train, got {', '.join(map(str, tables))}")
    for name in ("train", "test"):
        if name in tables and not len(tables[name]):
            raise DataError(f"{source}: expected rows in split {name}, got an empty table")
    if "test" in tables:
        return tables["train"], tables["test"]
    table = tables["train"]
    named = None if seed is None else ids(table, id_column, source)
    train, test = hold_out(len(table), seed, named)
    return table.select(train), table.select(test)


def splits(source: str) -> Any:
    """Return the splits of a table by name (raises ``DataError`` where it cannot be had)."""
    library = optional("datasets")
    name = source.removeprefix(PREFIX)
    if not name:
        raise DataError(f"{source}: expected the name of a data set of the hub, or a folder")
    folder = Path(name)
    saved = any((folder / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            tables = library.load_from_disk(name)
        elif files := stamps([folder]):
            # The library itself keeps what it has read of files by the times of their contents.
            kept = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
            cache = Path(library.config.HF_DATASETS_CACHE, f"privet-{kept}")
            tables = library.load_dataset(name, cache_dir=str(cache))
        else:
            tables = library.load_dataset(name)
    except ConnectionError as error:
        raise DataError(
            f"{source}: the hub cannot be reached ({brief(error)}); expected a network, or hf: and "
            "a folder written by save_to_disk"
        ) from None
    # What else it raises for a wrong name or file has no common class and changes by version.
    except Exception as error:
        raise DataError(f"{source}: cannot be loaded ({brief(error)})") from None
    return tables if isinstance(tables, dict) else {"train": tables}


def column(table: Any, name: str, source: str) -> Any:
    """Return a column as a list (raises ``DataError`` where it is not there or not readable)."""
    if name not in table.column_names:
        raise DataError(
            f"{source}: expected a column {name}, got {', '.join(sorted(table.column_names))}"
        )
    try:
        return table[name][:]
    # Reading decodes images, and every kind of file has errors of its own.
    except Exception as error:
        raise DataError(f"{source}: column {name} cannot be read ({brief(error)})") from None


def ids(table: Any, name: str, source: str) -> LabelArray | None:
    """Return the natural ids of the rows, None where no column is named.

    Raises
    ------
    DataError
        No such column, or a row without an id.
    """
    if not name:
        return None
    values = column(table, name, source)
    if None in values:
        raise DataError(f"{source}, row {values.index(None) + 1}: expected an id in column {name}")
    if any(isinstance(value, list | dict) for value in values):
        raise DataError(f"{source}: expected a text or a number in each row of column {name}")
    return np.asarray(values)


def image_rows(table: Any, source: str) -> NDArray[Any]:
    """Return the column ``image`` as an array of shape (rows, ...), pixels as stored.

    No rows are of 784 pixels.

    Raises
    ------
    DataError
        No such column, what is no image, or images of different sizes.
    """
    rows = []
    for number, picture in enumerate(column(table, "image", source), start=1):
        try:
            rows.append(np.asarray(picture))
        except (ValueError, OSError) as error:
            raise DataError(f"{source}, row {number}: expected an image ({brief(error)})") from None
    if len({row.shape for row in rows}) > 1:
        raise DataError(f"{source}: expected images of one size")
    stacked = np.stack(rows) if rows else np.empty((0, 784), dtype=np.uint8)
    # Stored as nested lists, pixels come back as wide integers.
    small = (
        stacked.dtype.kind in "iu" and stacked.size and 0 <= stacked.min() <= stacked.max() < 256
    )
    return stacked.astype(np.uint8) if small else stacked
