"""Times of follow-up of two dates, and administrative censoring."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .follow_up import Mask
from .frame import AnalysisError, FloatArray

Dates = NDArray[np.datetime64]

SECONDS = {
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 7 * 86400.0,
    "months": 365.25 / 12 * 86400.0,
    "years": 365.25 * 86400.0,
}
"""Units of time; a month is a twelfth of a year of 365.25 days."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?")


def dates(texts: Sequence[str | None], column: str) -> Dates:
    """Return texts such as ``2024-02-29`` or ``2024-02-29 13:45`` as datetime64[us] (n,).

    None and "" are missing (NaT).

    Raises
    ------
    AnalysisError
        For other texts, also dates that no calendar has; the line names the column.
    """
    plain = [text or "NaT" for text in texts]
    fine = all(text == "NaT" or _DATE.fullmatch(text) for text in plain)
    try:
        if not fine:
            raise ValueError
        return np.array(plain, "datetime64[us]")
    except ValueError:
        raise AnalysisError(
            f"column {column!r} holds texts that are no dates: write them as 2024-02-29"
        ) from None


def durations(
    start: Dates,
    end: Dates,
    event: Mask,
    *,
    unit: str = "days",
    until: str = "",
    names: tuple[str, str] = ("start", "end"),
) -> tuple[FloatArray, Mask]:
    """Return times (n,) from start to end, and whether they ended in the event (n,).

    Parameters
    ----------
    start, end : datetime64 arrays (n,)
        NaT where missing: such a time is NaN, but see ``until``. So is one that ends before it
        starts.
    event : bool array (n,)
        Whether the event occurred at the end.
    unit : str
        One of ``SECONDS``.
    until : str
        A public date of administrative censoring, such as the day of the data's export: later ends
        are censored there, so are those without an end and event, and who starts later has no time
        (NaN). "" censors nothing.
    names : tuple of str
        The columns, for errors.

    Raises
    ------
    AnalysisError
        For an unknown unit or date, or where more than a quarter of the ends are before their
        starts; the line names no value.
    """
    if unit not in SECONDS:
        raise AnalysisError(f"unit {unit!r}: one of {', '.join(SECONDS)}")
    event = event.copy()
    end = end.astype("datetime64[us]")
    start = start.astype("datetime64[us]")
    backwards = end < start
    if backwards.sum() > len(start) / 4:
        raise AnalysisError(
            f"column {names[1]!r} is before {names[0]!r} in more than a quarter of the rows: mend "
            "the dates, or give the columns the other way round"
        )
    if until:
        last = dates([until], "until")[0]
        late = (end > last) | (np.isnat(end) & ~event)
        end = np.where(late, last, end)
        event &= ~late
        backwards |= start > last
    start = np.where(backwards, np.datetime64("NaT", "us"), start)
    passed = (end - start) / np.timedelta64(1, "s")
    return np.asarray(passed / SECONDS[unit], np.float64), event


def censored_at(time: FloatArray, event: Mask, horizon: float) -> tuple[FloatArray, Mask]:
    """Return times (n,) and events (n,) with follow-up ended at a public horizon.

    An event at the horizon counts. NaN stays.
    """
    if not horizon > 0.0:
        raise AnalysisError("horizon must be above 0")
    return np.minimum(time, horizon), event & ~(time > horizon)
