"""Plots of studies: ours with its interval as a band, the paper's values as marked points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .study import Panel

COLOURS = {
    "fed-plt": "#0072b2",
    "led": "#e69f00",
    "tamuna": "#009e73",
    "fed-lin": "#cc79a7",
    "five-gcs": "#d55e00",
    "fed-pd": "#56b4e9",
    "fed-split": "#8c564b",
    "ObjPM": "#0072b2",
    "ObjP": "#009e73",
    "OutP": "#d55e00",
    "fed-pdm": "#0072b2",
    "fed-avg": "#d55e00",
    "fed-prox": "#cc79a7",
    "scaffold": "#009e73",
    "fed-dyn": "#e69f00",
    "dp-fedsgd": "#56b4e9",
    "homomorphic": "#009e73",
    "random": "#d55e00",
    "none": "#0072b2",
}
"""The same colour for the same algorithm in every plot."""
SPARE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#444444")
STYLES = ("-", "--", ":", "-.")
PRINTED = "#111111"


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels two side by side, with one legend below that is of all their curves.

    Bars, whose names stand beside them, take the whole width. The title stands above them where it
    is not that of the one panel.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = [panel for panel in panels if not panel.bars]
    bars = [panel for panel in panels if panel.bars]
    rows = [lines[place : place + 2] for place in range(0, len(lines), 2)]
    rows += [[panel] for panel in bars]
    heights = [1.0 + 0.28 * len(row[0].curves) if row[0].bars else 2.8 for row in rows]
    labels = list(dict.fromkeys(label for panel in lines for label in panel.curves))
    colours = _colours(labels)
    columns = min(2, max(map(len, rows)))
    width = max(4.2 * columns, 6.3 if bars else 0.0)
    columns_of_legend = _columns(labels, columns)
    entries = len(labels) + any(panel.printed for panel in lines)
    below = 0.22 * math.ceil(entries / columns_of_legend) if lines else 0.25
    settings: Any = {"svg.hashsalt": "privet", "font.size": 10, "axes.spines.top": False}
    with mpl.rc_context({**settings, "axes.spines.right": False}):
        size = (width, sum(heights) + 0.5 + below)
        figure = Figure(figsize=size, layout="constrained")
        if [panel.title for panel in panels] != [title]:
            figure.suptitle(title, fontsize=11, wrap=True)
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
        for place, row in enumerate(rows):
            for column, panel in enumerate(row):
                whole = len(row) == 1 and (panel.bars or len(lines) == 1)
                axes = figure.add_subplot(grid[place, :] if whole else grid[place, column])
                if panel.bars:
                    _bars(axes, panel)
                else:
                    _lines(axes, panel, colours)
                # Names of bars leave their axes little room: a centred title would be cut off.
                axes.set_title(panel.title, loc="right" if panel.bars else "center")
                axes.grid(alpha=0.3)
        if lines or any(panel.printed for panel in bars):
            figure.legend(
                handles=_handles(colours, panels),
                loc="outside lower center",
                ncols=columns_of_legend,
                frameon=False,
                fontsize=9,
            )
        figure.savefig(path, metadata={"Date": None})


def _columns(labels: Sequence[str], columns: int) -> int:
    """Return in how many columns the entries of a legend fit."""
    longest = max(map(len, labels), default=1)
    return max(1, min(len(labels), round(columns * 48 / (longest + 8))))


def _handles(colours: Mapping[str, tuple[str, str]], panels: Sequence[Panel]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, ls=style, lw=1.4, label=label)
        for label, (colour, style) in colours.items()
    ]
    printed = Line2D([], [], **_mark(PRINTED), label="printed")
    return [*handles, *([printed] if any(panel.printed for panel in panels) else [])]


def _colours(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and line style: one colour an algorithm, styles tell its variants apart."""
    found: dict[str, tuple[str, str]] = {}
    seen: dict[str, int] = {}
    for place, label in enumerate(labels):
        name = label.split(",", 1)[0].split(" ", 1)[0]
        colour = COLOURS.get(name, SPARE[place % len(SPARE)])
        found[label] = colour, STYLES[seen.get(colour, 0) % len(STYLES)]
        seen[colour] = seen.get(colour, 0) + 1
    return found


def _lines(axes: Any, panel: Panel, colours: Mapping[str, tuple[str, str]]) -> None:
    for label, curve in panel.curves.items():
        colour, style = colours[label]
        marker = "." if len(curve.x) < 16 else ""
        axes.plot(curve.x, curve.y, style, lw=1.4, marker=marker, color=colour)
        if len(curve.low):
            floor = [y / 10 for y in curve.y] if panel.y_log else curve.low
            low = [max(pair) for pair in zip(curve.low, floor, strict=True)]
            axes.fill_between(curve.x, low, curve.high, color=colour, alpha=0.18, lw=0)
    for label, curve in panel.printed.items():
        axes.plot(curve.x, curve.y, **_mark(colours.get(label, (PRINTED, ""))[0]))
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.x_log:
        axes.set_xscale("log")
        _plain(axes.xaxis, axes.get_xlim())
    if panel.y_log:
        axes.set_yscale("log")
        _plain(axes.yaxis, axes.get_ylim())


def _plain(axis: Any, limits: tuple[float, float]) -> None:
    """Label a logarithmic axis of few decades with plain numbers, less than two also between."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = limits
    if low >= 1e-3 and high <= 1e4:
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if high / low < 30.0:
        axis.set_minor_locator(LogLocator(subs=(2.0, 3.0, 5.0)))
        axis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    else:
        axis.set_minor_formatter(NullFormatter())


def _mark(colour: str) -> dict[str, Any]:
    """Return the look of a printed value."""
    return {"marker": "D", "ls": "", "ms": 6, "mfc": "none", "mec": colour, "mew": 1.4}


def _bars(axes: Any, panel: Panel) -> None:
    """Draw one named bar a label with its interval, and a diamond where the paper's value is."""
    labels = list(panel.curves)
    for place, (label, (colour, _)) in enumerate(_colours(labels).items()):
        curve = panel.curves[label]
        error = [[curve.y[0] - curve.low[0]], [curve.high[0] - curve.y[0]]] if curve.low else None
        axes.barh(place, curve.y[0], xerr=error, color=colour, alpha=0.75, height=0.65)
        if label in panel.printed:
            axes.plot(panel.printed[label].y[0], place, **_mark(PRINTED))
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel=panel.y_label)
