"""A schema from a description of several sites' tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.analyses.description_table import ranges

from .dataset import DataError
from .source_column import SourceColumn
from .tables.schema import write_schema


def schema_of(table: Mapping[str, Any]) -> str:
    """Return the text of a schema with the columns of a described table.

    Ranges are the public edges between which the pooled numbers lie; where nodes hide small cells
    they are made twice as wide, as a few values may lie outside. It is marked as made from
    records, so that a private run refuses it until a person has put public ranges and categories
    in it.

    Raises
    ------
    DataError
        If no column has a value.
    """
    columns = []
    for name, column in table["columns"].items():
        if not column["n"]:
            continue
        gap = bool(column["missing"] or column["other"])
        if column["kind"] in ("texts", "dates"):
            continue
        if column["kind"] == "categories":
            columns.append(SourceColumn(name, 0, tuple(column["categories"]), gap=gap))
            continue
        low, high = ranges(column)
        if table.get("quantile_rank_error"):
            low, high = low - (high - low) / 2, high + (high - low) / 2
        columns.append(SourceColumn(name, 0, low=low, high=high, gap=gap))
    if not columns:
        raise DataError("the description has no column with values that may be shown")
    return write_schema(tuple(columns))
