"""Pictures for pages of both colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def themed(stem: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write ``stem``-light.svg and ``stem``-dark.svg of what ``draw`` puts on a figure."""
    import matplotlib as mpl
    import matplotlib.style
    from matplotlib.figure import Figure

    own = {"svg.hashsalt": "privet", "svg.fonttype": "none", "font.size": 10, "lines.linewidth": 2}
    for theme, style in {"light": "default", "dark": "dark_background"}.items():
        with mpl.style.context([style, own]):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            target = stem.with_name(f"{stem.name}-{theme}.svg")
            figure.savefig(target, metadata={"Date": None}, transparent=True)
