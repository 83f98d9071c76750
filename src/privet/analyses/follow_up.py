"""Times of survival as a site's rows have them: entry, end, and whether it ended in the event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .design import complete_cases
from .frame import AnalysisError, Codes, FloatArray, Frame, Levels

Mask = NDArray[np.bool_]

LATE = "(late)"
"""The column of 0 and 1 that says which rows begin after the end of the study, or after their own
end."""
_SEVERAL = 5
_MOST = 0.25
"""Of a column's rows, at most, that no times or events can be: with more it is another column."""


@dataclass(frozen=True, eq=False)
class FollowUp:
    """The observed times of n rows: row i is at risk in (entry_i, time_i].

    Attributes
    ----------
    time : float64 array (n,)
    event : bool array (n,)
        Whether the event occurred at ``time``; the time is censored otherwise.
    entry : float64 array (n,)
        Left truncation: who enters at e is at risk after e; -inf for all without it.
    """

    time: FloatArray
    event: Mask
    entry: FloatArray

    def taken(self, rows: NDArray[Any]) -> FollowUp:
        """Return the times of some rows: their places, or a mask (n,)."""
        return FollowUp(self.time[rows], self.event[rows], self.entry[rows])


@dataclass(frozen=True)
class FollowUpColumns:
    """The columns that hold the times.

    Attributes
    ----------
    time : str
    event : str
        Numbers 0 (censored) and 1, or a column of two categories.
    entry : str
        Times of entry on the same clock; "" where all are at risk from the beginning.
    happened : str
        The category of ``event`` that is the event; "" is the last of the agreed ones.
    """

    time: str
    event: str
    entry: str = ""
    happened: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order (raises ``AnalysisError`` where time or event has none)."""
        for key, name in (("time-column", self.time), ("event-column", self.event)):
            if not name:
                raise AnalysisError(f"{key} is empty: name the column")
        return tuple(name for name in (self.time, self.event, self.entry) if name)

    def read(self, frame: Frame, levels: Levels) -> Followed:
        """Return the times of complete rows, and which of these can be used.

        A row with a negative or infinite time, with an event that is neither 0 nor 1, or with an
        entry that is not before the end is left out: no error says that there is one, since which
        columns these are, and where the time ends, is a coordinator's choice.

        Raises
        ------
        AnalysisError
            For times that are no numbers, events that are not of two categories, and columns of
            which more than a quarter is no time or event.
        """
        time, no_time = _times(frame, self.time, "time-column")
        entry, no_entry = np.full(len(time), -np.inf), np.zeros(len(time), bool)
        if self.entry:
            entry, no_entry = _times(frame, self.entry, "entry-column")
        events = self.events(frame, levels)
        reasons = [(self.time, no_time), (self.event, events < 0)]
        if self.entry:
            reasons.append((self.entry, no_entry | (entry >= time)))
        used, counts = np.ones(len(time), bool), dict.fromkeys(self.names, 0)
        for name, unusable in reasons:
            counts[name] += int((used & unusable).sum())
            used &= ~unusable
        return Followed(FollowUp(time, events == 1, entry).taken(used), used, counts)

    def events(self, frame: Frame, levels: Levels) -> NDArray[np.int8]:
        """Return which of complete rows (n,) ended in the event: 1, or 0; -1 where a code is
        neither.

        Raises
        ------
        AnalysisError
            If it is not of two categories, or its codes are others (`are_other_codes`).
        """
        name = require(frame, self.event, "event-column")
        if name in frame.factors:
            agreed = levels.get(name, frame.factors[name].levels)
            happened = frame.factors[name].among(agreed) == self.place_of_event(agreed)
            return np.where(happened, 1, 0).astype(np.int8)
        values = frame.numbers[name]
        known = np.isin(values, (0.0, 1.0))
        if are_other_codes(values, known):
            raise AnalysisError(
                f"event-column: {name!r} has codes other than 0 (censored) and 1 (the event): "
                "recode it, such as 1 and 2 into 0 and 1, or use texts"
            )
        return np.where(known, values, -1.0).astype(np.int8)

    def event_level(self, levels: Levels) -> str:
        """Return the category that is the event by the agreed ones; "1" of a column of numbers."""
        agreed = levels.get(self.event, ())
        return "".join(agreed[self.place_of_event(agreed) :][:1]) if agreed else "1"

    def place_of_event(self, agreed: Sequence[str]) -> int:
        """Return which of the two agreed categories is the event (raises ``AnalysisError``)."""
        if set(agreed) <= {"false", "true"} and not self.happened:
            return list(agreed).index("true") if "true" in agreed else len(agreed)
        if len(agreed) != 2:
            raise AnalysisError(
                f"event-column: {self.event!r} has {len(agreed)} categories and needs two: "
                "censored and the event"
            )
        if self.happened and self.happened not in agreed:
            raise AnalysisError(f"event-level: {self.event!r} has no category {self.happened!r}")
        return list(agreed).index(self.happened) if self.happened else 1


UNUSABLE = "missing values, or times or events that cannot be used,"
"""For which values rows are left out of an analysis of times, in a note."""


class Followed(NamedTuple):
    """The times of the rows that can be used.

    Attributes
    ----------
    times : FollowUp
        Of these alone.
    used : bool array (n,)
        Which of the complete rows they are.
    left_out : mapping of str to int
        How many others there are, by the column that they are left out for.
    """

    times: FollowUp
    used: Mask
    left_out: Mapping[str, int]


def add_left_out(left_out: dict[str, int], more: Mapping[str, int]) -> None:
    """Count further rows that are left out, by column, each once."""
    for name, count in more.items():
        left_out[name] += count
        left_out[""] += count


def require(frame: Frame, name: str, key: str) -> str:
    """Return the column's name (raises ``AnalysisError`` where the frame has none of it)."""
    if not name:
        raise AnalysisError(f"{key} is empty: name the column")
    if name not in frame:
        where = f" in {frame.source}" if frame.source else ""
        raise AnalysisError(f"{key}: there is no column {name!r}{where}")
    return name


def own_strata(frame: Frame, name: str, key: str) -> Codes:
    """Return codes (n,) of a site's own strata, which no other site need know.

    All rows are one stratum for the name "".
    """
    if not name:
        return np.zeros(frame.rows, np.int32)
    require(frame, name, key)
    return frame.factor(name).codes


def late_rows(frame: Frame, columns: Sequence[str], time: str) -> tuple[int, ...]:
    """Return how many rows begin after the end of the study or their own, and how many of these
    lack no value.

    Rows that are left out for a date are a coordinator's choice, other than those without a value.
    ``time`` is the column of ``columns`` that they lack; () where times are not of two dates.
    """
    if LATE not in frame.numbers:
        return ()
    late = frame.numbers[LATE] == 1.0
    complete, _ = complete_cases(frame, [name for name in columns if name != time])
    return int(late.sum()), int((late & complete).sum())


def counts_by_column(columns: Sequence[str], counts: FloatArray) -> dict[str, int]:
    """Return counts of rows that are left out, of all ("") and by column."""
    return {name: int(count) for name, count in zip(("", *columns), counts, strict=True)}


def left_out_notes(left_out: Mapping[str, int], values: str = "missing values") -> list[str]:
    """Return a note on the rows that are left out, by column; none where there are none.

    ``values`` says for which: no site tells how many for which of several reasons.
    """
    if not left_out[""]:
        return []
    by_column = [f"{name} {count}" for name, count in left_out.items() if name and count]
    count = left_out[""]
    rows = f"{count} row{'s' * (count != 1)} with {values}"
    return [f"{rows} left out ({', '.join(by_column)})"]


def _times(frame: Frame, name: str, key: str) -> tuple[FloatArray, Mask]:
    """Return a column of times (n,), and which of them are none."""
    require(frame, name, key)
    if name in frame.factors:
        raise AnalysisError(
            f"{key}: {name!r} holds texts and not times: dates become durations before the analysis"
        )
    values = frame.numbers[name]
    if are_many(np.isinf(values)):
        raise AnalysisError(f"{key}: {name!r} has infinite times: censor them at a finite time")
    if are_many(values < 0.0):
        raise AnalysisError(f"{key}: {name!r} has negative times: dates in the wrong order?")
    return values, np.isinf(values) | (values < 0.0)


def are_many(rows: Mask) -> bool:
    """Whether so many rows (n,) of a column cannot be used that it is another one."""
    return bool(rows.sum() > _MOST * len(rows))


def are_other_codes(values: FloatArray, known: Mask) -> bool:
    """Whether a column (n,) of codes has others in place of 0 and 1, which is which are ``known``.

    More than a quarter are none of the two, or at least `_SEVERAL` and more than are 0, as of 1 and
    2. One row alone decides neither: a single code that is none is left out, with no error.
    """
    others = int((~known).sum())
    return are_many(~known) or (others >= _SEVERAL and others > int((values == 0.0).sum()))
