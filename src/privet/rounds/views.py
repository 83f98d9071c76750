"""A run in a notebook or script: its rounds and account as small tables, and its curves."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from privet.core import ConfigError
from privet.core import format as fmt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

LARGEST = 10
"""Rounds that a table shows, evenly spaced, the first and the last among them."""
SHOWN = {
    "loss": fmt.number,
    "accuracy": fmt.fraction,
    "stationarity": fmt.number,
    "residual": fmt.number,
    "epsilon": fmt.epsilon,
}
"""The measures of a round that are shown, in order, each with its format."""


class History(list[T]):
    """The rounds of a run, a list; a notebook shows it as a table.

    Its items are `Round` or the mappings of `Round.to_dict`.
    """

    def _repr_html_(self) -> str:
        step = max(1, math.ceil((len(self) - 1) / (LARGEST - 1)))
        chosen = [*self[:-1:step], *self[-1:]]
        rows = [{"round": _of(one, "round"), **measures(one)} for one in chosen]
        keys = [key for key in SHOWN if any(key in row for row in rows)]
        body = [[row["round"], *(_shown(key, row.get(key)) for key in keys)] for row in rows]
        return table(["round", *keys], body)


def measures(done: Any) -> dict[str, float]:
    """Return the measures of a round that were recorded, by name."""
    values = {key: _of(done, key) for key in SHOWN}
    numbers = {key: math.nan if value is None else float(value) for key, value in values.items()}
    unknown = {key for key, value in numbers.items() if math.isnan(value)}
    if math.isinf(numbers["epsilon"]):  # of a run that is not private
        unknown.add("epsilon")
    return {key: value for key, value in numbers.items() if key not in unknown}


def _of(done: Any, key: str) -> Any:
    return done.get(key) if isinstance(done, Mapping) else getattr(done, key)


def _shown(key: str, value: float | None) -> str:
    return "" if value is None else SHOWN[key](value)


def last_measures(history: Iterable[Any]) -> dict[str, float]:
    """Return the last recorded value of each measure."""
    last: dict[str, float] = {}
    for done in history:
        last |= measures(done)
    return {key: last[key] for key in SHOWN if key in last}


def in_words(numbers: Mapping[str, float]) -> str:
    """Return measures as one line."""
    return ", ".join(f"{key} {_shown(key, value)}" for key, value in numbers.items())


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; all texts are escaped."""
    head = "".join(f"<th>{fmt.text(one)}</th>" for one in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{fmt.text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f"<table>{top}<tbody>{body}</tbody></table>"


def plot(history: Iterable[Any], *names: str) -> Figure:
    """Return a figure with a curve for each measure, over the rounds.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or a measure was not recorded.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigError("plot() needs matplotlib: pip install 'flwr-privet[plots]'") from None

    class Curves(Figure):
        """A figure that a notebook shows, also where pyplot is not imported."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    rounds = [(_of(done, "round"), measures(done)) for done in history]
    known = [key for key in SHOWN if any(key in values for _, values in rounds)]
    chosen = list(names) or [key for key in ("loss", "accuracy", "epsilon") if key in known]
    chosen = chosen or known[:1]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"plot: no round has {name!r}; recorded are {', '.join(known)}")
    figure = Curves(figsize=(4.0 * max(1, len(chosen)), 3.0), layout="constrained")
    for place, name in enumerate(chosen, start=1):
        axes = figure.add_subplot(1, len(chosen), place)
        points = [(number, values[name]) for number, values in rounds if name in values]
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) <= 25 else "")
        axes.set(title=name, xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(visible=True, alpha=0.3)
    return figure
