"""The result of a loader, and the few array operations that all loaders share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.kernel import Told

from .meaning import Meaning
from .source_column import ColumnFacts, RowDigests, SourceColumn

Task = Literal["binary", "multinomial", "regression"]
FloatArray = NDArray[np.floating[Any]]
LabelArray = NDArray[Any]
Indices = NDArray[np.intp]

DENSE_BYTES = 2**31
"""Most that a data set may take: rows are held densely."""


UNUSABLE = Told.DATA
"""The only text on data read from a path that a coordinator gets: the same whether the file is
missing, unreadable or wrong, and nothing about its contents."""


class DataError(ValueError):
    """Data that cannot be used: one line that names the file or key and what was expected.

    Parameters
    ----------
    text : str
        The line, for the holder of the data.
    told : str, optional
        The line that a coordinator gets instead, in private runs too. Where it is empty, the
        coordinator gets the text, except in a private run.
    """

    def __init__(self, text: str, told: str = "") -> None:
        super().__init__(text)
        self.told = told


def brief(error: Exception) -> str:
    """Return the text of an error, or its type where it has none, as one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def some(texts: Sequence[str], shown: int = 4) -> str:
    """Return the first of several texts, quoted, and how many more there are."""
    more = f" and {len(texts) - shown} more" if len(texts) > shown else ""
    return f"{', '.join(repr(one[:40]) for one in texts[:shown])}{more}"


@dataclass(frozen=True, slots=True)
class Source:
    """The arguments of a loader: those of `privet.data.load`, checked."""

    name: str
    path: str
    seed: int
    dtype: str
    intercept: bool
    features: int
    examples: int
    agents: int
    columns: int
    hashing: bool
    label_column: str
    id_column: str
    person_column: str
    drop_columns: str
    schema: str
    missing: str
    missing_labels: str
    dates: str
    censored: str
    infinite: str
    whole: bool
    alone: bool
    agreed: str = ""
    cohort: str = ""

    @property
    def held_out(self) -> int | None:
        """The seed of the held-out fifth, None where nothing is held out."""
        return None if self.whole else self.seed


class Part(NamedTuple):
    """Examples with their labels and, where there are any, natural ids and whose they are."""

    features: FloatArray
    labels: LabelArray
    ids: LabelArray | None = None
    persons: LabelArray | None = None

    def rows(self, chosen: Indices) -> Part:
        """Return some of the examples."""
        if mapped.are_all(chosen, len(self.labels)):
            return self
        ids, persons = (None if one is None else one[chosen] for one in (self.ids, self.persons))
        return Part(mapped.rows_of(self.features, chosen), self.labels[chosen], ids, persons)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a table, and what would mend it.

    Attributes
    ----------
    text : str
    drop : tuple of str
        Columns that may be left out.
    keys : dict
        Values of other run-config keys.
    stops : bool
        Whether the table cannot be used with it; else it is a doubt.
    of_values : bool
        Whether it is about how values of these columns are written, so that comparing them between
        sites says nothing more.
    of_sites : bool
        Whether comparing sites says the same, where it says anything of the column.
    weight : int
        2 where a model learns what is wrong, or what it cannot know, 1 where single values may be
        none, else 0: doubts of more weight are told first.
    """

    text: str
    drop: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    stops: bool = True
    of_values: bool = True
    of_sites: bool = False
    weight: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """The encoding of a table's columns as features, and of its labels as targets.

    A column of numbers becomes ``(x - origin) / unit``; one of k categories the last k - 1 columns
    of its one-hot code; a missing value, in columns where there may be one, ``filling``, and 1 in
    the last column of those with a ``gap``.

    Attributes
    ----------
    columns : tuple of SourceColumn
        In the order of the features; their sum of ``width`` is that of the features.
    origin, unit, filling : array of shape (width,)
    optional : tuple of str
        Names of the columns in which a value may be missing.
    label : SourceColumn
        Its categories are the classes: -1 and +1 of ``binary``, else 0 ... classes - 1.
    target : (float, float)
        Origin and unit of the targets of a regression.
    """

    columns: tuple[SourceColumn, ...]
    origin: FloatArray
    unit: FloatArray
    filling: FloatArray
    label: SourceColumn
    optional: tuple[str, ...] = ()
    target: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of_numbers(
        cls, names: Iterable[str], label: SourceColumn, origin: Any = 0.0, unit: Any = 1.0
    ) -> Encoding:
        """Return that of columns of numbers, none of which may be missing."""
        columns = tuple(SourceColumn(str(name), 0, low=-np.inf, high=np.inf) for name in names)
        zeros = np.zeros(len(columns))
        return cls(columns, zeros + origin, zeros + unit, filling=zeros, label=label)

    def scaled(self, features: FloatArray, whole: int = 0) -> FloatArray:
        """Return coded rows (n, width), NaN where a value is missing, as features (n, width), which
        are part of a table of ``whole`` bytes."""
        result: FloatArray = mapped.scratch(features.shape, np.float64, whole)
        for rows in mapped.blocks(features):
            scaled = features[rows] - self.origin
            scaled /= self.unit
            np.copyto(scaled, self.filling, where=np.isnan(scaled))
            result[rows] = scaled
        return result

    def applied(self, part: Part, whole: int = 0) -> Part:
        """Return coded examples, of a table of ``whole`` bytes, with scaled features and, of a
        regression, scaled targets."""
        features, labels = self.scaled(part.features, whole), part.labels
        if not self.label.categories:
            origin, unit = self.target
            labels = (labels - origin) / unit
        return part._replace(features=features, labels=labels)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Features and labels of a training and a test set; all arrays are read-only.

    Attributes
    ----------
    name : str
        The name it was loaded by.
    train_features, test_features : float array of shape (examples, columns)
        In the dtype asked for, C order.
    train_labels, test_labels : array of shape (examples,)
        ``binary``: int64, -1 or +1; ``multinomial``: int64, 0 ... classes - 1;
        ``regression``: targets in the features' dtype.
    classes : int
        Number of classes; 0 for regression.
    task : "binary", "multinomial" or "regression"
    description : str
        One sentence: source, scaling, and the exact columns.
    train_ids : array of shape (examples,), optional
        The natural id of each training example, for instance who wrote it; None where there is
        none.
    train_persons : array of shape (examples,), optional
        Whose each training example is, where ``person-column`` says so.
    data_dependent : str
        What of the shape or scale of the features was read from records that are not public, and
        how to avoid it; empty where nothing was. A private run is refused with it: no account
        covers such preprocessing.
    source_columns : tuple of SourceColumn
        Of a table: what its columns hold, that of the labels last.
    encoding : Encoding, optional
        How a row of the table becomes one of the features; None where the rows are the features.
    doubts : tuple of Fault
        What its user may want to mend.
    facts : mapping
        Of a table: what its rows have in each column, by name, as the holders of several tables
        compare them. It stays in the process that read the rows.
    row_digests : RowDigests, optional
        Of a table of one of several sites: by which rows that stand in another, too, are found.
    meaning : Meaning, optional
        Of a table: what its columns, classes and scaling are, as sites compare it.
    """

    name: str
    train_features: FloatArray
    train_labels: LabelArray
    test_features: FloatArray
    test_labels: LabelArray
    classes: int
    task: Task
    description: str
    train_ids: LabelArray | None = None
    data_dependent: str = ""
    source_columns: tuple[SourceColumn, ...] = ()
    encoding: Encoding | None = None
    doubts: tuple[Fault, ...] = ()
    facts: Mapping[str, ColumnFacts] = field(default_factory=dict)
    row_digests: RowDigests | None = None
    meaning: Meaning | None = None
    train_persons: LabelArray | None = None

    @classmethod
    def of(cls, name: str, train: Part, test: Part, **about: Any) -> Dataset:
        """Return a data set of two parts; ``about`` are the other attributes."""
        return cls(
            name, *train[:2], *test[:2], train_ids=train.ids, train_persons=train.persons, **about
        )

    @property
    def columns(self) -> int:
        """Number of feature columns, the intercept included where there is one."""
        return int(self.train_features.shape[1])


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in C order, marked read-only: cached arrays are shared by all callers."""
    result = np.ascontiguousarray(array)
    result.flags.writeable = False
    return result


def with_intercept(features: FloatArray, whole: int = 0) -> FloatArray:
    """Append a last column of ones to the rows of a table of ``whole`` bytes."""
    count, width = features.shape
    result: FloatArray = mapped.scratch((count, width + 1), features.dtype, whole)
    for rows in mapped.blocks(result):
        result[rows, :width], result[rows, width] = features[rows], 1.0
    return result


def finished(dataset: Dataset, dtype: str, intercept: bool) -> Dataset:
    """Return the data set in its final dtype, with or without intercept, arrays read-only."""

    whole = dataset.train_features.nbytes

    def features(array: FloatArray) -> FloatArray:
        # What overflows is refused with its row where the problem is built.
        with np.errstate(over="ignore"):
            cast = array.astype(dtype, copy=False)
        return frozen(with_intercept(cast, whole) if intercept else cast)

    def labels(array: LabelArray) -> LabelArray:
        kind = dtype if dataset.task == "regression" else np.int64
        return frozen(array.astype(kind, copy=False))

    return replace(
        dataset,
        train_features=features(dataset.train_features),
        train_labels=labels(dataset.train_labels),
        test_features=features(dataset.test_features),
        test_labels=labels(dataset.test_labels),
        train_ids=None if dataset.train_ids is None else frozen(dataset.train_ids),
        train_persons=None if dataset.train_persons is None else frozen(dataset.train_persons),
        description=dataset.description + ("; and an intercept" if intercept else ""),
    )
