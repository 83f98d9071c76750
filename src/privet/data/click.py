"""Click data, as of Avazu or Criteo: sparse rows with a label that says clicked or not."""

from __future__ import annotations

import bz2
import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.errors import near_path

from . import hub
from .dataset import (
    DENSE_BYTES,
    DataError,
    Dataset,
    FloatArray,
    LabelArray,
    Part,
    Source,
    brief,
)
from .held_out import split

_EXPECTED = "expected LIBSVM rows: a label, then index:value ..., indices from 1 and rising"
_LARGEST = 2**31 - 1
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_LABEL_NAMES = ("label", "click")
_DIMENSION = "columns = auto reads the dimension from the file: give columns"

Pairs = Iterator[tuple[str, float]]


def load_click(source: Source) -> Dataset:
    """Read LIBSVM files, or an ``hf:`` table, into dense rows with labels -1 and +1.

    ``source`` is one file, of which a fifth of the rows is held out, or a folder with one file
    ``train*`` and one ``test*``; ``.gz`` and ``.bz2`` are unpacked. Labels are 0/1 or -1/+1.
    Without ``hashing`` the columns are the file's, as many as ``columns`` says or, where that is
    0, as its largest index. With it, every index is hashed to one of ``columns`` columns with a
    sign (K. Weinberger et al., Feature hashing, ICML 2009; scikit-learn's FeatureHasher), the
    same on every machine, so that agents agree without seeing each other's files.

    A table is always hashed: ``column=value`` with weight 1 for text, whole numbers and booleans,
    ``column`` with the value as its weight for decimals, nothing for what is missing.

    Raises
    ------
    DataError
        A missing file, a row that is not LIBSVM, other labels, an index above ``columns``, or
        more columns than fit in memory.
    """
    columns = source.columns
    if columns < 0:
        raise DataError(f"columns must be >= 0, got {columns}")
    table = source.path.startswith(hub.PREFIX)
    hashing = source.hashing or table
    if columns == 0 and hashing:
        raise DataError(f"{source.path}: give columns, the number of columns that are hashed to")
    train, test = _from_hub(source) if table else _from_files(source)
    train_labels, test_labels = _signs(source.path, train.labels, test.labels)
    width = train.features.shape[1]
    how = "hashed" if hashing else "as in the file"
    return Dataset.of(
        "click",
        train._replace(labels=train_labels),
        test._replace(labels=test_labels),
        classes=2,
        task="binary",
        description=f"click data: {width} columns, {how}, not scaled; +1 is a click",
        data_dependent="" if columns else _DIMENSION,
    )


def _from_files(source: Source) -> tuple[Part, Part]:
    path = Path(source.path)
    if path.is_dir():
        files = [_one(path, "train"), _one(path, "test")]
    elif path.is_file():
        files = [path]
    else:
        raise DataError(f"{path}: no such file; {_EXPECTED}{near_path(path)}")
    read = _read(files, 0 if source.hashing else source.columns)
    parts = [
        Part(_hash(_pairs(matrix), source.columns) if source.hashing else _dense(path, matrix), y)
        for matrix, y in zip(read[::2], read[1::2], strict=True)
    ]
    return split(parts[0], source.held_out) if len(parts) == 1 else (parts[0], parts[1])


def _one(folder: Path, part: str) -> Path:
    matches = sorted(folder.glob(f"{part}*"))
    if len(matches) != 1:
        raise DataError(f"{folder}: expected one file {part}*, got {len(matches)}")
    return matches[0]


def _read(files: list[Path], columns: int) -> list[Any]:
    """Return matrix, labels, matrix, labels ... with one number of columns for all files."""
    from sklearn.datasets import load_svmlight_files

    try:
        # A file without index 0 could be either kind: LIBSVM's own, from 1, is the only one.
        loaded: list[Any] = load_svmlight_files(files, zero_based=False)
    except (OSError, EOFError, ValueError, OverflowError, zlib.error) as error:
        raise DataError(_complaint(files, error)) from None
    for file, labels in zip(files, loaded[1::2], strict=True):
        if not len(labels):
            raise DataError(f"{file}: {_EXPECTED}, got an empty file")
    widest = max(matrix.shape[1] for matrix in loaded[::2])
    if columns and widest > columns:
        raise DataError(
            f"{files[0]}: index {widest} is above columns = {columns}; raise columns, or hash"
        )
    for matrix in loaded[::2]:
        matrix.resize(matrix.shape[0], columns or widest)
    return loaded


def _complaint(files: list[Path], error: Exception) -> str:
    """Name the first line that is wrong, which scikit-learn does not."""
    for file in files:
        try:
            with _OPEN.get(file.suffix, Path.open)(file, "rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if wrong := _mistake(line):
                        return f"{file}, line {number}: {wrong}"
        except (OSError, EOFError, zlib.error) as damage:
            return f"{file}: {_EXPECTED} ({brief(damage)})"
    return f"{', '.join(map(str, files))}: {_EXPECTED} ({brief(error)})"


def _mistake(line: bytes) -> str:
    """Return the fault of a line, empty where it is a row or a comment."""
    label, *pairs = line.split(b"#")[0].split() or [b"0"]
    last = 0
    try:
        float(label)
        for index, value in (pair.split(b":") for pair in pairs if not pair.startswith(b"qid:")):
            if int(index) > _LARGEST:
                return f"index {int(index)} is above 2^31-1"
            if int(index) <= last:
                return _EXPECTED
            last = int(index)
            float(value)
    except ValueError:
        return _EXPECTED
    return ""


def _dense(source: object, matrix: Any) -> FloatArray:
    rows, columns = matrix.shape
    if rows * columns * 8 > DENSE_BYTES:
        raise DataError(
            f"{source}: {rows} rows of {columns} columns are too many to hold densely; set hashing "
            "= true and columns, or cut the file"
        )
    if not np.isfinite(matrix.data).all():
        raise DataError(f"{source}: expected finite values")
    dense: FloatArray = matrix.toarray()
    return dense


def _pairs(matrix: Any) -> Iterator[Pairs]:
    # Only the indices that occur: the largest says nothing about how many there are.
    used, place = np.unique(matrix.indices, return_inverse=True)
    names = [str(index) for index in (used + 1).tolist()]
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        taken = place[start:stop]
        yield zip((names[index] for index in taken), matrix.data[start:stop], strict=True)


def _hash(rows: Iterator[Pairs], columns: int) -> FloatArray:
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(n_features=columns, input_type="pair", dtype=np.float64)
    return _dense(f"columns = {columns}", hasher.transform(rows))


def _signs(source: str, *parts: LabelArray) -> list[NDArray[np.int64]]:
    values = set(np.unique(np.concatenate(parts)).tolist())
    if not (values <= {0, 1} or values <= {-1, 1}):
        some = ", ".join(f"{value:g}" for value in sorted(values)[:5])
        raise DataError(f"{source}: expected labels 0 and 1, or -1 and +1, got {some}")
    return [np.where(part > 0, 1, -1) for part in parts]


def _from_hub(source: Source) -> tuple[Part, Part]:
    path, id_column = source.path, source.id_column
    tables = hub.train_and_test(path, source.held_out, id_column)
    names = tables[0].column_names
    label = source.label_column or next((name for name in _LABEL_NAMES if name in names), "label")

    def part(table: Any) -> Part:
        labels = np.asarray(hub.column(table, label, path))
        if labels.dtype.kind not in "biuf":
            raise DataError(f"{path}: expected {label} to be 0 or 1; name it with label-column")
        used = [name for name in table.column_names if name not in {label, id_column}]
        values = zip(*(hub.column(table, name, path) for name in used), strict=True)
        if not len(labels):
            return Part(np.empty((0, source.columns)), labels.astype(float))
        rows = _hash((_named(used, row) for row in values), source.columns)
        return Part(rows, labels.astype(float))

    train, test = tables
    return part(train)._replace(ids=hub.ids(train, id_column, path)), part(test)


def _named(names: list[str], row: tuple[Any, ...]) -> Pairs:
    for name, value in zip(names, row, strict=True):
        if isinstance(value, float):
            if math.isfinite(value):
                yield name, value
        elif value is not None:
            yield f"{name}={value}", 1.0
