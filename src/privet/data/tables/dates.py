"""Dates in the cells of a table, as numbers of days."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Any

from .values import UnfitError

DATES = ("refuse", "day-first", "month-first")
"""What dates become: an error, or numbers of days; 5.1.2020 is in January, or in May."""
OTHER = {"day-first": "month-first", "month-first": "day-first"}
_DATES = 12
"""Different dates of which some are after the twelfth, but for one in 70,000 tables."""
_EPOCH = date(1970, 1, 1).toordinal()
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + "|sept"
_DAY = rf"""
    (?P<year>\d{{4}})[-/.](?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}})
    | (?P<first>\d{{1,2}})[-/.](?P<second>\d{{1,2}})[-/.](?P<last>\d{{4}}|\d{{2}})\.?
    | (?P<d>\d{{1,2}})[-/.\ ]{{1,2}}(?P<name>{_MONTH})\.?[-/.,\ ]{{1,2}}(?P<y>\d{{4}}|\d{{2}})
"""
_TIME = r"""
    (?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<seconds>\d{2}(?:[.,]\d+)?))?
    (?:\ ?(?:(?P<half>[AP])M|Z|(?P<zone>[-+]\d{2}:?\d{2})))?
"""
_PATTERN = re.compile(
    rf"(?=.*[-/.:\ ]) (?: (?: {_DAY} ) (?: $ | (?:T|\ ) (?=\d) ) )? (?: {_TIME} )?",
    re.VERBOSE | re.I,
)


def is_date(text: str) -> bool:
    """Return whether a text is written as a date, a time, or both."""
    return _PATTERN.fullmatch(text) is not None


def are_dates(values: Any) -> bool:
    """Return whether a pyarrow column has dates, with or without times, and nothing else."""
    import pyarrow as pa

    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        return True
    if not pa.types.is_string(values.type):
        return False
    known = values.drop_null().unique().to_pylist()
    return bool(known) and all(map(is_date, known))


def may_be_exchanged(texts: Iterable[str], order: str) -> str:
    """Return one of several dates that may be read with day and month exchanged, empty for none.

    They may where `_DATES` different ones have two numbers before the year, none of which is above
    12: of days that are spread over a month, two in five are. Dates of one day of the month, as
    those of monthly records, are rather in order.
    """
    found = {
        (int(part["first"]), int(part["second"]), part["last"]): text
        for text in texts
        if (part := _PATTERN.fullmatch(text)) and part["last"]
    }
    if len(found) < _DATES or any(max(first, second) > 12 for first, second, _ in found):
        return ""
    if len({one[order != "day-first"] for one in found}) == 1:
        return ""
    return next((text for one, text in found.items() if one[0] != one[1]), "")


def has_dates(values: Any) -> bool:
    """Return whether a pyarrow column has a date, or a time, among whatever else."""
    import pyarrow as pa

    if not pa.types.is_string(values.type):
        return are_dates(values)
    return any(map(is_date, values.drop_null().unique().to_pylist()))


def as_days(values: Any, order: str) -> Any:
    """Return a column of dates as float64 numbers of days since 1970-01-01, None where one is
    missing; a time is a part of a day, in UTC where it names a zone.

    Each depends on its own text and on ``order`` alone, one of `DATES` that is not refuse: a year
    of two digits is one of 1969 to 2068, and a date that starts with its year, or names its month,
    is clear.

    Raises
    ------
    UnfitError
        For a text that is no such date: names the first row with one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        moments = values.cast(pa.timestamp("us")).cast(pa.int64())
        return pc.divide(moments.cast(pa.float64()), 86_400e6)
    days: dict[str | None, float | None] = {None: None}
    for row, text in enumerate(values.to_pylist()):
        if text not in days:
            try:
                days[text] = day_of(text, order)
            except ValueError:
                other = OTHER[order]
                way = f", but one with {other}" if _is_day(text, other) else ""
                raise UnfitError(
                    f"{text!r} is no date with dates = {order}{way}", row=row
                ) from None
    numbers = [days[text] for text in values.to_pylist()]
    return pa.chunked_array([pa.array(numbers, pa.float64())])


def _is_day(text: str, order: str) -> bool:
    try:
        day_of(text, order)
    except ValueError:
        return False
    return True


def day_of(text: str, order: str) -> float:
    """Return the days since 1970-01-01 of one date (raises ``ValueError``); see `as_days`."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(text)
    part = found.groupdict()
    days = 0.0
    if part["year"]:
        days = _day(part["year"], part["month"], part["day"])
    elif part["last"]:
        first, second = part["first"], part["second"]
        day, month = (first, second) if order == "day-first" else (second, first)
        days = _day(part["last"], month, day)
    elif part["name"]:
        month = next(n for n, one in enumerate(_MONTHS, 1) if one[:3] == part["name"][:3].lower())
        days = _day(part["y"], month, part["d"])
    if part["hour"]:
        hours = int(part["hour"])
        if part["half"]:
            hours = hours % 12 + 12 * (part["half"].upper() == "P")
        minutes, seconds = int(part["minute"]), float((part["seconds"] or "0").replace(",", "."))
        if hours > 24 or minutes > 59 or seconds > 60:
            raise ValueError(text)
        if part["zone"]:
            sign = -1 if part["zone"][0] == "-" else 1
            minutes -= sign * (60 * int(part["zone"][1:3]) + int(part["zone"][-2:]))
        days += (hours + minutes / 60 + seconds / 3600) / 24
    return days


def _day(year: str, month: str | int, day: str) -> int:
    full = int(year)
    if len(year) == 2:
        full += 2000 if full < 69 else 1900
    return date(full, int(month), int(day)).toordinal() - _EPOCH
