"""Survival curves of a run by the names that users of lifelines know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privet.core.format import ticks_until

from .labelled import frame, series
from .text_table import aligned, short, test_text


@dataclass(frozen=True)
class CurveResult:
    """One curve of a run, with the attributes of lifelines' ``KaplanMeierFitter``.

    Attributes
    ----------
    name : str
        The group; "" of all rows.
    columns : mapping
        The curve's entries of the table.
    """

    name: str
    columns: Mapping[str, Any]

    @property
    def timeline(self) -> list[float]:
        """0 and the times at which somebody leaves."""
        times = list(self.columns["times"])
        return times if times and times[0] == 0.0 else [0.0, *times]

    @property
    def survival_function_(self) -> Any:
        """S after each time, by time."""
        heights = self.survival_at(self.timeline)
        return series(heights, self.timeline, self.name or "KM_estimate")

    @property
    def median_survival_time_(self) -> float:
        """The first time with S at most 1/2; infinity where it is not reached."""
        return _or_infinite(self.columns["median"])

    @property
    def median_interval_(self) -> tuple[float, float]:
        """Its interval of 95 per cent."""
        low, high = self.columns["median_ci95"]
        return _or_infinite(low), _or_infinite(high)

    @property
    def confidence_interval_(self) -> Any:
        """Intervals of 95 per cent, symmetric on the scale log(-log S); NaN where S is 0.

        Those of a noised curve are symmetric in S.
        """
        return self._interval("ci95")

    @property
    def greenwood_interval_(self) -> Any:
        """Intervals of 95 per cent, symmetric in S."""
        return self._interval("ci95_greenwood")

    @property
    def event_table(self) -> Any:
        """Who leaves at each time, and how many are at risk just before."""
        columns = self.columns
        return frame(
            {
                "observed": columns["died"],
                "censored": columns["censored"],
                "at_risk": columns["at_risk"],
            },
            columns["times"],
        )

    @property
    def restricted_mean_(self) -> tuple[float, float]:
        """The mean of times up to the table's restriction, and its standard error."""
        return self.columns["restricted_mean"], self.columns["restricted_mean_se"]

    def survival_at(self, times: Sequence[float]) -> list[float]:
        """Return S at times."""
        places = np.searchsorted(self.columns["times"], times, side="right")
        return [float(height) for height in np.append(1.0, self.columns["survival"])[places]]

    def interval_at(self, times: Sequence[float]) -> list[tuple[float, float]]:
        """Return the intervals of 95 per cent of S at times, those of `confidence_interval_`."""
        ends = np.vstack([[1.0, 1.0], np.array(self.columns["ci95"], float).reshape(-1, 2)])
        places = np.searchsorted(self.columns["times"], times, side="right")
        return [(float(low), float(high)) for low, high in ends[places]]

    def at_risk_at(self, times: Sequence[float]) -> list[int]:
        """Return the numbers at risk just before times, but for entries since the last one left.

        They are those of the next time at which somebody leaves.
        """
        places = np.searchsorted(self.columns["times"], times, side="left")
        counts = np.append(self.columns["at_risk"], 0)[places]
        return [round(count) for count in counts.tolist()]

    def _interval(self, kind: str) -> Any:
        ends = np.array(self.columns[kind], float).reshape(-1, 2)
        places = np.searchsorted(self.columns["times"], self.timeline, side="right")
        low, high = np.vstack([[1.0, 1.0], ends])[places].T
        columns = {"lower 95%": low.tolist(), "upper 95%": high.tolist()}
        return frame(columns, self.timeline)


class KaplanMeierResult(Mapping[str, CurveResult]):
    """The curves of a run by group; that of all rows is "".

    Parameters
    ----------
    table : mapping
        As ``table.json`` holds it; see `curves_table`.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        self._curves = {
            name: CurveResult(name, {key: table[key][place] for key in _BY_CURVE if key in table})
            for place, name in enumerate(table["groups"])
        }

    def __getitem__(self, name: str) -> CurveResult:
        return self._curves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    @property
    def shown(self) -> list[CurveResult]:
        """The curves of the groups, or that of all rows where there are none."""
        return [one for name, one in self.items() if name] or [self[""]]

    @property
    def survival_function_(self) -> Any:
        """S by time and group."""
        times = sorted({time for one in self.shown for time in one.timeline})
        columns = {one.name or "KM_estimate": one.survival_at(times) for one in self.shown}
        return frame(columns, times)

    @property
    def median_survival_time_(self) -> Any:
        """The median of all rows, or medians by group."""
        if len(self) == 1:
            return self[""].median_survival_time_
        return {one.name: one.median_survival_time_ for one in self.shown}

    def text(self, times: Sequence[float] = ()) -> str:
        """Return medians, restricted means, tests and numbers at risk as text of one width.

        With ``times`` survival at these as well, and its intervals of 95 per cent.
        """
        table = self.table
        header, rows = self.medians()
        lines = [f"Kaplan-Meier curves of {table['time']} to {table['event']}, all sites", ""]
        lines += [*aligned([header, *rows]), "", *self._tests()]
        if len(times):
            lines += ["survival and its interval of 95 %", *self._survival(times)]
        return "\n".join([*lines, "numbers at risk", *self._at_risk(), *table["notes"]])

    def medians(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and a row a curve: rows, events, median and restricted mean."""
        until = short(self.table["restriction"])
        header = [
            self.table["group"],
            "rows",
            "events",
            "median",
            "95%",
            f"mean to {until}",
            "std err",
        ]
        rows = [
            [
                one.name or "all",
                f"{one.columns['group_n']:.0f}",
                f"{one.columns['group_events']:.0f}",
                short(one.median_survival_time_),
                " to ".join(short(end) for end in one.median_interval_),
                *(short(value) for value in one.restricted_mean_),
            ]
            for one in self.shown
        ]
        return header, rows

    def print_summary(self) -> None:
        """Print `text`."""
        print(self.text())

    def __str__(self) -> str:
        return self.text()

    def _tests(self) -> list[str]:
        lines = []
        for key, words in (("logrank", "log-rank"), ("logrank_by_site", "log-rank within sites")):
            test = self.table[key]
            if test["df"]:
                lines.append(test_text(words, test["chi2"], test["df"], test["p"]))
        return lines

    def _survival(self, times: Sequence[float]) -> list[str]:
        """Return a line a curve; a dash after the last time at which somebody left it."""
        rows = [["", *(f"{time:.6g}" for time in times)]]
        for one in self.shown:
            last = max(one.columns["times"], default=0.0)
            pairs = zip(times, one.survival_at(times), one.interval_at(times), strict=True)
            rows.append(
                [
                    one.name or "all",
                    *(
                        f"{height:.3f} ({low:.3f} to {high:.3f})" if time <= last else "-"
                        for time, height, (low, high) in pairs
                    ),
                ]
            )
        return aligned(rows)

    def _at_risk(self) -> list[str]:
        end = max((one.timeline[-1] for one in self.shown), default=0.0)
        times = ticks_until(end)
        rows = [["", *(f"{time:.6g}" for time in times)]]
        for one in self.shown:
            rows.append([one.name or "all", *(str(count) for count in one.at_risk_at(times))])
        return aligned(rows)


_BY_CURVE = (
    "group_n",
    "group_events",
    "times",
    "at_risk",
    "died",
    "censored",
    "survival",
    "se",
    "se_noise",
    "ci95",
    "ci95_greenwood",
    "median",
    "median_ci95",
    "restricted_mean",
    "restricted_mean_se",
)


def _or_infinite(value: float | None) -> float:
    return float("inf") if value is None else float(value)
