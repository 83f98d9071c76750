"""A forest plot as a column of a table: an interval in each row, and the axis in the last one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from privet.core.format import round_ticks, text

Interval = tuple[float, float, float]
"""An estimate with the ends of its interval."""
_LEAST_GAP = 9.0
"""Between two ticks, in percent of the column's width: their texts do not touch."""


def forest(intervals: Sequence[Interval], centre: float, *, ratios: bool) -> tuple[list[str], str]:
    """Return the content of a cell for each interval, and that of the cell with the axis.

    Parameters
    ----------
    intervals : sequence of (estimate, low, high)
        Finite numbers; as the axis shows them, so above 0 where they are ratios.
    centre : float
        Where the line of no effect stands: 1 of ratios, 0 of coefficients.
    ratios : bool
        Whether the axis is logarithmic.
    """
    if not intervals:
        return [], ""
    ends = [centre, *(value for interval in intervals for value in interval)]
    ticks = _ticks(min(ends), max(ends), ratios=ratios)
    least, most = min(*ends, *ticks), max(*ends, *ticks)

    def place(value: float) -> float:
        low, at, high = (math.log(one) if ratios else one for one in (least, value, most))
        return 2.0 + 96.0 * (at - low) / (high - low)

    line = f'<line class="none" x1="{place(centre):.2f}" x2="{place(centre):.2f}" y1="0" y2="20"/>'
    cells = []
    for at, low, high in intervals:
        shown = f"{_number(at)} ({_number(low)} to {_number(high)})"
        cells.append(
            f'<svg viewBox="0 0 100 20" preserveAspectRatio="none" role="img">{line}'
            f'<line x1="{place(low):.2f}" x2="{place(high):.2f}" y1="10" y2="10"/>'
            f'<line class="at" x1="{place(at):.2f}" x2="{place(at):.2f}" y1="5" y2="15">'
            f"</line><title>{text(shown)}</title></svg>"
        )
    placed = [(tick, place(tick)) for tick in ticks]
    axis = "".join(
        f'<span style="left:{at:.2f}%">{_number(tick)}</span>' for tick, at in _apart(placed)
    )
    return cells, f'<div class="axis">{axis}</div>'


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "\u2212")


def _apart(ticks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the ticks whose texts do not touch the one before."""
    kept = [*ticks[:1]]
    for tick in ticks[1:]:
        if tick[1] - kept[-1][1] >= _LEAST_GAP:
            kept.append(tick)
    return kept


def _ticks(low: float, high: float, *, ratios: bool) -> list[float]:
    """Return round numbers, the first at or below ``low`` and the last at or above ``high``."""
    if not ratios:
        return round_ticks(low, high)
    if low == high:
        low, high = low / 2.0, high * 2.0
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 6)
    ladder = [step * 10.0**power for power in range(first, last + 1, every) for step in steps] + [
        10.0 ** (last + every)
    ]
    spans = [pair for pair in pairwise(ladder) if pair[1] > low and pair[0] < high]
    return sorted({tick for pair in spans for tick in pair})
