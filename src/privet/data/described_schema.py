"""A schema from a description of several sites' tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privet.analyses.description_table import ranges
from privet.analyses.frame import DATES_LEVEL, TEXTS_LEVEL

from .analysed import FEW_LEVEL
from .dataset import DataError
from .source_column import SourceColumn
from .tables.schema import write_schema

NONE: Mapping[str, SourceColumn] = {}


def schema_of(table: Mapping[str, Any], public: Mapping[str, SourceColumn] = NONE) -> str:
    """Return the text of a schema with the columns of a described table.

    Ranges and categories of a noised description are those of the ``public`` schema that it was
    made of, so is where values may be missing, and the file says what it cost. Else ranges are the
    public edges between which the pooled numbers lie; where nodes hide small cells they are made
    twice as wide, as a few values may lie outside. It is then marked as made from records, so that
    a private run refuses it until a person has put public ranges and categories in it.

    Raises
    ------
    DataError
        If no column has a value.
    """
    described = {key: table[key] for key in ("epsilon", "delta") if key in table}
    columns, others = [], []
    for name, column in table["columns"].items():
        if not (column["n"] or described):
            continue
        # Of noised counts, what noise alone gives one time in 700 is no gap.
        least = 3 * table["count_error"] if described else 0
        gap = column["missing"] > least or bool(column["other"])
        gap = public[name].gap if described and name in public else gap
        if column["kind"] != "numbers":
            stated = [one for one in column.get("categories", {}) if not _stands_for_others(one)]
            if stated:
                columns.append(SourceColumn(name, 0, tuple(stated), gap=gap))
            else:
                others.append(f"{json.dumps(name, ensure_ascii=False)} ({column['kind']})")
            continue
        if described:  # whatever noised counts say: the ends are public
            low, high = (column["histogram"][end] for end in ("low", "high"))
            columns.append(SourceColumn(name, 0, low=low, high=high, gap=gap))
            continue
        low, high = ranges(column)
        if table.get("quantile_rank_error"):
            low, high = low - (high - low) / 2, high + (high - low) / 2
        columns.append(SourceColumn(name, 0, low=low, high=high, gap=gap))
    if not columns:
        raise DataError("the description has no column with values that may be shown")
    left_out = f"# Left out: {', '.join(others)}.\n" if others else ""
    return left_out + write_schema(tuple(columns), described)


def _stands_for_others(level: str) -> bool:
    """Whether a level is no category: it stands for texts, dates, or rare categories."""
    return level in (TEXTS_LEVEL, FEW_LEVEL) or level.startswith(DATES_LEVEL)
