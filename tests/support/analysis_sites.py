"""A federation in one process for analyses: sums of the sites' statistics, and the step."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privet.analyses.analysis import Analysis
from privet.analyses.frame import Frame

TABLES = Path(__file__).parents[1] / "data" / "inference"

GRID = 2.0**-40
LARGEST = 2.0**20


def table_of(name: str) -> dict[str, list[Any]]:
    """Return the columns of a worked table: numbers where all values are."""
    with (TABLES / name).open() as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, list[Any]] = {}
    for column in rows[0]:
        texts = [row[column] for row in rows]
        try:
            columns[column] = [float(text) for text in texts]
        except ValueError:
            columns[column] = list(texts)
    return columns


def dealt(columns: Mapping[str, Sequence[Any]], sites: Sequence[Any]) -> dict[str, Frame]:
    """Return the frame of each site; texts are categories at all of them."""
    marks = np.array([str(site) for site in sites])
    return {
        site: Frame.of(
            {
                name: [value for value, mark in zip(values, marks, strict=True) if mark == site]
                for name, values in columns.items()
            },
            site,
        )
        for site in sorted(set(marks.tolist()))
    }


def agreed(analysis: Analysis[Any], frames: Mapping[str, Frame]) -> dict[str, list[str]]:
    """Return the categories of all sites, sorted."""
    found: dict[str, set[str]] = {}
    for frame in frames.values():
        for name in analysis.factors(frame):
            found.setdefault(name, set()).update(frame.factor(name).levels)
    return {name: sorted(levels) for name, levels in found.items()}


def play(
    analysis: Analysis[Any], frames: Mapping[str, Frame], rounded: bool = True, most: int = 60
) -> Any:
    """Return the last state.

    ``rounded`` sums as secure sums do, to multiples of 2^-40; else each site's sums are seen.
    """
    levels = agreed(analysis, frames)
    sites = [analysis.sums(frames[name], levels) for name in sorted(frames)]
    state = analysis.begin(levels)
    for _ in range(most):
        point, shapes = analysis.point(state), analysis.shapes(state)
        totals = {name: np.zeros(shape) for name, shape in shapes.items()}
        replies = [site.statistics(point) for site in sites]
        for statistics in replies:
            assert set(statistics) == set(shapes)
            for name, value in statistics.items():
                assert value.shape == shapes[name], name
                assert np.abs(value).max(initial=0.0) < LARGEST, name
                totals[name] += np.round(value / GRID) * GRID if rounded else value
        before, state = state, analysis.step(state, totals)
        if not rounded:
            state = analysis.by_site(before, state, replies)
        if state.done:
            return state
    raise AssertionError(f"not done in {most} rounds, gap {state.gap}")


def fitted(
    analysis: Analysis[Any],
    columns: Mapping[str, Sequence[Any]],
    sites: Sequence[Any],
    rounded: bool = True,
) -> dict[str, Any]:
    """Return the table of an analysis of columns whose rows are dealt to sites."""
    return analysis.table(play(analysis, dealt(columns, sites), rounded))
