"""The curves of the report as inline SVG, drawn by matplotlib without any global state.

Colours are drawn as placeholders and replaced by CSS variables, which the page sets for light and
dark mode. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from privet.core.format import (
    Number,
    byte_count,
    byte_unit,
    number,
    power_of_ten,
    text,
)

from .runs import RecordedRun, diverged, extras_of
from .tables import shown, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = 8
OVER = {
    "round": "rounds",
    "clock": "the clock",
    "uploads": "uploads",
    "bytes": "bytes",
    "seconds": "seconds",
    "epsilon": "ε",
}
"""The x axes of a curve and their labels."""
_INK, _GRID = "#010101", "#020202"
_WIDTH, _HEIGHT = 4.7, 2.9
_MARKERS_UP_TO = 25
_SPOTS = 30
_POINTS = 72
_LARGEST = 1e300  # Ticks and margins of larger values overflow.
_ABOVE = 1000
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)))

Series = tuple[list[int], list[Number]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes: which curves it shows and how the y axis is drawn.

    ``label`` is what the title does not say of the y axis; ``folded`` is what researchers look at.
    """

    key: str
    title: str
    label: str
    curves: tuple[tuple[str, Callable[[RecordedRun], Series]], ...]
    scale: Literal["linear", "log", "auto", "bytes", "percent", "count"] = "linear"
    steps: Literal["default", "steps-post", "steps-mid"] = "default"
    folded: bool = False

    @property
    def switched(self) -> bool:
        """True if the panel is also drawn over the other axes."""
        return self.scale != "bytes" and self.steps == "default"

    def written(self, value: Number) -> str:
        """Return a value formatted as in the tables."""
        if self.scale == "bytes":
            return byte_count(value)
        return shown(self.key.removeprefix("added-"), value)


def _panel(key: str, title: str, label: str, *how: Any) -> Panel:
    """Return a panel whose one curve is the column named ``key``."""
    return Panel(key, title, label, (("", lambda run: run.series(key)),), *how)


_BYTES: tuple[tuple[str, Callable[[RecordedRun], Series]], ...] = (
    ("up", lambda run: run.cumulative("bytes-up")),
    ("down", lambda run: run.cumulative("bytes-down")),
)
PANELS: tuple[Panel, ...] = (
    _panel("loss", "Loss", "", "auto"),
    _panel("accuracy", "Accuracy", "", "percent"),
    _panel("stationarity", "Stationarity", "", "log", "default", True),
    _panel("residual", "Fixed-point residual", "squared", "log", "default", True),
    Panel("bytes", "Bytes up and down, cumulative", "", _BYTES, "bytes"),
    _panel("epsilon", "Privacy spent so far", "ε", "linear", "steps-post"),
    _panel("participants", "Participation", "agents", "count", "steps-mid"),
    _panel("failures", "Failures", "agents", "count", "steps-mid"),
)


def panels(runs: Sequence[RecordedRun]) -> list[Panel]:
    """Return the panels that every run has, then one for each column an algorithm added."""
    return [*PANELS, *map(_added, extras_of(runs))]


def _added(key: str) -> Panel:
    curves = (("", lambda run: run.series(key)),)
    return Panel(f"added-{key}", title(key), "", curves, "auto", folded=True)


def have_matplotlib() -> bool:
    """Return whether the ``plots`` extra is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def colour(index: int) -> str:
    """Return the CSS variable with the colour of a run."""
    return f"--run-{index % COLOURS}"


def swatch(*, style: int, colour: str) -> str:
    """Return a short line in the style of a curve, for the legend."""
    dashes = _DASHES[style % len(_DASHES)]
    pattern = "" if dashes == "-" else f' stroke-dasharray="{dashes[1][0]} {dashes[1][1]}"'
    return (
        '<svg viewBox="0 0 30 8" aria-hidden="true">'
        f'<path d="M1 4H29" style="stroke:var({colour})" stroke-width="2.5"{pattern}/></svg>'
    )


def ceiling(panel: Panel, runs: Sequence[RecordedRun]) -> float:
    """Return the value below which the panel shows points.

    A run that diverged leaves the picture, so that the others can be compared: where several are
    drawn, at a thousand times the largest value of those that did not diverge.
    """
    largest = [
        value
        for run in runs
        if not diverged(run)
        for _, read in panel.curves
        for value in drawable(panel, read(run))[1]
    ]
    known = len(runs) > 1 and any(value > 0 for value in largest)
    return min(_LARGEST, _ABOVE * max(largest)) if known else _LARGEST


def drawable(panel: Panel, series: Series, most: float = _LARGEST) -> Series:
    """Keep the points the axis can show: below ``most``, and positive on a log axis."""
    floor = 0.0 if panel.scale == "log" else -most
    kept = [(t, value) for t, value in zip(*series, strict=True) if floor < value < most]
    return [t for t, _ in kept], [value for _, value in kept]


class _Curve(NamedTuple):
    """The points of one curve of a run that can be shown, with a text for each."""

    run: int
    style: int
    xs: list[Number]
    ys: list[Number]
    tooltips: list[str]


def _curves(panel: Panel, runs: Sequence[RecordedRun], over: str) -> list[_Curve]:
    """Return the curves of a panel that have a point to show, run by run."""
    curves: list[_Curve] = []
    most = ceiling(panel, runs)
    for index, run in enumerate(runs):
        places = {t: x for t, x in run.progress(over).items() if x < _LARGEST}
        for style, (name, read) in enumerate(panel.curves):
            points = [
                (t, y)
                for t, y in zip(*drawable(panel, read(run), most), strict=True)
                if t in places
            ]
            if not points:
                continue
            about = " ".join(filter(None, (run.label if len(runs) > 1 else "", name)))
            tooltips = [f"{about} round {t}: {panel.written(y)}".strip() for t, y in points]
            xs, ys = [places[t] for t, _ in points], [y for _, y in points]
            curves.append(_Curve(index, style, xs, ys, tooltips))
    return curves


def draw(panel: Panel, runs: Sequence[RecordedRun], over: str = "round") -> str:
    """Return the panel as an inline ``<svg>``, or "" when no run has a point to show.

    ``over`` is one of `OVER`; the tooltip of a point has its round and value.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curves = _curves(panel, runs, over)
    if not curves:
        return ""
    values = [value for curve in curves for value in curve.ys]
    unit, scale = _unit(panel, max(values))
    label, along = _along(over, max(x for curve in curves for x in curve.xs))
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        # matplotlib derives the ids of shared definitions from this salt and their content.
        "svg.hashsalt": f"{panel.key}-{over}",
        "path.simplify": True,
        "font.size": 11.5,
        "font.family": "DejaVu Sans",
        "axes.unicode_minus": True,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Margins and ticks near the values of a diverged run overflow, which harms no curve.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = figure.add_axes((0.155, 0.175, 0.815, 0.7))
        _style(axes, panel, values, unit)
        if not axes.get_title("left"):
            axes.set_position((0.155, 0.175, 0.815, 0.79))
        axes.set_xlabel(label, color=_INK, labelpad=3)
        axes.xaxis.set_major_locator(
            MaxNLocator(6, steps=[1, 2, 5, 10], integer=over in ("round", "uploads"))
        )
        scaled = [
            ([x / along for x in curve.xs], [value / scale for value in curve.ys])
            for curve in curves
        ]
        for curve, place in zip(curves, scaled, strict=True):
            _line(axes, panel, (curve.run, curve.style, len(runs) > 1), place)
        if not _is_log(panel, values):
            _linear_limits(axes, panel)
        file = io.StringIO()
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
        spotted = max(2, min(_SPOTS, _SPOTS * COLOURS // len(curves)))
        spots = "".join(
            _spot(axes, curve.run, (x, y), tooltip)
            for curve, place in zip(curves, scaled, strict=True)
            for x, y, tooltip in _some(list(zip(*place, curve.tooltips, strict=True)), spotted)
        )
        axis = _axis(axes) if panel.switched else ""
    return _inline(file.getvalue(), axis).removesuffix("</svg>") + spots + "</svg>"


def _axis(axes: Axes) -> str:
    """Return what the page's script needs to draw the y axis anew.

    Its limits, whether it is logarithmic, and where it lies in the picture: left, top, bottom.
    """
    low, high = axes.get_ylim()
    box = axes.get_position()
    width, height = _WIDTH * _POINTS, _HEIGHT * _POINTS
    place = (box.x0 * width, (1 - box.y1) * height, (1 - box.y0) * height)
    numbers = (low, high, axes.get_yscale() == "log", *place)
    return f' data-axis="{" ".join(f"{float(one):.10g}" for one in numbers)}"'


def _along(over: str, largest: Number) -> tuple[str, float]:
    """Return the label of the x axis and the divisor of its values."""
    if over != "bytes":
        return {"epsilon": "ε spent", "clock": "seconds since the start"}.get(over, over), 1
    unit, scale = byte_unit(largest)
    return f"bytes up and down ({unit})", scale


def _some(points: list[Any], most: int) -> list[Any]:
    """Return at most so many of the points and the last, evenly spaced."""
    return [*points[: -1 : math.ceil(len(points) / most)], points[-1]]


def _spot(axes: Axes, index: int, point: tuple[float, float], tooltip: str) -> str:
    """Return an invisible circle at a point of a curve, with a tooltip."""
    figure: Any = axes.figure
    width, height = figure.get_size_inches() * _POINTS
    x, y = figure.transFigure.inverted().transform(axes.transData.transform(point))
    if not (0 <= x <= 1 and 0 <= y <= 1):
        return ""
    place = f'cx="{x * width:.1f}" cy="{(1 - y) * height:.1f}"'
    return (
        f'<circle class="spot" data-run="{index}" {place} r="6" style="color:var({colour(index)})">'
        f"<title>{text(tooltip)}</title></circle>"
    )


def _unit(panel: Panel, largest: Number) -> tuple[str, float]:
    if panel.scale == "bytes":
        return byte_unit(largest)
    if panel.scale == "percent":
        return "%", 0.01
    return "", 1.0


def _is_log(panel: Panel, values: list[Number]) -> bool:
    least = {"log": 3, "auto": 30}.get(panel.scale, math.inf)
    return 0 < min(values) <= max(values) / least


def _style(axes: Axes, panel: Panel, values: list[Number], unit: str) -> None:
    """Set scale, ticks, labels and colours."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    logarithmic = _is_log(panel, values)
    details = (panel.label, unit, "log scale" if logarithmic else "")
    axes.set_title(
        ", ".join(filter(None, details)), loc="left", fontsize=11.5, color=_INK, pad=7, gid="scale"
    )
    if logarithmic:
        axes.set_yscale("log")
        decades = math.log10(max(values) / min(values))
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0), numticks=7)
        )
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(_power_label if decades > 2 else _plain_label))
    else:
        axes.yaxis.set_major_locator(
            MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=panel.scale == "count")
        )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INK)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelcolor=_INK, labelsize=11)
    axes.tick_params(axis="y", length=0)


def _power_label(value: float, _position: int | None = None) -> str:
    # Near the limits of floats, matplotlib places ticks at 0 and infinity.
    return power_of_ten(round(math.log10(value))) if 0 < value < math.inf else ""


def _plain_label(value: float, _position: int | None = None) -> str:
    return number(value)


def _line(
    axes: Axes, panel: Panel, which: tuple[int, int, bool], points: tuple[list[float], list[float]]
) -> None:
    index, style, several = which
    second = index // COLOURS if len(panel.curves) == 1 else style
    axes.plot(
        *points,
        color=_placeholder(index),
        linestyle=_DASHES[second % len(_DASHES)],
        # Later runs are drawn thinner, so that equal curves stay visible under each other.
        linewidth=max(1.3, (3.1 if several else 2.0) - 0.9 * index),
        marker="o" if len(points[0]) <= _MARKERS_UP_TO else "",
        markersize=max(2.6, (5.0 if several else 4.0) - index),
        drawstyle=panel.steps,
        gid=f"curve-{index}",
        clip_on=False,
    )


def _linear_limits(axes: Axes, panel: Panel) -> None:
    low, high = axes.get_ylim()
    if panel.scale in {"bytes", "count"} or panel.key == "epsilon":
        low, high = 0.0, max(high, 1.0 if panel.scale == "count" else 0.0)
    elif panel.scale == "percent":
        low, high = max(0.0, low), min(100.0, high)
    axes.set_ylim(low, high)


def _placeholder(index: int) -> str:
    return f"#0a0a{index % COLOURS:02x}"


def _inline(svg: str, axis: str) -> str:
    """Return matplotlib's document as an element of a page, which decides its size and colours."""
    _, _, content = svg[svg.index("<svg") :].partition(">")
    # Group ids are counters that restart in every figure, but ids must be unique in a page.
    content = re.sub(r'<g id="curve-(\d+)"', r'<g class="curve" data-run="\1"', content)
    content = re.sub(r'<g id="(ytick|scale)[^"]*"', r'<g class="\1"', content)
    content = re.sub(r'<g id="[^"]*"', "<g", content)
    runs = {_placeholder(index): colour(index) for index in range(COLOURS)}
    for placeholder, variable in {_INK: "--ink", _GRID: "--grid", **runs}.items():
        content = content.replace(placeholder, f"var({variable})")
    box = f"0 0 {_WIDTH * _POINTS:g} {_HEIGHT * _POINTS:g}"
    return f'<svg viewBox="{box}"{axis} aria-hidden="true">{content.strip()}'
