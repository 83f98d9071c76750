"""Table 1 of a paper: every described column by the groups of one of them, as rows of texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Column = Mapping[str, Any]
_SHOWN = 12
"""Categories of a column that have a row."""


def table_one(table: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a table described by groups, the first with its heads.

    Of numbers the mean and the standard deviation, of categories the count and its share of the
    values that are not missing; then how many are missing, and the standardised difference where
    there are two groups. A hidden count is given by its bounds, or as a dash.
    """
    columns, by = table["columns"], table["by"]
    groups = list(columns[by]["categories"])
    sizes = [f"{group} (n = {count_of(columns[by], group)})" for group in groups]
    rows = [[by, f"all (n = {table['rows']:.0f})", *sizes, "missing", "std. difference"]]
    for name, column in columns.items():
        if name != by:
            rows += _rows(name, column, groups)
    return rows


def _rows(name: str, column: Column, groups: Sequence[str]) -> Iterator[list[str]]:
    every = [column, *(column["groups"][group] for group in groups)]
    apart = column.get("standardised_difference")
    end = [f"{column['missing']:.0f}", "" if apart is None else f"{apart:.3f}"]
    if column["kind"] == "numbers":
        yield [f"{name}, mean (sd)", *map(_moments, every), *end]
    elif column["kind"] == "categories":
        known = list(column["categories"])
        yield [f"{name}, n (%)", *[""] * len(every), *end]
        for text in known[:_SHOWN]:
            yield [f"  {text}", *(_share(one, text) for one in every), "", ""]
        if len(known) > _SHOWN:
            yield [f"  {len(known) - _SHOWN} more", *[""] * (len(every) + 2)]


def _moments(column: Column) -> str:
    """Return mean and deviation with as many decimals: three digits of the deviation."""
    mean, deviation = column.get("mean"), column.get("sd")
    if mean is None:
        return "-"
    if not deviation:
        return f"{mean:.4g}" if deviation is None else f"{mean:.4g} (0)"
    decimals = max(0, 2 - math.floor(math.log10(deviation)))
    if decimals > 8:
        return f"{mean:.4g} ({deviation:.3g})"
    return f"{mean:.{decimals}f} ({deviation:.{decimals}f})"


def _share(column: Column, text: str) -> str:
    count = column["categories"][text]
    if count is None or not column["n"]:
        return count_of(column, text) if column["n"] else "-"
    return f"{count:.0f} ({100 * count / column['n']:.1f} %)"


def count_of(column: Column, text: str) -> str:
    """Return how many rows have a category, or between which bounds a hidden count lies."""
    count = column["categories"][text]
    return f"{count:.0f}" if count is not None else "{} to {}".format(*column["bounds"][text])
