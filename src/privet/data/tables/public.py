"""Privacy-critical: the cells of a column whose range a schema states, each read by itself.

What a cell means follows from its own text, the schema and the run-config keys. How the other
records are spelt plays no part, so one record that changes moves no other, neither in its numbers
nor in whether it can be read.
"""

from __future__ import annotations

import re
from typing import Any

from ..source_column import SourceColumn
from .dates import as_days, day_of, is_date
from .faults import DATES_TEXT
from .values import (
    SEPARATED,
    THOUSANDS,
    UnfitError,
    is_bound,
    is_number,
    is_numeric,
    parted_bound,
)


def in_days(values: Any, dates: str) -> Any:
    """Return a column that a file has as dates as numbers of days (raises ``UnfitError``)."""
    if dates == "refuse":
        raise UnfitError(DATES_TEXT.format(values.drop_null()[0].as_py() if len(values) else ""))
    return as_days(values, dates)


def numbers_of(values: Any, column: SourceColumn, *, dates: str, censored: str) -> Any:
    """Return a column of cells as float64 numbers, None where a value is missing.

    Parameters
    ----------
    values : pyarrow column
        As `privet.data.tables.values.cells` returns it.
    column : SourceColumn
        With the schema's range.
    dates : str
        One of ``DATES``: dates become numbers of days, or are refused.
    censored : str
        One of ``CENSORED``: what a bound such as <5 becomes.

    Raises
    ------
    UnfitError
        For a cell that is none of these: names the first row with one. A comma before three digits
        is refused where both 1.25 and 1250 are in the range.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return in_days(values, dates)
    if is_numeric(values) or pa.types.is_null(kind):
        return values.cast(pa.float64(), safe=False)
    if not pa.types.is_string(kind):
        raise UnfitError(f"of type {kind}, but the schema gives a range of numbers", drop=False)
    try:  # as below, where all cells are plain numbers
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    known: dict[str | None, float | None] = {None: None}
    texts = values.to_pylist()
    for row, text in enumerate(texts):
        if text not in known:
            try:
                known[text] = _number(text, column, dates, censored)
            except UnfitError as error:
                raise UnfitError(str(error), drop=False, row=row, keys=error.keys) from None
    return pa.chunked_array([pa.array([known[text] for text in texts], pa.float64())])


def _number(text: str, column: SourceColumn, dates: str, censored: str) -> float:
    """Return the number of one cell (raises ``UnfitError``)."""
    import pyarrow as pa

    try:
        return float(pa.scalar(text).cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        pass
    if is_number(text):
        return _with_comma(text, column)
    if is_bound(text):
        if censored == "refuse":
            raise UnfitError(
                f"the bound {text!r} in a range of numbers (censored = bound takes the number that "
                "is written, half takes half of it)",
                keys={"censored": "bound"},
            )
        sign, written = parted_bound(text)
        number = _number(written, column, dates, censored)
        return number / 2 if censored == "half" and sign in "<≤" and number > 0 else number
    if is_date(text):
        if dates == "refuse":
            raise UnfitError(DATES_TEXT.format(repr(text)), keys={"dates": "day-first"})
        try:
            return day_of(text, dates)
        except ValueError:
            raise UnfitError(f"{text!r} is no date with dates = {dates}") from None
    if re.fullmatch(SEPARATED, text):
        raise UnfitError(
            f"{text!r} may have separators of thousands (write numbers without them, and with a "
            "decimal point)"
        )
    raise UnfitError(f"{text[:40]!r} is a text, but the schema gives a range of numbers")


def _with_comma(text: str, column: SourceColumn) -> float:
    """Return a number with a comma: a decimal one, where it cannot be one of thousands."""
    decimal, whole = (float(text.replace(",", sign)) for sign in (".", ""))
    if re.fullmatch(THOUSANDS, text) and column.low <= whole <= column.high:
        if column.low <= decimal <= column.high:
            both = f"{decimal:g} or {whole:g}, and the schema's range has both"
            raise UnfitError(f"{text!r} may be {both}: write it with a decimal point, or none")
        raise UnfitError(
            f"{text!r} may have separators of thousands (write numbers without them, and with a "
            "decimal point)"
        )
    return decimal
