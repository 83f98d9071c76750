"""Numbers by name: pandas' series and frames where it is installed, mappings where not."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any


def series(values: Sequence[float], names: Sequence[Hashable], name: str = "") -> Any:
    """Return a series of values by name, or a mapping."""
    pandas = pandas_or_none()
    if pandas is None:
        return dict(zip(names, values, strict=True))
    return pandas.Series(list(values), index=list(names), name=name or None, dtype=float)


def frame(columns: Mapping[str, Sequence[Any]], names: Sequence[Hashable]) -> Any:
    """Return a frame of columns with rows by name, or a mapping of mappings by column."""
    pandas = pandas_or_none()
    if pandas is None:
        return {column: dict(zip(names, values, strict=True)) for column, values in columns.items()}
    return pandas.DataFrame(
        {column: list(values) for column, values in columns.items()}, index=list(names)
    )


def pandas_or_none() -> Any:
    """Return pandas where it is installed, else None."""
    try:
        import pandas
    except ImportError:
        return None
    return pandas
