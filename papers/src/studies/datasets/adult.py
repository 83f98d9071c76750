"""UCI Adult: 82 columns from the 14 attributes, without pandas.

The values of each categorical attribute are those of the published code book, not those found in
a file: the columns do not depend on who is in the data, and a foreign file is recognised.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.data import hub
from privet.data.dataset import DataError, Dataset, Encoding, Part, Source
from privet.data.source_column import SourceColumn

TRAIN_FILE = "adult-train.csv.gz"
TEST_FILE = "adult-test.csv.gz"
FIELDS = 15
NUMERIC = {
    0: "age",
    2: "fnlwgt",
    4: "education-num",
    10: "capital-gain",
    11: "capital-loss",
    12: "hours-per-week",
}
SCALING = {
    "age": (38.58164675532078, 13.640223092304081),
    "fnlwgt": (189778.36651208502, 105548.3568808909),
    "education-num": (10.0806793403151, 2.5726808256012395),
    "capital-gain": (1077.6488437087312, 7385.178676946586),
    "capital-loss": (87.303829734959, 402.9540308275458),
    "hours-per-week": (40.437455852092995, 12.347239075706955),
}
"""Mean and deviation (divisor n) of each numeric column over the 32,561 rows of the published
training file: ``adult.data`` of B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository,
1996, https://doi.org/10.24432/C5XW20. Public numbers, and the same at every node."""
# education (3) says in words what education-num says in a number.
CATEGORICAL = {
    1: (
        "workclass",
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov "
        "Without-pay",
    ),
    5: (
        "marital-status",
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married "
        "Separated Widowed",
    ),
    6: (
        "occupation",
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
        "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv Prof-specialty "
        "Protective-serv Sales Tech-support Transport-moving",
    ),
    7: ("relationship", "Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    8: ("race", "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    9: ("sex", "Female Male"),
    13: (
        "native-country",
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England "
        "France Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India "
        "Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru "
        "Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago "
        "United-States Vietnam Yugoslavia",
    ),
}
INCOME = {"<=50K": -1, ">50K": 1}
# Files have no header; tables of the hub do, and differ in punctuation.
_NAMES = (
    NUMERIC | {k: name for k, (name, _) in CATEGORICAL.items()} | {3: "education", 14: "income"}
)
_TABLE = [_NAMES[field] for field in range(FIELDS)]

Columns = list[tuple[str, ...]]


def _rows(path: Path) -> list[list[str]]:
    expected = f"expected a gzip CSV of {FIELDS} columns without header"
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file, skipinitialspace=True) if row]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {expected}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {expected} ({error})") from None
    for number, row in enumerate(rows, start=1):
        if len(row) != FIELDS:
            raise DataError(f"{path}, row {number}: {expected}, got {len(row)} columns")
    if not rows:
        raise DataError(f"{path}: {expected}, got an empty file")
    return rows


def _codes(
    values: tuple[str, ...], known: dict[str, int], where: str, otherwise: str
) -> NDArray[np.int64]:
    """Return the numbers of values; ``otherwise`` is the error text for an unlisted value."""
    try:
        return np.array([known[value] for value in values], dtype=np.int64)
    except KeyError as error:
        (value,) = error.args
        row = values.index(value) + 1
        raise DataError(f"{where}, row {row}: {otherwise.format(repr(value))}") from None


def _one_hot(values: tuple[str, ...], field: int, path: str) -> NDArray[np.float64]:
    """Drop-first one-hot: the first category and '?' are both the zero row."""
    name, text = CATEGORICAL[field]
    known = {value: code for code, value in enumerate(text.split())} | {"?": 0}
    code = _codes(values, known, path, f"{name} is {{}}, not a category of UCI Adult")
    result: NDArray[np.float64] = np.eye(len(known) - 1)[code][:, 1:]
    return result


def _numeric(values: tuple[str, ...], field: int, path: str) -> NDArray[np.float64]:
    column = np.array([_number(value) for value in values], dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(column))
    if len(wrong):
        raise DataError(
            f"{path}, row {wrong[0] + 1}: {NUMERIC[field]} must be a finite number, "
            f"got {values[wrong[0]]!r}"
        )
    return column


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _encode(columns: Columns, path: str) -> Part:
    """Return features and labels; what is made of a row depends on that row alone."""
    numeric = np.column_stack([_numeric(columns[field], field, path) for field in NUMERIC])
    mean, deviation = np.array([SCALING[name] for name in NUMERIC.values()]).T
    one_hot = [_one_hot(columns[field], field, path) for field in CATEGORICAL]
    # The distributed test file ends its labels in a full stop.
    incomes = tuple(value.rstrip(".") for value in columns[FIELDS - 1])
    labels = _codes(incomes, INCOME, path, "income is {}, not <=50K or >50K")
    return Part(np.hstack([(numeric - mean) / deviation, *one_hot]), labels)


def _table_columns(table: Any, source: str) -> Columns:
    """Return the 15 columns of a table as the strings a file has."""
    known = {re.sub(r"[^a-z]+", "-", name.lower()): name for name in table.column_names}
    missing = [name for name in _TABLE if name not in known]
    if missing:
        raise DataError(
            f"{source}: expected the columns of UCI Adult, there is no {', '.join(missing)}"
        )
    return [
        tuple("?" if value is None else str(value).strip() for value in table[known[name]])
        for name in _TABLE
    ]


def load_adult(source: Source) -> Dataset:
    """Read ``adult-train.csv.gz`` and ``adult-test.csv.gz`` of a folder, or an ``hf:`` table.

    82 columns: 6 numeric, standardised with ``SCALING`` whatever file is read, then 76 drop-first
    one-hot (8 + 7 + 14 + 6 + 5 + 2 + 41 categories of 7 attributes, one less each).
    A missing value ('?') is a zero row. Labels: +1 is an income above 50K. A table has the
    columns of the code book, age ... income, in any order.

    Privacy: columns and scaling are public, so each row depends on its own record alone.

    Raises
    ------
    DataError
        A file is missing, or is not UCI Adult; names the file, and the row where there is one.
    """
    ids = None
    if source.path.startswith(hub.PREFIX):
        tables = hub.train_and_test(source.path, source.held_out, source.id_column)
        ids = hub.ids(tables[0], source.id_column, source.path)
        train, test = (_encode(_table_columns(one, source.path), source.path) for one in tables)
    else:
        folder = Path(source.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder with {TRAIN_FILE} and {TEST_FILE}")
        train, test = (_read(folder / name) for name in (TRAIN_FILE, TEST_FILE))
    columns = train.features.shape[1]
    return Dataset.of(
        "adult",
        train._replace(ids=ids),
        test,
        classes=2,
        task="binary",
        description=f"UCI Adult: {columns} columns, 6 numeric standardised as the published "
        f"training file and {columns - 6} drop-first one-hot, education left out",
        encoding=_encoding(),
    )


def _encoding() -> Encoding:
    """Return the columns of the code book, which do not depend on a file."""
    numbers = tuple(SourceColumn(name, 0) for name in SCALING)
    texts = tuple(
        SourceColumn(name, 0, tuple(values.split())) for name, values in CATEGORICAL.values()
    )
    rest = sum(column.width for column in texts)
    origin, unit = np.array([*SCALING.values(), *[(0.0, 1.0)] * rest]).T
    return Encoding(
        (*numbers, *texts),
        origin,
        unit,
        filling=np.zeros(len(origin)),
        optional=tuple(column.name for column in texts),
        label=SourceColumn("income", 0, tuple(INCOME)),
    )


def _read(path: Path) -> Part:
    return _encode(list(zip(*_rows(path), strict=True)), str(path))
