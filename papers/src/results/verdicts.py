"""Differences to a reference in words: better, worse, or undecided, as the interval says."""

from __future__ import annotations

from collections.abc import Iterable

from studies.pages import verdict_word
from studies.statistics import Estimate

BETTER, UNDECIDED, WORSE = "better", "undecided", "worse"


def judged(low: float, high: float, equal: float = 0.0) -> str:
    """Return the verdict of an interval, of a difference or (``equal`` = 1) of a ratio."""
    return BETTER if low > equal else WORSE if high < equal else UNDECIDED


def points(gap: Estimate) -> str:
    """Return a difference in points with its sign and interval."""
    return f"{gap.mean:+.1f} ± {gap.half_width:.1f}"


def compared(gap: Estimate) -> str:
    """Return the cell of a table: the verdict in its colour, and the difference."""
    return f"{verdict_word(judged(gap.low, gap.high))} {points(gap)}"


def by_verdict(gaps: Iterable[tuple[str, Estimate]]) -> list[str]:
    """Return a line of a list for each verdict, with what it is about."""
    found: dict[str, list[str]] = {BETTER: [], UNDECIDED: [], WORSE: []}
    for name, gap in gaps:
        found[judged(gap.low, gap.high)].append(f"{name} {points(gap)}")
    return [f"- {verdict_word(word)} {'; '.join(own)}" for word, own in found.items() if own]
