"""Dots with intervals in panels side by side: a row for each method, one legend for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.statistics import Estimate

Interval = tuple[float, float, float]
"""Lower end, value, upper end."""
MARKERS = ("o", "D", "s", "^")


@dataclass(frozen=True)
class Panel:
    """What stands in one panel.

    Attributes
    ----------
    series : mapping of str to sequence of (low, value, high) or None
        By its name in the legend, an interval for each row; None where there is none.
    equal : float, optional
        Where a line marks that there is no difference.
    """

    title: str
    x_label: str
    series: Mapping[str, Sequence[Interval | None]]
    equal: float | None = None
    log: bool = False


def interval(found: Estimate) -> Interval:
    """Return an estimate's interval and mean."""
    return found.low, found.mean, found.high


def draw(rows: Sequence[str], panels: Sequence[Panel], figure: Any, *, alike: bool) -> None:
    """Draw the panels on a figure, ``alike`` with one scale for all of them.

    The legend is left out where there is one series.
    """
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    share = 0.6 / len(names)
    each = figure.subplots(1, len(panels), sharex=alike, sharey=True, squeeze=False)[0]
    for axes, panel in zip(each, panels, strict=True):
        if panel.equal is not None:
            axes.axvline(panel.equal, color="grey", lw=1)
        for place, name in enumerate(names):
            shift = share * (place - (len(names) - 1) / 2)
            there = [
                (row + shift, one)
                for row, one in enumerate(panel.series.get(name, ()))
                if one is not None
            ]
            if not there:
                continue
            values = [value for _, (_, value, _) in there]
            sides = [
                [value - low for _, (low, value, _) in there],
                [high - value for _, (_, value, high) in there],
            ]
            axes.errorbar(
                values,
                [row for row, _ in there],
                xerr=sides if any(map(any, sides)) else None,
                fmt=MARKERS[place],
                ms=4,
                lw=1.4,
                color=f"C{place}",
                label=name,
            )
        axes.set(title=panel.title, xlabel=panel.x_label)
        if panel.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x", alpha=0.3)
    each[0].set_yticks(range(len(rows)), rows)
    each[0].set_ylim(len(rows) - 0.5, -0.5)
    if len(names) > 1:
        handles = {
            label: handle
            for axes in each
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
        )
