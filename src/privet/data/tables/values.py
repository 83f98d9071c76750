"""The cells of a table as values: numbers, texts, and None where a value is missing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from privet.core import mapped
from privet.core.key import LARGEST

from ..dataset import FloatArray, LabelArray
from ..source_column import HIDDEN, SourceColumn

EXACT = 2.0**53
"""Whole numbers up to here are distinct in float64; longer ones are most often identifiers."""
NO_VALUE = ["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
_DECIMAL_COMMA = r"^[-+]?\d+(,\d+)?([eE][-+]?\d+)?$"
THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_POINTS = r"^([^.]*|[-+]?[1-9]\d{0,2}[.]\d{3})$"
WITH_COMMA = r"^[-+]?\d+,\d+([eE][-+]?\d+)?$"
POINT_OF_THOUSANDS = r"^[-+]?[1-9]\d{0,2}[.]\d{3}$"
_BOUND_SIGN = r"([<>]=?|[≤≥])\s*"
_CENSORED = r"^" + _BOUND_SIGN + r"[-+]?\d+([.,]\d+)?([eE][-+]?\d+)?$"
_WRITTEN = r"^[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?$"
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_APART = ",' \u2019\u00a0\u202f"
"""What separates thousands beside points; tables of several languages have no-break spaces."""
SEPARATED = rf"^[-+]?(\d+|\d{{1,3}}([.{_APART}]\d{{3}})+)([.,]\d+)?([eE][-+]?\d+)?$"
_WHOLE_OR_POINT = r"^(" + _BOUND_SIGN + r")?[-+]?(\d+|[1-9]\d{0,2}[.]\d{3})$"


_AT_ONCE = 1 << 17
"""Rows whose texts are compared with categories at a time."""


class UnfitError(Exception):
    """A column that cannot be used, and the rows that show it.

    ``keys`` are values of run-config keys with which it can be; without any, ``drop`` says whether
    leaving the column out is the way.
    """

    def __init__(
        self,
        text: str,
        *,
        drop: bool = True,
        row: int | None = None,
        rows: Iterable[int] = (),
        keys: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.drop = drop and not keys
        self.rows = tuple(rows) if row is None else (row,)
        self.keys = dict(keys or {})

    @property
    def row(self) -> int | None:
        """The first of the rows, None where none is named."""
        return self.rows[0] if self.rows else None


def normal(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): what looks alike is then equal.

    Letters that control what shows it are escapes then, such as \\x1b.
    """
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], unicodedata.normalize("NFC", text))


def typed(table: Any, names: Iterable[str], public: Mapping[str, SourceColumn]) -> dict[str, Any]:
    """Return columns of a pyarrow table by name, None where a value is missing.

    Texts become numbers where all of a column are, but for texts that ``public`` lists.
    """
    result = {}
    for name in names:
        result[name] = cells(table[name])
        mapped.release()
    commas = any(_are_written(values, _DECIMAL_COMMA, ",") for values in result.values())
    for name, values in result.items():
        column = public.get(name)
        if column is not None and column.categories and is_text(values):
            result[name] = _as_listed(values, column.categories)
            continue
        # Beside decimal commas, the point of 1.250 may be a separator of thousands.
        unclear = commas and _are_written(values, _POINTS, ".")
        result[name] = values if unclear else _numbers_or_texts(as_booleans(values))
    return result


def cells(values: Any) -> Any:
    """Return a column with None where a value is missing, and texts without space around them, as
    `normal` has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_floating(values.type):
        odd = pc.is_nan(values)
        return pc.if_else(odd, None, values) if pc.any(odd).as_py() else values
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values
    trimmed = pc.utf8_trim_whitespace(pc.utf8_normalize(values.cast(pa.string()), form="NFC"))
    if pc.any(pc.match_substring_regex(trimmed, HIDDEN.pattern)).as_py():
        texts = [None if one is None else normal(one) for one in trimmed.to_pylist()]
        trimmed = pa.array(texts, pa.string())
    return pc.if_else(pc.is_in(trimmed, pa.array(NO_VALUE)), None, trimmed)


def is_plain(values: Any) -> bool:
    """Return whether a column has values that can be written as texts."""
    import pyarrow as pa

    kind = values.type
    return not (
        pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )


def is_numeric(values: Any) -> bool:
    """Return whether a column is one of numbers."""
    import pyarrow as pa

    kind = values.type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_text(values: Any) -> bool:
    """Return whether a column is one of texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(values.type))


def _as_listed(values: Any, categories: tuple[str, ...]) -> Any:
    """Return texts as the categories of a schema; one that is not listed, as 1.0, in plain form.

    A cell that is listed stays as it is, and each other one is read by itself: "01" and "1" are one
    number, but may be two categories, and how one record is spelt must not move others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    listed = pa.array(categories, pa.string())
    odd = pc.and_(values.is_valid(), pc.invert(pc.is_in(values, listed)))
    if not pc.any(odd).as_py():
        return values
    unknown = values.filter(odd).unique().to_pylist()
    plain = pa.array([_plain(text) for text in unknown], pa.string())
    found = pc.take(plain, pc.index_in(values, pa.array(unknown, pa.string())))
    return pc.if_else(odd, found, values)


def _plain(text: str) -> str:
    """Return a number as `as_texts` writes it, any other text as it is."""
    import pyarrow as pa

    try:
        number = pa.array([text]).cast(pa.float64())
    except pa.ArrowInvalid:
        return text
    long = text.lstrip("+-").isdigit() and abs(number[0].as_py()) > EXACT  # an identifier
    return text if long else str(as_texts(number)[0].as_py())


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


def has_decimal_commas(values: Any) -> bool:
    """Return whether a column has numbers with commas and no other texts."""
    return _are_written(values, _DECIMAL_COMMA, ",")


def has_unclear_points(values: Any) -> bool:
    """Return whether each point of a column may be one of thousands, if not a decimal one."""
    return _are_written(values, _POINTS, ".")


def thousands_or_decimals(values: Any) -> str:
    """Return what is unclear in a column in which whole numbers such as 594 stand beside 1.431 and
    no others: the point may be one of thousands. Empty where nothing is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return ""
    for known in (values[:1000].drop_null(), values.drop_null()):  # most columns end at the first
        if not pc.all(pc.match_substring_regex(known, _WHOLE_OR_POINT)).as_py():
            return ""
    points = pc.match_substring(known, ".")
    whole = known.filter(pc.and_(pc.invert(points), pc.match_substring_regex(known, "[1-9]")))
    if not (len(whole) and pc.any(points).as_py()):
        return ""
    one = known.filter(points)[0].as_py()
    return (
        f"{one!r} beside {whole[0].as_py()!r} may have a separator of thousands (write "
        f"{one.replace('.', '')}, or {one}0 if the point is a decimal one)"
    )


def is_boolean(values: Any) -> bool:
    """Return whether a column is of booleans: by its type, or as texts true and false in any
    case, 0 and 1 beside them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return bool(pa.types.is_boolean(values.type))
    lower = pc.utf8_lower(values.drop_null())
    words = pc.any(pc.is_in(lower, pa.array([_TRUE[0], _FALSE[0]]))).as_py()
    return bool(words and pc.all(pc.is_in(lower, pa.array([*_TRUE, *_FALSE]))).as_py())


def as_booleans(values: Any, *, known: bool = False) -> Any:
    """Return a column of booleans as the texts ``false`` and ``true``, any other as it is.

    ``known`` says that 0 and 1 are booleans as well, as those of another file are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (known or is_boolean(values)):
        return values
    lower = pc.utf8_lower(as_texts(values))
    words = pc.if_else(pc.is_in(lower, pa.array(_TRUE)), _TRUE[0], _FALSE[0])
    return pc.if_else(lower.is_valid(), words, None)


def spelled(texts: Any, categories: tuple[str, ...]) -> Any:
    """Return texts with true, false, 0 and 1, in any case, as two categories of that meaning spell
    them; texts that are categories stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {text.lower() in _TRUE: text for text in categories}
    if len(known) < len(categories) or not {t.lower() for t in categories} <= {*_TRUE, *_FALSE}:
        return texts
    lower = pc.utf8_lower(texts)
    odd = pc.and_(texts.is_valid(), pc.invert(pc.is_in(texts, pa.array(categories))))
    for meaning, ways in ((True, _TRUE), (False, _FALSE)):
        if meaning in known:
            same = pc.and_(odd, pc.is_in(lower, pa.array(ways)))
            texts = pc.if_else(same, known[meaning], texts)
    return texts


def censored_as(values: Any, how: str, *, mixed: bool = True) -> Any:
    """Return a column of numbers in which bounds such as <5 and >500 stand, as float64.

    Parameters
    ----------
    values : pyarrow column
    how : "refuse", "bound" or "half"
        A bound becomes the number that is written, with ``half`` half of it where it is below a
        positive one.
    mixed : bool
        Whether plain numbers must stand beside the bounds; a column of bounds alone is one of
        categories.

    Raises
    ------
    UnfitError
        With ``refuse``, where there are such bounds among numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return values
    known = values.drop_null()
    bounds = pc.match_substring_regex(known, _CENSORED)
    count, plain = pc.sum(bounds).as_py() or 0, known.filter(pc.invert(bounds))
    if not count or (mixed and not len(plain)):
        return values
    if not pc.all(pc.match_substring_regex(plain, _WRITTEN), min_count=0).as_py():
        return values
    if how == "refuse":
        raise UnfitError(
            f"{'1 bound' if count == 1 else f'{count} bounds'} such as "
            f"{known.filter(bounds)[0].as_py()!r} among numbers (censored = bound takes the number "
            "that is written, half takes half of it; a schema that lists the texts makes them "
            "categories)",
            keys={"censored": "bound"},
        )
    below = pc.fill_null(pc.match_substring_regex(values, "^[<≤]"), False)
    numbers = with_point(_numbers_or_texts(without_bounds(values))).cast(pa.float64())
    if how == "half":
        halved = pc.and_(below, pc.fill_null(pc.greater(numbers, 0.0), False))
        numbers = pc.if_else(halved, pc.multiply(numbers, 0.5), numbers)
    return numbers


def without_bounds(values: Any) -> Any:
    """Return a column of texts in which each bound is its number, any other column, and one
    without bounds, as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        return values
    bounds = pc.match_substring_regex(values, _CENSORED)
    if not pc.any(bounds).as_py():
        return values
    return pc.if_else(bounds, pc.replace_substring_regex(values, "^" + _BOUND_SIGN, ""), values)


def not_finite(values: Any) -> Any:
    """Return which numbers of a column are infinite, or too large to compute with; none of
    texts."""
    import pyarrow as pa

    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), dtype=bool)
    numbers = as_numbers(values)
    return ~np.isnan(numbers) & ~(np.abs(numbers) <= LARGEST)


def finite_as(values: Any, how: str) -> Any:
    """Return a column without infinite numbers: they are missing where ``how`` is "missing".

    Raises
    ------
    UnfitError
        Where they are refused: names the rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    odd = not_finite(values)
    if not odd.any():
        return values
    if how == "missing":
        return pc.if_else(pa.array(odd), None, values)
    rows = np.flatnonzero(odd)
    count = "1 number" if len(rows) == 1 else f"{len(rows)} numbers"
    raise UnfitError(
        f"{count}, such as {values[int(rows[0])].as_py()}, beyond {LARGEST:g} (expected finite "
        "numbers: infinite = drop leaves these rows out, missing takes them for missing values)",
        rows=map(int, rows),
        keys={"infinite": "drop"},
    )


def is_number(text: str) -> bool:
    """Return whether a text is written as a number, with a decimal point or comma."""
    return re.fullmatch(_WRITTEN, text) is not None


def first_of(texts: Any, pattern: str) -> str:
    """Return the first text of a column that matches, an empty one where none does."""
    import pyarrow.compute as pc

    found = texts.filter(pc.match_substring_regex(texts, pattern))
    return str(found[0].as_py()) if len(found) else ""


def is_bound(text: str) -> bool:
    """Return whether a text is written as a bound, such as <5 or ≥ 1.5."""
    return re.fullmatch(_CENSORED, text) is not None


def parted_bound(text: str) -> tuple[str, str]:
    """Return the sign of a bound, one of < > ≤ ≥, and the number as it is written."""
    return text[0], re.sub(_BOUND_SIGN, "", text, count=1)


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
    if not pc.all(pc.match_substring_regex(known, SEPARATED)).as_py():
        return values
    if not pc.any(pc.match_substring_regex(known, f"[.{_APART}]")).as_py():
        return values  # whole numbers, which stay texts
    decimal = pc.all(pc.match_substring_regex(known, _DECIMAL_COMMA)).as_py()
    separated = known.filter(pc.match_substring(known, ","))
    if decimal and (comma or not pc.all(pc.match_substring_regex(separated, THOUSANDS)).as_py()):
        return pc.replace_substring(values, ",", ".").cast(pa.float64())
    three = rf"[.{_APART}]\d{{3}}([.{_APART}]|$)"  # rather than the decimal comma of 970,0
    such = (known.filter(pc.match_substring_regex(known, one)) for one in (three, f"[{_APART}]"))
    one = next(texts for texts in such if len(texts))[0].as_py()
    raise UnfitError(
        f"{one!r} may have separators of thousands (write numbers without them, and with a decimal "
        "point)"
    )


def as_texts(values: Any) -> Any:
    """Return a column as texts, each whole number without a point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.string())
    if not pa.types.is_floating(values.type):
        return texts
    whole = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**63))
    numbers = pc.if_else(whole, values, None).cast(pa.int64())
    return pc.if_else(pc.fill_null(whole, False), numbers.cast(pa.string()), texts)


def as_numbers(values: Any) -> FloatArray:
    """Return a column of numbers in float64, NaN where a value is missing."""
    import pyarrow as pa

    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=float)


def encoded_column(values: Any, column: SourceColumn) -> FloatArray:
    """Return the features of a column, of shape (rows, width), NaN where a value is missing."""
    encoded: FloatArray
    if column.categories:
        codes, count = codes_of(values, column), len(column.categories)
        encoded = np.zeros((len(codes), count + 1))
        encoded[np.arange(len(codes)), codes] = 1.0
        encoded = encoded[:, 1 : count + column.zeros]
        encoded[codes == count] = np.nan
    else:
        encoded = as_numbers(values)[:, None]
    if not column.gap:
        return encoded
    return np.hstack([encoded, np.asarray(values.is_null())[:, None]])


def codes_of(values: Any, column: SourceColumn) -> LabelArray:
    """Return the numbers of a column's categories; a missing value has the next after them."""
    found = np.empty(len(values), np.int64)
    for at in range(0, len(values), _AT_ONCE):
        found[at : at + _AT_ONCE] = _codes_of_some(values.slice(at, _AT_ONCE), column, at)
    return found


def _codes_of_some(values: Any, column: SourceColumn, first: int) -> LabelArray:
    """Return the codes of some rows, of which the first has this place."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = spelled(as_texts(values), column.categories)
    codes = pc.index_in(texts, pa.array(column.categories))
    row = pc.index(pc.and_(codes.is_null(), texts.is_valid()), True).as_py()
    if row >= 0:
        raise UnfitError(
            f"{texts[row].as_py()!r} is not a category of the schema", drop=False, row=first + row
        )
    return np.asarray(codes.fill_null(len(column.categories)).to_numpy(), dtype=np.int64)
