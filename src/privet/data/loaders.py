"""Data sets by name: built into scikit-learn, generated, or read from a path."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from privet.core import ConfigError, mapped
from privet.core.plugins import DATA_SETS, Names, load_plugin

from .built_in import BUILT_IN, regression, synthetic
from .click import load_click
from .dataset import UNUSABLE, DataError, Dataset, Source, brief, finished
from .hub import PREFIX
from .mnist import load_mnist
from .sql.cohorts import SQL
from .sql.snapshots import held
from .stamps import Stamp, has_more, stamps
from .tables.files import EXPECTED
from .tables.table import load_table
from .tables.values import normal

log = logging.getLogger("flwr.privet")

DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class DataFormat:
    """How a data set is read from ``data-path``: the row of it in a table.

    An entry point of the group ``privet.datasets`` has one as its object, and the name of the data
    set as its own.

    Attributes
    ----------
    read : callable
        ``source -> Dataset``, which raises ``DataError`` for files that are not as expected. A
        shape or scale that it takes from the records is to be said in `Dataset.data_dependent`, for
        no account of a private run covers it.
    expected : str
        What the path is of, for error messages.
    intercept : bool
        Whether the columns carry a constant one unless the caller says otherwise.
    """

    read: Callable[[Source], Dataset]
    expected: str
    intercept: bool = False


def _load_cohort(source: Source) -> Dataset:
    asked = {"dataset": SQL, "data-path": source.path, "cohort": source.cohort}
    with held(asked) as found:
        keys = {key.replace("-", "_"): value for key, value in found.items() if key not in asked}
        return load_table(replace(source, path=found["data-path"], **keys))


TABLES = ("csv", SQL)
"""The data sets that are tables of one's own."""
_FROM_PATH = {
    "mnist": DataFormat(
        load_mnist, "an .npz file with x_train, y_train, x_test, y_test, or hf:ylecun/mnist"
    ),
    "click": DataFormat(
        load_click, "a LIBSVM file, a folder with train* and test*, or an hf: table", True
    ),
    "csv": DataFormat(load_table, EXPECTED, True),
    SQL: DataFormat(_load_cohort, "a .toml file of cohorts, or the URL of a database", True),
}
_WITHOUT_PATH = (*BUILT_IN, "synthetic", "regression")
FROM_PATH = Names(_FROM_PATH, DATA_SETS, taken=_WITHOUT_PATH)
"""Names of the data sets that are read from ``data-path``, those of other packages among them."""
NAMES = Names((*_WITHOUT_PATH, *_FROM_PATH), DATA_SETS)
"""Names of all data sets, the values of the key ``dataset``."""
# What the system says of a file, which is worth reading.
_DAMAGED = (MemoryError, OSError, EOFError, zlib.error)
# Other errors of numpy, scikit-learn and the readers, for data that no loader foresees.
_UNUSABLE = (*_DAMAGED, ValueError, TypeError, OverflowError)


def load(
    name: str,
    *,
    data_path: str | Path | None = None,
    seed: int = 42,
    dtype: str = "float64",
    intercept: bool | None = None,
    features: int = 5,
    examples: int = 25_000,
    agents: int = 1,
    columns: int = 0,
    hashing: bool = False,
    label_column: str = "",
    id_column: str = "",
    person_column: str = "",
    drop_columns: str = "",
    schema: str = "",
    missing: str = "refuse",
    missing_labels: str = "refuse",
    dates: str = "refuse",
    censored: str = "refuse",
    infinite: str = "refuse",
    whole: bool = False,
    alone: bool = False,
    agreed: str = "",
    cohort: str = "",
) -> Dataset:
    """Return a data set; its arrays are read-only.

    The result is cached per process until a file that it is read from changes: its size, times or
    inode.

    | name          | source                     | columns | train   | test                 |
    |---------------|----------------------------|---------|---------|----------------------|
    | breast-cancer | scikit-learn               | 30 + 1  | 455     | 114                  |
    | digits        | scikit-learn               | 64      | 1438    | 359                  |
    | diabetes      | scikit-learn               | 10 + 1  | 354     | 88                   |
    | synthetic     | make_classification        | given   | given   | a fifth of the given |
    | regression    | Gaussian, see `regression` | given   | given   | a fifth of the given |
    | mnist         | ``data_path``, an .npz     | 784     | in file | in file              |
    | click         | ``data_path``, LIBSVM      | any + 1 | in file | in file              |
    | csv           | ``data_path``, a table     | any + 1 | in file | a fifth, or in file  |
    | sql           | ``data_path``, a database  | any + 1 | in file | a fifth              |

    Other packages add theirs, also read from ``data_path``, by entry points of `DataFormat`.

    Parameters
    ----------
    name : str
        One of the table above; "+ 1" is an intercept, a last column of ones.
    data_path : path, optional
        Where the lower half of the table is read from; the others ignore it. ``hf:`` and a name
        on the Hugging Face hub, or a folder saved by its library, needs the extra ``datasets``.
    seed : int
        Non-negative. Fixes the held-out fifth of data that come without a test set, and the draw
        of ``synthetic`` and ``regression``.
    dtype : "float64" or "float32"
    intercept : bool, optional
        Whether to append a column of ones; by default as in the table.
    features, examples : int
        Columns and training examples of ``synthetic`` and ``regression``. The defaults are the
        problem of the Fed-PLT paper: 100 agents of 250 examples with 5 features.
    agents : int
        How many agents' distributions ``regression`` is drawn from.
    columns, hashing : int, bool
        Columns of ``click``, 0 for as many as the file has, and whether to hash to them.
    label_column, id_column : str
        Columns of a table with the labels, and with the natural ids that partition natural-id goes
        by; where empty, those its data set is known to have.
    person_column : str
        Of ``csv`` and ``sql``: the column that says whose a row is; a person is held out with all
        rows.
    drop_columns, schema, missing, missing_labels, dates, censored, infinite : str
        Of ``csv`` and ``sql``: columns that are left out, separated by commas; a file of public
        ranges and categories; what missing values, rows without a label or id, dates, bounds such
        as <5 and infinite numbers become. See `privet.data.tables.table`.
    whole : bool
        Whether nothing is held out: of data that come without a test set all rows are then for
        training, and the test set is empty.
    alone : bool
        Whether other nodes have records of their own that are not seen here, as where nothing is
        held out: of ``csv`` or ``sql`` without a schema, what would give each node other columns is
        refused.
    agreed : str
        Of ``csv`` and ``sql``: the encoding that a run's nodes have agreed on, as the text of a
        `privet.data.meaning.Meaning`; columns are put into its order and scaled by its numbers.
    cohort : str
        Of ``sql``: the cohort of the file at ``data_path``, whose query runs anew in each call; of
        a database's URL, the table or view of that name.

    Raises
    ------
    DataError
        Unknown name or dtype, missing path, or a file that is not what was expected or does not
        fit in memory.
    """
    _require_readable(name, data_path, seed, dtype)
    source = Source(
        name=name,
        path=str(data_path or ""),
        seed=seed,
        dtype=dtype,
        intercept=has_intercept(name) if intercept is None else intercept,
        features=features,
        examples=examples,
        agents=agents,
        columns=columns,
        hashing=hashing,
        label_column=normal(label_column),
        id_column=normal(id_column),
        person_column=normal(person_column),
        drop_columns=normal(drop_columns),
        schema=schema,
        missing=missing,
        missing_labels=missing_labels,
        dates=dates,
        censored=censored,
        infinite=infinite,
        whole=whole,
        alone=alone or whole,
        agreed=agreed if name in TABLES else "",
        cohort=cohort,
    )
    return _read(source)


def _require_readable(name: str, data_path: str | Path | None, seed: int, dtype: str) -> None:
    """Refuse what no data set can be read with (raises ``DataError``)."""
    if name not in NAMES:
        known = f"expected one of {', '.join(NAMES)}{NAMES.where(name)}"
        raise DataError(f"dataset {name!r} is unknown; {known}")
    if dtype not in DTYPES:
        raise DataError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    if seed < 0:
        raise DataError(f"data-seed must be >= 0, got {seed}")
    if name in FROM_PATH and not data_path:
        raise DataError(f"data-path is needed for dataset {name}: {_format(name).expected}")


def _read(source: Source) -> Dataset:
    """Return the data set of a source; every way in which it cannot be read is a ``DataError``."""
    name, path = source.name, source.path
    try:
        if name == SQL:  # no stamp says whether a database has changed
            return _load.__wrapped__(source, ())
        return _load(source, changes(path, source.schema))
    except DataError as error:
        if name in FROM_PATH:
            error.told = UNUSABLE
        raise
    except _UNUSABLE as error:
        if name in FROM_PATH:
            why = f"cannot be used as dataset {name}; expected {_format(name).expected}"
            if isinstance(error, _DAMAGED):
                why = f"cannot be used ({brief(error)})"
            else:
                log.debug("%s", path, exc_info=error)
            raise DataError(f"{path}: {why}", UNUSABLE) from None
        raise DataError(f"{name}: cannot be used ({brief(error)})") from None


def has_intercept(name: str) -> bool:
    """Return whether the columns of a data set carry a constant one by default."""
    if name in FROM_PATH:
        return _format(name).intercept
    return name in ("breast-cancer", "diabetes")


def _format(name: str) -> DataFormat:
    """Return how a data set is read from a path (raises ``DataError``)."""
    if name in _FROM_PATH:
        return _FROM_PATH[name]
    try:
        found: DataFormat = load_plugin(DATA_SETS, name, DataFormat)
    except ConfigError as error:
        raise DataError(f"dataset {error}") from None
    return found


Changes = tuple[tuple[Stamp, ...] | None, ...]
"""The stamps of the files at some paths, None of a path where there are none."""


MOST_BELOW = 1_000_000
"""Files below a folder of data, beyond which it is taken for one that was not meant."""


def changes(*paths: str) -> Changes:
    """Return the stamps of the files that data are read from, by path; empty texts are none.

    Raises
    ------
    DataError
        A folder with more than `MOST_BELOW` files below it, such as the root of a file system.
    """
    return tuple(_changes(path.removeprefix(PREFIX)) for path in paths if path)


def _changes(path: str) -> tuple[Stamp, ...] | None:
    found = stamps([path], MOST_BELOW)
    if found is None and has_more(path, MOST_BELOW):
        raise DataError(
            f"{path}: more than {MOST_BELOW:,} files are below this folder: give one that has the "
            "data alone",
            UNUSABLE,
        )
    return found


# Four covers a sweep over data sets; one MNIST in float64 is 125 MB.
@lru_cache(maxsize=4)
def _load(source: Source, changed: Changes) -> Dataset:
    if source.name == "synthetic":
        dataset = synthetic(source.seed, source.features, source.examples)
    elif source.name == "regression":
        dataset = regression(source.seed, source.features, source.examples, source.agents)
    elif source.name in BUILT_IN:
        dataset = BUILT_IN[source.name](source.held_out)
    else:
        dataset = replace(_format(source.name).read(source), name=source.name)
    dataset = finished(dataset, source.dtype, source.intercept)
    if dataset.train_features.nbytes > mapped.LIMIT:
        mapped.trim()
    return dataset
