"""The run-config keys of times to an event, which several analyses have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from privet.analyses.durations import SECONDS, dates, durations
from privet.analyses.follow_up import LATE, FollowUpColumns, require
from privet.analyses.frame import AnalysisError, FloatArray, Frame
from privet.core.key import setting
from privet.data.analysed import as_table, named, unstated
from privet.data.frames import SiteTable

from .half import AnalysisAgent

DURATION, OBSERVED = "duration", "event_observed"
"""Names of the columns that two dates, and an end of the study, make."""
_NEITHER = 2.0
"""The code of an event that is neither 0 nor 1: its row is left out, as of a column of times."""


@dataclass(frozen=True)
class SurvivalTimes(AnalysisAgent):
    """The columns of times to an event."""

    topic: ClassVar[str] = "Analyses"

    time_column: str = setting(
        "",
        "column of the times until the event, or until censoring; empty where start-column and "
        "end-column are dates",
    )
    event_column: str = setting(
        "", "column that says whether the event was seen, 1 and 0 or two categories; not empty"
    )
    entry_column: str = setting(
        "", "column of the times from which a row is observed (left truncation); empty for none"
    )
    event_level: str = setting(
        "", "category of event-column that is the event; empty takes the second of two"
    )
    strata_column: str = setting("", "column of strata within each site; empty for none")
    start_column: str = setting(
        "", "column of dates from which the time counts, in place of time-column; empty: none"
    )
    end_column: str = setting("", "column of dates until which it counts; empty: none")
    duration_unit: str = setting(
        "days", "unit of the time between two dates", choices=tuple(SECONDS)
    )
    until: str = setting(
        "",
        "date, such as 2024-02-29, after which rows are censored: the study's end; empty: none",
    )

    @property
    def times(self) -> tuple[str, str]:
        """The names of the columns of times and events."""
        if not self.start_column:
            return self.time_column, self.event_column
        return DURATION, OBSERVED

    def prepared(self, table: Any, own: bool = False) -> SiteTable:
        found = as_table(table)
        if not (self.start_column or self.end_column or self.until):
            return found
        with named(found.frame):
            name = self.event_column
            if own and name in found.frame.factors and name not in found.stated:
                raise unstated(name)  # how many texts it has would be in the answer
            made = found._replace(frame=self._with_durations(found.frame))
        sources = {DURATION: (self.start_column, self.end_column), OBSERVED: (self.event_column,)}
        stated = {name for name, of in sources.items() if found.stated.issuperset(of)}
        return made._replace(stated=found.stated | stated)

    def _with_durations(self, frame: Frame) -> Frame:
        if not (self.start_column and self.end_column) or self.time_column:
            raise AnalysisError(
                "start-column, end-column: give both, and no time-column, for times between dates"
            )
        start, end = (
            _moments(frame, name, key)
            for name, key in ((self.start_column, "start-column"), (self.end_column, "end-column"))
        )
        require(frame, self.event_column, "event-column")
        there = _is_there(frame, self.event_column)
        follow = FollowUpColumns(DURATION, self.event_column, happened=self.event_level)
        levels = {}
        if self.event_column in frame.factors:
            levels = {self.event_column: frame.factors[self.event_column].levels}
        code = np.full(frame.rows, -1, np.int8)
        code[there] = follow.events(frame.taken(there), levels)
        event = code == 1
        names = (self.start_column, self.end_column)
        times, seen = durations(
            start, end, event, unit=self.duration_unit, until=self.until, names=names
        )
        observed = np.where(code < 0, _NEITHER, seen.astype(float))
        late = end < start
        if self.until:
            dated = ~np.isnat(end) | ~event
            late |= (start > dates([self.until], "until")[0]) & dated
        numbers = {DURATION: times, OBSERVED: np.where(there, observed, np.nan)}
        numbers[LATE] = late.astype(float)
        return replace(frame, numbers={**frame.numbers, **numbers})


def _moments(frame: Frame, name: str, key: str) -> Any:
    """Return a column of days since 1970 as datetime64 (n,), NaT where one is missing."""
    require(frame, name, key)
    if name not in frame.numbers:
        raise AnalysisError(
            f"{key}: {name!r} holds texts: set dates = day-first or month-first; either reads "
            "2024-02-29"
        )
    days: FloatArray = frame.numbers[name]
    moments = np.full(frame.rows, np.datetime64("NaT", "us"), "datetime64[us]")
    known = np.isfinite(days)
    moments[known] = np.round(days[known] * 86_400e6).astype(np.int64).astype("datetime64[us]")
    return moments


def _is_there(frame: Frame, name: str) -> Any:
    if name in frame.factors:
        return frame.factors[name].codes >= 0
    return np.isfinite(frame.numbers[name])
