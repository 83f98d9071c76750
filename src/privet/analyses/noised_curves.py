"""Curves of survival by one noised sum: what each record adds, and what is read from the sum.

Time is a public grid, the multiples 1 ... K of a unit up to a public horizon. A record adds 1 to
one cell: that of its group, of the multiple at which it leaves and of whether the event occurred
then, or that of records that cannot be used. With times of entry it adds 1 to the cell of its entry
as well. Divided by the root of 2 then, its vector has l2 norm 1 and no entry below 0, which is what
`privet.kernel.programs.statistics` adds with noise. Nothing is decided by an exact count.

With independent noise of standard deviation s on every count, and d events, n at risk at a time,

    log S(t_k) = sum_{j <= k} log(1 - d_j / n_j),   n_j = those who leave at j or later - who come

is a smooth function of the counts, so its noise has a variance by the delta method: s^2 times the
sum of squares of the slopes

    of the events at i    B_min(i,k) - a_i [i <= k],   a_i = 1 / (n_i - d_i)
    of other counts at i  +- B_min(i,k),               B_i = sum_{j <= i} d_j / (n_j (n_j - d_j))

added to Greenwood's variance of the records. The curve is given while n is above twice its noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .follow_up import FollowUp, FollowUpColumns
from .frame import AnalysisError, FloatArray, Frame, Levels
from .grid import GridTimes
from .kaplan_meier_table import numbers_at_risk
from .survival_curve import NORMAL_QUANTILE, first_below

MOST_COUNTS = 2**13
"""Of a noised sum: each record's part is as long."""
MOST_TIMES = 2**11
"""Of a noised grid: with more, noise is all there is at the end."""

_FLOOR = 2.0


@dataclass(frozen=True)
class NoisedCurves:
    """Which entry of the sum is what: by group, events and censored rows at 1 ... K units.

    Attributes
    ----------
    times : FollowUpColumns
    levels : mapping
        The public categories of the columns of groups and of events.
    group_column : str
    time_unit : float
    last : int
        K.
    restriction : float
        Until when mean survival is taken; 0 is the end of the shortest curve.
    """

    times: FollowUpColumns
    levels: Levels
    group_column: str
    time_unit: float
    last: int
    restriction: float

    def __post_init__(self) -> None:
        if not 0 < self.last <= MOST_TIMES:
            raise AnalysisError(
                f"horizon, time-unit: noised curves are on a public grid of 1 to {MOST_TIMES} "
                f"times, horizon / time-unit; these give {self.last}"
            )
        if self.width > MOST_COUNTS:
            raise AnalysisError(
                f"horizon, time-unit, group-column: noised curves have {MOST_COUNTS} counts at "
                f"most, over times, groups and kinds; these give {self.width}"
            )
        if known := self.levels.get(self.times.event, ()):
            self.times.place_of_event(known)

    @property
    def groups(self) -> tuple[str, ...]:
        """The public groups; one without a name where there are none."""
        return tuple(self.levels[self.group_column]) if self.group_column else ("",)

    @property
    def _kinds(self) -> int:
        return 3 if self.times.entry else 2

    @property
    def width(self) -> int:
        """k, the length of the sum: events, censored rows, entries; and records left out."""
        return self._kinds * len(self.groups) * self.last + 1

    @property
    def share(self) -> float:
        """1 over the norm of what a record adds before it is divided."""
        return math.sqrt(0.5) if self.times.entry else 1.0

    def contributions(self, frame: Frame) -> Iterator[FloatArray]:
        """Yield what each record adds, in blocks (m, k); each row is of that record alone."""
        for part in frame.blocks(self.width):
            yield self._block(part)

    def _block(self, frame: Frame) -> FloatArray:
        added = np.zeros((frame.rows, self.width))
        kind, group, times = self._placed(frame)
        used = kind >= 0
        rows = np.flatnonzero(used)
        size = len(self.groups) * self.last
        places = group[used] * self.last + times.cell[used] - 1
        added[rows, kind[used] * size + places] = 1.0
        added[~used, -1] = 1.0
        if self.times.entry:
            # Who enters in the first unit is at risk from its end on, as all are without entries.
            came = np.maximum(times.entry[used], 0)
            added[rows, 2 * size + group[used] * self.last + came] = 1.0
        return added * self.share

    def _placed(self, frame: Frame) -> tuple[Any, Any, GridTimes]:
        """Return 0 for events, 1 for censored rows, -1 for others; groups; places on the grid."""
        ends = _numbers(frame, self.times.time, "time-column")
        event = self._events(frame)
        entry = np.full(frame.rows, -np.inf)
        usable = (ends >= 0.0) & (event >= 0)
        if self.times.entry:
            entry = _numbers(frame, self.times.entry, "entry-column")
            usable &= (entry >= 0.0) & (entry < ends)
        group = np.zeros(frame.rows, np.intp)
        if self.group_column:
            group = frame.factor(self.group_column).among(self.groups).astype(np.intp)
            usable &= group >= 0
        beyond = 2.0 * self.last * self.time_unit
        follow = FollowUp(
            np.where(usable, np.clip(ends, 0.0, beyond), 0.0),
            event == 1,
            np.where(usable & (entry >= 0.0), np.clip(entry, 0.0, beyond), -np.inf),
        )
        times = GridTimes.of(follow, self.time_unit, self.last)
        cell = np.maximum(times.cell, 1)  # nobody is at risk at 0
        times = GridTimes(cell, times.event, times.entry, 0)
        usable &= times.entry < cell
        return np.where(usable, np.where(times.event, 0, 1), -1), group, times

    def _events(self, frame: Frame) -> FloatArray:
        """Return 1 for events, 0 for censored rows, -1 for what is neither."""
        name = self.times.event
        known = self.levels.get(name, ())
        if known:
            codes = frame.factor(name).among(known)
            happened = codes == self.times.place_of_event(known)
            return np.where(codes < 0, -1.0, happened.astype(float))
        values = _numbers(frame, name, "event-column")
        return np.where(np.isin(values, (0.0, 1.0)), values, -1.0)

    def table(self, total: FloatArray, deviation: float) -> dict[str, Any]:
        """Return curves of the noised sum (k,) as `curves_table` does; see the module.

        ``deviation`` is the noise's standard deviation on each entry of the sum; counts are not
        rounded, and ``count_error`` is their standard deviation. ``se_noise`` is the noise's part
        of ``se``, which both intervals have, symmetric in S. Log-rank tests are not given.
        """
        counts = (total[:-1] / self.share).reshape(self._kinds, len(self.groups), self.last)
        noise = deviation / self.share
        events, censored = counts[:2]
        entries = counts[2] if self.times.entry else np.zeros_like(events)
        of_all = noise * math.sqrt(len(self.groups))
        whole = (events.sum(axis=0), censored.sum(axis=0), entries.sum(axis=0))
        every = [self._curve(*whole, of_all)]
        if self.group_column:
            every += [
                self._curve(events[at], censored[at], entries[at], noise)
                for at in range(len(self.groups))
            ]
        ends = [one.time[-1] for one in every if len(one.time)]
        until = self.restriction or float(min(ends, default=0.0))
        none = {"chi2": None, "df": 0, "p": None}
        columns = [one.columns(until) for one in every]
        known = self.levels
        return {
            "format": 1,
            "kind": "kaplan-meier",
            "time": self.times.time,
            "event": self.times.event,
            "event_level": self.times.event_level(known),
            "entry": self.times.entry,
            "group": self.group_column,
            "left_out": {"": float(total[-1] / self.share)},
            "n": float(events.sum() + censored.sum()),
            "events": float(events.sum()),
            "noised": True,
            "count_error": noise,
            "time_unit": self.time_unit,
            "groups": ["", *(self.groups if self.group_column else ())],
            "restriction": until,
            **{key: [one[key] for one in columns] for key in columns[0]},
            "logrank": none,
            "logrank_by_site": none,
            "notes": self._notes(every, noise),
        }

    def _curve(
        self, events: FloatArray, censored: FloatArray, entries: FloatArray, noise: float
    ) -> NoisedCurve:
        came = np.append(entries[1:], 0.0)  # at a multiple, and at risk from the next one on
        at_risk = numbers_at_risk(events, censored, came)
        summands = self._kinds * np.arange(self.last, 0, -1.0)
        known = at_risk > np.maximum(_FLOOR * noise * np.sqrt(summands), 1.0)
        end = int(np.argmin(known)) if not known.all() else self.last
        time = self.time_unit * np.arange(1.0, self.last + 1.0)
        return NoisedCurve(
            *(time[:end], events[:end], censored[:end], at_risk[:end]),
            *(noise, self.last, bool(self.times.entry)),
            *(float(events.sum() + censored.sum()), float(events.sum())),
        )

    def _notes(self, curves: Sequence[NoisedCurve], noise: float) -> list[str]:
        notes = [
            f"each count has noise of standard deviation {noise:.3g}, which the intervals hold; "
            "there are no log-rank tests of noised counts"
        ]
        names = ["", *self.groups] if self.group_column else [""]
        for name, curve in zip(names, curves, strict=True):
            if len(curve.time) < self.last:
                end = f"{curve.time[-1]:g}" if len(curve.time) else "0"
                notes.append(
                    f"{name or 'all'}: the curve ends at {end}: the number at risk later is below "
                    f"{_FLOOR:g} times its noise"
                )
        return notes


@dataclass(frozen=True, eq=False)
class NoisedCurve:
    """A curve of noised counts (k,) at the first k of ``cells`` times.

    ``truncated`` says that entries are counted, ``rows`` and ``deaths`` are of all times.
    """

    time: FloatArray
    events: FloatArray
    censored: FloatArray
    at_risk: FloatArray
    noise: float
    cells: int
    truncated: bool
    rows: float
    deaths: float

    def columns(self, until: float) -> dict[str, Any]:
        """Return the entries of a table; the mean is taken until a time."""
        left = 1.0 - np.minimum(self.events / self.at_risk, 1.0)
        raw = np.asarray(np.cumprod(left), np.float64)
        survival = np.clip(falling(raw), 0.0, 1.0)
        slopes = self._slopes()
        noise = survival * self.noise * np.sqrt(_squares(slopes, self.truncated))
        sampling = survival * np.sqrt(self._greenwood())
        se = np.hypot(noise, sampling)
        low, high = (np.clip(survival + sign * NORMAL_QUANTILE * se, 0.0, 1.0) for sign in (-1, 1))
        ends = np.stack([low, high], axis=1).tolist()
        mean, mean_se = self._restricted_mean(survival, slopes, until)
        return {
            "group_n": self.rows,
            "group_events": self.deaths,
            "times": self.time.tolist(),
            "at_risk": self.at_risk.tolist(),
            "died": self.events.tolist(),
            "censored": self.censored.tolist(),
            "survival": survival.tolist(),
            "se": se.tolist(),
            "se_noise": noise.tolist(),
            "ci95": ends,
            "ci95_greenwood": ends,
            "median": _known(first_below(self.time, survival, 0.5)),
            "median_ci95": [_known(first_below(self.time, one, 0.5)) for one in (low, high)],
            "restricted_mean": mean,
            "restricted_mean_se": mean_se,
        }

    @property
    def _alive(self) -> FloatArray:
        return np.asarray(np.maximum(self.at_risk - self.events, 1.0), np.float64)

    def _terms(self) -> FloatArray:
        terms: FloatArray = np.maximum(self.events, 0.0) / (self.at_risk * self._alive)
        return terms

    def _greenwood(self) -> FloatArray:
        result: FloatArray = np.cumsum(self._terms())
        return result

    def _slopes(self) -> tuple[FloatArray, FloatArray]:
        """Return the slopes of log S (k, cells) with the events, and with the others, at a time."""
        size = len(self.time)
        sums = np.cumsum(self.events / (self.at_risk * self._alive))
        of_others = np.zeros((size, self.cells))
        if size:
            places = np.minimum(np.arange(self.cells)[None, :], np.arange(size)[:, None])
            of_others = sums[places]
        of_events = of_others.copy()
        of_events[:, :size] -= np.tril(np.broadcast_to(1.0 / self._alive, (size, size)))
        return of_events, of_others

    def _restricted_mean(
        self, survival: FloatArray, slopes: tuple[FloatArray, FloatArray], until: float
    ) -> tuple[float, float]:
        """Return int_0^until S(t) dt and its standard error, of records and noise."""
        before = self.time < until
        edges = np.concatenate([[0.0], self.time[before], [until]])
        widths = np.diff(edges)
        areas = survival[before] * widths[1:]
        beyond = np.cumsum(areas[::-1])[::-1]
        sampling = float(beyond**2 @ self._terms()[before])
        moved = _squares([areas @ one[before] for one in slopes], self.truncated)
        variance = sampling + self.noise**2 * float(moved)
        return float(widths[0] + areas.sum()), math.sqrt(variance)


def falling(values: FloatArray) -> FloatArray:
    """Return the nearest numbers in least squares (k,) that do not rise.

    min_{i <= k} max_{j >= k} mean(v_i ... v_j): Barlow and others, Statistical Inference under
    Order Restrictions, 1972, section 1.4.
    """
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first, last = np.arange(count)[:, None], np.arange(count)[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (sums[1:][None, :] - sums[:-1][:, None]) / (last - first + 1)
    means = np.where(last >= first, means, -np.inf)
    highest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]  # over j >= k
    result: FloatArray = np.where(first <= last, highest, np.inf).min(axis=0, initial=np.inf)
    return result


def _squares(slopes: Sequence[FloatArray], truncated: bool) -> FloatArray:
    """Return the sums of squares of the slopes with events, with censored rows and with entries.

    An entry counts from the time after it on, so that none has the slope of the last time.
    """
    of_events, of_others = slopes
    squares = (of_events**2).sum(axis=-1) + (of_others**2).sum(axis=-1)
    if truncated:
        squares = squares + (of_others[..., :-1] ** 2).sum(axis=-1)
    return np.asarray(squares, np.float64)


def _numbers(frame: Frame, name: str, key: str) -> FloatArray:
    if name not in frame.numbers:
        raise AnalysisError(f"{key}: {name!r} holds no numbers")
    return frame.numbers[name]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
