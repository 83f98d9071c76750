"""The user's own tables as analyses read them: all columns and rows, nothing scaled or encoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from privet.analyses.frame import DATES_LEVEL, TEXTS_LEVEL, Factor, Frame
from privet.core import ConfigError, mapped
from privet.core.key import read, same, setting

from .dataset import DataError, LabelArray
from .held_out import by_id
from .loaders import TABLES, Changes, changes
from .partitions import partition
from .settings import DataSettings
from .sql.snapshots import held
from .tables.dates import are_dates, as_days
from .tables.faults import dropped
from .tables.files import read_rows
from .tables.public import numbers_of
from .tables.schema import Schema, read_schema
from .tables.values import (
    UnfitError,
    as_numbers,
    as_texts,
    cells,
    censored_as,
    finite_as,
    is_numeric,
    normal,
    spelled,
    typed,
    with_point,
)

MOST_LEVELS = 200
"""Different texts of a column of categories, at most; of more a column is one of texts."""
FEW_LEVELS = 20
"""As many may be of categories however few rows there are; more are at most half of the rows, or
the column is one of texts, such as ids."""
DEALT = ("natural-id", "iid", "none")
"""How the rows of a table are dealt to the sites of a simulated analysis."""


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The run-config keys about the table of an analysis."""

    topic: ClassVar[str] = "Data, loss and regulariser"

    dataset: str = setting("csv", "name of the data set", choices=TABLES)
    data_path: str = same(DataSettings, "data_path", needs={})
    cohort: str = same(DataSettings, "cohort")
    id_column: str = same(DataSettings, "id_column", needs={})
    person_column: str = same(DataSettings, "person_column", needs={})
    drop_columns: str = same(DataSettings, "drop_columns", needs={})
    schema: str = same(DataSettings, "schema", needs={})
    censored: str = same(DataSettings, "censored", needs={})
    infinite: str = setting(
        "refuse",
        "what infinite numbers are: refused, or missing values",
        choices=("refuse", "missing"),
    )
    dates: str = same(DataSettings, "dates", needs={})
    partition: str = setting(
        "auto",
        "how the rows are dealt to the sites; auto: natural-id with id-column or a folder of "
        "files, else iid",
        choices=("auto", *DEALT),
    )
    partition_seed: int = same(DataSettings, "partition_seed", needs={})


class SiteTable(NamedTuple):
    """A table that was read.

    Attributes
    ----------
    frame : Frame
    ids : array of shape (rows,), optional
        The natural id of each row: that of ``id-column``, or the file's name in a folder.
    persons : array of shape (rows,), optional
    stated : frozenset of str
        The columns whose categories or range a schema states.
    ranges : mapping of str to (float, float)
        Those of numbers that it states.
    dependence : str
        Why the schema is not public; empty where it is.
    """

    frame: Frame
    ids: LabelArray | None = None
    persons: LabelArray | None = None
    stated: frozenset[str] = frozenset()
    ranges: Mapping[str, tuple[float, float]] = {}
    dependence: str = ""

    def taken(self, rows: Any) -> SiteTable:
        """Return the table of some rows."""
        ids, persons = (None if one is None else one[rows] for one in (self.ids, self.persons))
        frame = self.frame.taken(rows)
        if persons is not None:
            frame = replace(frame, persons=len(np.unique(persons)))
        return self._replace(frame=frame, ids=ids, persons=persons)


@dataclass(frozen=True)
class Dealt:
    """The tables of the sites of one simulated analysis.

    Attributes
    ----------
    tables : tuple of SiteTable
    names : tuple of str
        The id of each site's rows; empty where they are not dealt by ids.
    """

    tables: tuple[SiteTable, ...]
    names: tuple[str, ...] = ()
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.tables))


def table_of_schema(path: str) -> SiteTable:
    """Return a table without rows, with the columns of a schema (raises ``DataError``)."""
    schema = read_schema(path)
    columns = schema.columns
    factors = {
        name: Factor(np.empty(0, np.int32), one.categories)
        for name, one in columns.items()
        if one.categories
    }
    ranges = {name: (one.low, one.high) for name, one in columns.items() if not one.categories}
    frame = Frame(0, {name: np.empty(0) for name in ranges}, factors, path)
    return SiteTable(frame, stated=frozenset(columns), ranges=ranges, dependence=schema.dependence)


def settings_of(config: Mapping[str, Any]) -> FrameSettings:
    """Return the keys of a config (raises ``DataError``)."""
    try:
        settings = read(FrameSettings, config)
    except ConfigError as error:
        raise DataError(str(error)) from None
    if not settings.data_path:
        raise DataError("data-path is needed: an analysis reads a table")
    return replace(settings, data_path=str(settings.data_path))


def table_from_config(config: Mapping[str, Any]) -> SiteTable:
    """Return the table of a config; cached per process until a file of it changes.

    Raises
    ------
    DataError
        A file or column that cannot be read: names it.
    """
    with held(config) as found:
        settings = settings_of(found)
        return _table(settings, changes(settings.data_path, settings.schema))


def dealt_from_config(config: Mapping[str, Any], num_agents: int = 0) -> Dealt:
    """Return the tables of the sites that a config deals its table to.

    Every row is dealt. With ``natural-id`` each id is a site, in the order of the sorted ids, and
    ``num_agents`` is their number, or 0.

    Raises
    ------
    DataError
        As `table_from_config`, and for another number of agents than ids.
    """
    with held(config) as found:
        settings = settings_of(found)
        changed = changes(settings.data_path, settings.schema)
        return _dealt(settings, num_agents, changed)


@lru_cache(maxsize=2)
def _dealt(settings: FrameSettings, num_agents: int, changed: Changes) -> Dealt:
    whole = _table(settings, changed)
    scheme = settings.partition
    if scheme == "auto":
        scheme = "iid" if whole.ids is None else "natural-id"
    if scheme == "natural-id":
        if whole.ids is None:
            raise DataError("partition = natural-id: needs id-column, or a folder of files")
        names = tuple(map(str, np.unique(whole.ids)))
        if num_agents not in (0, len(names)):
            raise DataError(
                f"num-agents = {num_agents}: {settings.id_column or 'the folder'} has {len(names)} "
                f"ids, and an analysis uses every row: set num-agents = {len(names)}"
            )
        return Dealt(tuple(whole.taken(rows) for rows in by_id(whole.ids)), names)
    if scheme == "none" and num_agents > 1:
        raise DataError("partition = none is for a node's own config; give id-column, or iid")
    parts = partition(
        *(np.zeros(whole.frame.rows), max(1, num_agents), "iid"),
        seed=settings.partition_seed,
        persons=whole.persons,
    )
    return Dealt(tuple(whole.taken(rows) for rows in parts))


@lru_cache(maxsize=2)
def _table(settings: FrameSettings, changed: Changes) -> SiteTable:
    schema = read_schema(settings.schema)
    out = set(dropped(settings.drop_columns))
    special = [normal(one) for one in (settings.id_column, settings.person_column) if one]
    wanted = {*schema.columns, *special}
    rows = read_rows(
        settings.data_path,
        public=schema.columns,
        unused=lambda name: name in out or bool(schema.columns and name not in wanted),
        empty_headers=not schema.columns,
    )
    if empty := [name for name, count in rows.counts.items() if not count]:
        raise DataError(
            f"{settings.data_path}: {', '.join(empty)}: no rows below the header: put rows into "
            "it, or take the file out"
        )
    there = rows.table.column_names
    for name in (*special, *schema.columns):
        if name not in there:
            raise DataError(f"{settings.data_path}: no column {name}; there are {', '.join(there)}")
    names = [name for name in schema.columns or there if name not in out]
    names += [name for name in special if name not in names]
    columns = typed(rows.table, names, schema.columns)
    numbers: dict[str, Any] = {}
    factors: dict[str, Factor] = {}
    for name in names:
        if name in rows.faults:
            raise DataError(f"{settings.data_path}: column {name}: {rows.faults[name]}")
        ranged = name in schema.columns and not schema.columns[name].categories
        given = cells(rows.table[name]) if ranged else columns[name]
        try:
            values = _read(name, given, schema, settings)
        except UnfitError as error:  # its text may quote a cell
            told = f"column {name}: a cell that does not fit the range in the schema"
            line = f"{settings.data_path}: column {name}: {error}"
            raise DataError(line, told if ranged else "") from None
        whole = 8 * len(rows.files) * len(names)
        if isinstance(values, Factor):
            factors[name] = replace(values, codes=mapped.kept(values.codes, whole))
        else:
            numbers[name] = mapped.kept(values, whole)
        mapped.release()
    several = len(rows.counts) > 1
    ids, persons = (
        _texts(rows.table, name) if name else None
        for name in (settings.id_column, settings.person_column)
    )
    count = 0 if persons is None else len(np.unique(persons))
    for name in (settings.person_column, *out):  # whose a row is, is no column to analyse
        factors.pop(name, None)
        numbers.pop(name, None)
    frame = Frame(len(rows.files), numbers, factors, settings.data_path, count)
    return SiteTable(
        frame,
        rows.files if ids is None and several else ids,
        persons,
        frozenset(schema.columns),
        {name: (one.low, one.high) for name, one in schema.columns.items() if not one.categories},
        schema.dependence,
    )


def _texts(table: Any, name: str) -> LabelArray:
    texts = as_texts(cells(table[normal(name)]))
    if texts.null_count:
        raise DataError(f"{name}: {texts.null_count} rows have no value of this column")
    return np.asarray(texts.to_pylist())


def _read(name: str, values: Any, schema: Schema, settings: FrameSettings) -> Any:
    """Return a column as numbers (n,), or as a `Factor` (raises ``UnfitError``)."""
    public = schema.columns.get(name)
    if public and public.categories:
        return _factor(spelled(as_texts(values), public.categories), public.categories)
    if public:  # each cell by itself, as a model's training reads it
        values = numbers_of(values, public, dates=settings.dates, censored=settings.censored)
        numbers = as_numbers(finite_as(values, settings.infinite))
        if ((numbers < public.low) | (numbers > public.high)).any():
            raise UnfitError(
                f"values outside of [{public.low:g}, {public.high:g}], the range in the schema"
            )
        return numbers
    values = with_point(censored_as(values, settings.censored))
    if settings.dates != "refuse" and are_dates(values):
        return as_numbers(as_days(values, settings.dates))
    values = finite_as(values, settings.infinite)
    if are_dates(values):
        return _alike(values, f"{DATES_LEVEL}{_order(values)})")
    if is_numeric(values):
        return as_numbers(values)
    found = _factor(values)
    most = min(MOST_LEVELS, max(FEW_LEVELS, int((found.codes >= 0).sum()) // 2))
    return _alike(values, TEXTS_LEVEL) if len(found.levels) > most else found


def _alike(values: Any, level: str) -> Factor:
    """Return a column of texts that are no categories as one of a single level."""
    missing = np.asarray(values.is_null())
    return Factor(np.where(missing, -1, 0).astype(np.int32), (level,))


def _order(values: Any) -> str:
    """Return in which order dates such as 5.1.2020 are written, where they say."""
    import pyarrow as pa

    if not pa.types.is_string(values.type):
        return ""
    parts = [
        re.match(r"(\d{1,2})[-/.](\d{1,2})[-/.]", one)
        for one in values.drop_null().unique().to_pylist()
    ]
    firsts, seconds = ([int(one[at]) for one in parts if one] for at in (1, 2))
    if any(one > 12 for one in firsts):
        return ", day first"
    return ", month first" if any(one > 12 for one in seconds) else ""


def _factor(values: Any, levels: tuple[str, ...] = ()) -> Factor:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = as_texts(values)
    known = levels or tuple(sorted(map(str, texts.drop_null().unique().to_pylist())))
    codes = pc.index_in(texts, pa.array(known, pa.string()))
    if levels and pc.any(pc.and_(codes.is_null(), texts.is_valid())).as_py():
        raise UnfitError(
            "a value that is none of the schema's categories (privet data with this schema names "
            "it)"
        )
    return Factor(np.asarray(codes.fill_null(-1).to_numpy(zero_copy_only=False), np.int32), known)
