"""New rows of a table as the features that a model was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from privet.core.errors import did_you_mean

from .dataset import DataError, Encoding, FloatArray
from .source_column import SourceColumn
from .tables.dates import are_dates, as_days
from .tables.public import numbers_of
from .tables.values import (
    UnfitError,
    as_numbers,
    as_texts,
    cells,
    censored_as,
    encoded_column,
    is_bound,
    is_numeric,
    is_plain,
    normal,
    not_finite,
    spelled,
    typed,
    with_point,
)

UNKNOWN = ("refuse", "missing")
"""Treatments of a value that no training row had: an error, or a missing value."""


FAR = 0.5
"""How far outside of a training's range, in widths of it, a number is marked."""
_ABOVE = 0.2
"""0 is marked where the least number of the training is more than this many widths above it."""


def encoded_rows(
    table: Any,
    encoding: Encoding,
    *,
    unknown: str = "refuse",
    far: dict[str, Any] | None = None,
) -> FloatArray:
    """Return the rows of a pyarrow table as float64 features, of shape (rows, width).

    Columns are found by name, others are ignored. Cells are read as those of the training were:
    texts without space around them, decimal commas, whole numbers and texts as categories.

    Parameters
    ----------
    unknown : "refuse" or "missing"
        Whether a category that the training did not have, or a number outside of the range of the
        schema, is refused or read as a missing value.
    far : dict, optional
        Is filled with the columns, by name, that have numbers far outside of the training's range,
        or values that are read as missing: which rows they are in, a boolean array.

    Raises
    ------
    DataError
        A column that is not there; a category, number or text that cannot be used, or a missing
        value where the training had none: names column, row (counted from 1) and value.
    """
    if unknown not in UNKNOWN:
        raise DataError(f"unknown = {unknown!r}: expected one of {', '.join(UNKNOWN)}")
    table = table.combine_chunks()
    table = table.rename_columns([normal(name) for name in table.column_names])
    names = [column.name for column in encoding.columns]
    for name in names:
        if name not in table.column_names:
            near = did_you_mean(name, table.column_names)
            raise DataError(f"no column {name!r}, which the model was trained on{near}")
    public = {column.name: replace(column, public=True) for column in encoding.columns}
    values = typed(table, names, public)
    comma = any(
        _has_clear_commas(values[column.name])
        for column in encoding.columns
        if not column.categories
    )
    parts = []
    for column in encoding.columns:
        try:
            column_values = values[column.name]
            if column.public and not column.categories:
                column_values = numbers_of(
                    cells(table[column.name]),
                    column,
                    dates=column.dates or "refuse",
                    censored=column.censored or "refuse",
                )
            elif column.dates and are_dates(column_values):
                column_values = as_days(column_values, column.dates)
            elif not column.categories:
                if column.censored:
                    column_values = censored_as(column_values, column.censored, mixed=False)
                column_values = with_point(column_values, comma=comma)
            coded, odd = _encoded(column_values, table[column.name], column, encoding, unknown)
            if far is not None and (marked := odd | _far(coded, column)).any():
                far[column.name] = marked
        except UnfitError as error:
            where = "" if error.row is None else f"row {error.row + 1}: "
            raise DataError(f"column {column.name}: {where}{error}") from None
        parts.append(coded)
    return encoding.scaled(np.hstack(parts))


def _encoded(
    values: Any, written: Any, column: SourceColumn, encoding: Encoding, unknown: str
) -> tuple[FloatArray, Any]:
    """Return the features of a column, and in which rows its value is unknown and read as missing
    (raises ``UnfitError``)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = not (column.categories or pa.types.is_string(values.type))
    if not is_plain(values) or (numbers and not _are_numbers(values)):
        what = "texts" if column.categories else "numbers"
        raise UnfitError(f"of type {values.type}, and the model was trained on {what}")
    if column.categories:
        values, odd = _texts(values, written, column)
        text = "{!r} is not one of the categories {}"
        known = _listed(column.categories)
    else:
        values, odd = _in_range(values, column)
        text = "{!r} is outside of the range {}"
        known = f"[{column.low:g}, {column.high:g}]" if column.public else "of finite numbers"
    if odd.any() and unknown == "refuse":
        row = int(np.flatnonzero(odd)[0])
        said = text.format(values[row].as_py(), known)
        if column.name in encoding.optional:
            said += "; with --unknown missing it counts as a missing value"
        raise UnfitError(said, row=row)
    missing = np.asarray(values.is_null(), dtype=bool) | odd
    if missing.any() and column.name not in encoding.optional:
        row = int(np.flatnonzero(missing)[0])
        what = f"{values[row].as_py()!r} is unknown" if odd[row] else "no value"
        raise UnfitError(f"{what}, and the model was trained without missing values", row=row)
    if odd.any():
        values = pc.if_else(pa.array(odd), None, values)
    return encoded_column(values, column), odd


def _are_numbers(values: Any) -> bool:
    import pyarrow as pa

    kind = values.type
    return bool(is_numeric(values) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _far(coded: FloatArray, column: SourceColumn) -> Any:
    """Return in which rows a column's number is far outside of the training's range.

    It is by more than `FAR` widths outside, or negative where no number of the training was, or 0
    where all were well above, as codes of missing values are; or none of the training's codes.
    """
    low, high = column.low, column.high
    if column.categories or column.public or low > high:
        return np.zeros(len(coded), dtype=bool)
    numbers, width = coded[:, 0], high - low
    marked = (numbers < low - FAR * width) | (numbers > high + FAR * width)
    if not column.dates and low >= 0:
        marked |= (numbers < 0) | ((numbers == 0) & (low > _ABOVE * width))
    if column.codes:
        marked |= ~(np.isin(numbers, column.codes) | np.isnan(numbers))
    return marked


def _texts(values: Any, written: Any, column: SourceColumn) -> tuple[Any, Any]:
    """Return a column as texts, and which of them are no categories.

    As in a training, "01" is the number 1 where no category is written so.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    listed = pa.array(column.categories)
    texts = as_texts(values)
    as_written = as_texts(cells(written))
    texts = pc.if_else(pc.is_in(as_written, listed), as_written, texts)
    texts = spelled(texts, column.categories)
    odd = pc.and_(texts.is_valid(), pc.invert(pc.is_in(texts, listed)))
    return texts, np.asarray(odd, dtype=bool)


def _in_range(values: Any, column: SourceColumn) -> tuple[Any, Any]:
    """Return a column as float64 numbers, and which of them are outside of the schema's range."""
    import pyarrow as pa

    if pa.types.is_string(values.type):
        # Longer whole numbers than float64 has stay texts as well.
        texts = enumerate(values.to_pylist())
        row, text = next(((row, one) for row, one in texts if _no_number(one)), (0, values[0]))
        way = "; training with censored = bound or half reads such bounds" * is_bound(str(text))
        raise UnfitError(f"{str(text)!r} is not a number{way}", row=row)
    numbers = as_numbers(values)
    outside = not_finite(pa.array(numbers))
    if column.public:
        outside |= (numbers < column.low) | (numbers > column.high)
    return pa.chunked_array([pa.array(numbers, from_pandas=True)]), outside


def _has_clear_commas(values: Any) -> bool:
    """Whether a column has commas that can only be decimal ones: so are the table's others."""
    try:
        return values is not with_point(values)
    except UnfitError:
        return False


def _no_number(text: str | None) -> bool:
    try:
        float((text or "0").replace(",", "."))
    except ValueError:
        return True
    return False


def _listed(categories: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, categories[:6]))
    return f"{shown}, ..." if len(categories) > 6 else shown
