"""Times of two dates: units, leap days, missing ends, administrative censoring, doubts."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.durations import censored_at, dates, durations
from privet.analyses.frame import AnalysisError

DAY = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))


@given(st.lists(st.tuples(DAY, DAY, st.booleans()), min_size=1, max_size=9), DAY)
def test_days_are_those_of_the_calendar_and_end_at_the_date_of_censoring(rows, last):
    rows = [(min(a, b), max(a, b), died) for a, b, died in rows]
    start, end = (dates([str(row[k]) for row in rows], "x") for k in (0, 1))
    died = np.array([row[2] for row in rows])
    time, event = durations(start, end, died)
    assert time.tolist() == [(b - a).days for a, b, _ in rows]
    assert event.tolist() == died.tolist()
    time, event = durations(start, end, died, until=str(last))
    for (a, b, happened), t, e in zip(rows, time, event, strict=True):
        if a > last:
            assert np.isnan(t)
        else:
            assert t == (min(b, last) - a).days
            assert e == (happened and b <= last)


def test_units_are_of_seconds_and_of_a_year_of_365_25_days():
    start = dates(["2023-03-01", "2024-01-01 12:00"], "came")
    end = dates(["2024-03-01", "2024-01-02 00:00"], "left")
    died = np.array([True, False])
    assert durations(start, end, died)[0].tolist() == [366.0, 0.5]
    assert durations(start, end, died, unit="hours")[0].tolist() == [8784.0, 12.0]
    assert durations(start, end, died, unit="years")[0][0] == pytest.approx(366 / 365.25)
    assert durations(start, end, died, unit="months")[0][0] == pytest.approx(366 / 30.4375)


def test_who_has_no_end_and_no_event_is_followed_until_the_date_of_censoring():
    start, end = dates(["2024-01-01"] * 3, "came"), dates([None, "", "2024-01-05"], "left")
    died = np.array([False, True, True])
    assert np.isnan(durations(start, end, died)[0]).tolist() == [True, True, False]
    time, event = durations(start, end, died, until="2024-01-31")
    assert time[[0, 2]].tolist() == [30.0, 4.0]
    assert np.isnan(time[1])  # an event without a date is a missing time, not a censored one
    assert event.tolist() == [False, True, True]


def test_an_event_at_the_horizon_counts_and_one_after_it_does_not():
    time, event = censored_at(np.array([1.0, 2.0, 3.0, np.nan]), np.ones(4, bool), 2.0)
    assert time[:3].tolist() == [1.0, 2.0, 2.0]
    assert np.isnan(time[3])
    assert event.tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    "text", ["29.02.2024", "2023-02-29", "2024", "20240229", "today", "2024-1-1"]
)
def test_other_texts_are_no_dates_and_are_not_repeated(text):
    with pytest.raises(AnalysisError, match="'came' holds texts that are no dates") as caught:
        dates([text], "came")
    assert text == "2024" or text not in str(caught.value)


def test_few_ends_before_their_starts_are_left_out_and_many_named_by_their_columns():
    start = dates(["2024-01-02"] * 8, "came")
    end = dates(["2024-01-01"] * 2 + ["2024-01-04"] * 6, "left")
    time, _ = durations(start, end, np.ones(8, bool))
    assert np.isnan(time[:2]).all()
    assert time[2:].tolist() == [2.0] * 6
    with pytest.raises(AnalysisError, match="'left' is before 'came' in more than a quarter"):
        durations(start[:7], end[:7], np.ones(7, bool), names=("came", "left"))
    with pytest.raises(AnalysisError, match="unit 'fortnights': one of hours, days"):
        durations(start, start, np.array([True]), unit="fortnights")
    with pytest.raises(AnalysisError, match="horizon must be above 0"):
        censored_at(np.ones(1), np.ones(1, bool), 0.0)
