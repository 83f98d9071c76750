"""The cells of a table as values: numbers, texts, and None where a value is missing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from privet.data.dataset import FloatArray, LabelArray, SourceColumn

EXACT = 2.0**53
"""Whole numbers up to here are distinct in float64; longer ones are most often identifiers."""
_NO_VALUE = ["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
_DECIMAL_COMMA = r"^[-+]?\d+(,\d+)?([eE][-+]?\d+)?$"
_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_POINTS = r"^([^.]*|[-+]?[1-9]\d{0,2}[.]\d{3})$"
_SEPARATED = r"^[-+]?(\d+|\d{1,3}([,.' ]\d{3})+)([.,]\d+)?([eE][-+]?\d+)?$"


class UnfitError(Exception):
    """A column that cannot be used, and the row that shows it; ``drop`` says whether leaving the
    column out is the way."""

    def __init__(self, text: str, *, drop: bool = True, row: int | None = None) -> None:
        super().__init__(text)
        self.drop = drop
        self.row = row


def normal(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): what looks alike is then equal."""
    return unicodedata.normalize("NFC", text)


def typed(table: Any, names: Iterable[str], public: Mapping[str, SourceColumn]) -> dict[str, Any]:
    """Return columns of a pyarrow table by name, None where a value is missing.

    Texts become numbers where all of a column are, but for texts that ``public`` lists.
    """
    result = {name: cells(table[name]) for name in names}
    commas = any(_are_written(values, _DECIMAL_COMMA, ",") for values in result.values())
    for name, values in result.items():
        column = public.get(name)
        # "01" and "1" are one number, but may be two categories.
        listed = column is not None and _are_listed(values, column.categories)
        # Beside decimal commas, the point of 1.250 may be a separator of thousands.
        unclear = commas and _are_written(values, _POINTS, ".")
        result[name] = values if listed or unclear else _numbers_or_texts(values)
    return result


def cells(values: Any) -> Any:
    """Return a column with None where a value is missing, and texts composed (NFC) and without
    space around them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), None, values)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values
    trimmed = pc.utf8_trim_whitespace(pc.utf8_normalize(values.cast(pa.string()), form="NFC"))
    return pc.if_else(pc.is_in(trimmed, pa.array(_NO_VALUE)), None, trimmed)


def _are_listed(values: Any, categories: tuple[str, ...]) -> bool:
    """Return whether a column has texts, and only these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return False
    return bool(pc.all(pc.is_in(values.drop_null(), pa.array(categories, pa.string()))).as_py())


def _are_written(values: Any, pattern: str, sign: str) -> bool:
    """Return whether a column has texts that all match, one of them with this sign."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return False
    known = values.drop_null()
    signs = pc.any(pc.match_substring(known, sign)).as_py()
    return bool(signs and pc.all(pc.match_substring_regex(known, pattern)).as_py())


def _numbers_or_texts(values: Any) -> Any:
    """Return a column of texts as numbers where all of them are, and stay distinct as float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return values
    try:
        numbers = values.cast(pa.float64())
    except pa.ArrowInvalid:
        return values
    large = pc.greater(pc.abs(numbers), EXACT)
    distinct = [len(each.filter(large).drop_null().unique()) for each in (values, numbers)]
    return numbers if distinct[0] == distinct[1] else values


def with_point(values: Any, *, comma: bool = False) -> Any:
    """Return numbers with decimal commas as numbers, any other column as it is.

    ``comma`` says that a comma is known to be a decimal one, also before three digits.

    Raises
    ------
    UnfitError
        Where the separator may be that of thousands.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return values
    known = values.drop_null()
    if not pc.all(pc.match_substring_regex(known, _SEPARATED)).as_py():
        return values
    if not pc.any(pc.match_substring_regex(known, "[,' .]")).as_py():
        return values  # whole numbers, which stay texts
    decimal = pc.all(pc.match_substring_regex(known, _DECIMAL_COMMA)).as_py()
    separated = known.filter(pc.match_substring(known, ","))
    if decimal and (comma or not pc.all(pc.match_substring_regex(separated, _THOUSANDS)).as_py()):
        return pc.replace_substring(values, ",", ".").cast(pa.float64())
    one = known.filter(pc.match_substring_regex(known, "[,' ]|[.].*[.]|[.][0-9]{3}$"))[0].as_py()
    raise UnfitError(
        f"{one!r} may have separators of thousands (write numbers without them, and with a decimal "
        "point)"
    )


def as_texts(values: Any) -> Any:
    """Return a column as texts, of whole numbers without a point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(values.type):
        whole = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**63))
        if pc.all(whole).as_py():
            values = values.cast(pa.int64())
    return values.cast(pa.string())


def as_numbers(values: Any) -> FloatArray:
    """Return a column of numbers in float64, NaN where a value is missing."""
    import pyarrow as pa

    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=float)


def encoded_column(values: Any, column: SourceColumn) -> FloatArray:
    """Return the features of a column, of shape (rows, width), NaN where a value is missing."""
    encoded: FloatArray
    if column.categories:
        codes, count = codes_of(values, column), len(column.categories)
        encoded = np.eye(count + 1)[codes][:, 1 : count + column.zeros]
        encoded[codes == count] = np.nan
    else:
        encoded = as_numbers(values)[:, None]
    if not column.gap:
        return encoded
    return np.hstack([encoded, np.asarray(values.is_null())[:, None]])


def codes_of(values: Any, column: SourceColumn) -> LabelArray:
    """Return the numbers of a column's categories; a missing value has the next after them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = as_texts(values)
    codes = pc.index_in(texts, pa.array(column.categories))
    row = pc.index(pc.and_(codes.is_null(), texts.is_valid()), True).as_py()
    if row >= 0:
        raise UnfitError(
            f"{texts[row].as_py()!r} is not a category of the schema", drop=False, row=row
        )
    return np.asarray(codes.fill_null(len(column.categories)).to_numpy(), dtype=np.int64)
