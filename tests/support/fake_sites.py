"""Sites of an analysis in one process: their sums are added up in order, and a step is made."""

import csv
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from privet.analyses.frame import Frame

INFERENCE = Path(__file__).parents[1] / "data" / "inference"


def table_columns(path):
    """The columns of a CSV file: numbers where all cells are, texts otherwise."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, cells in columns.items():
        try:
            columns[name] = [float(cell) for cell in cells]
        except ValueError:
            continue
    return columns


def dealt(columns, by="site"):
    """The frames of the sites by a column, which stays in them; sites in sorted order."""
    sites = sorted(set(columns[by]))
    whose = np.array(columns[by])
    return [
        Frame.of(
            {name: np.array(cells, dtype=object)[whose == site] for name, cells in columns.items()}
        )
        for site in sites
    ]


def agreed_levels(analysis, frames):
    """By column used as categories, all that occur, sorted; numbers as written shortest."""
    found = {}
    for frame in frames:
        for name in analysis.factors(frame):
            there = frame.factor(name).levels
            found.setdefault(name, set()).update(there)
    return {name: tuple(sorted(levels)) for name, levels in found.items()}


@dataclass
class Outcome:
    table: dict
    rounds: int
    state: object


def federate(analysis, frames, *, rounded=False, most=40, of=lambda sums: sums, away=None):
    """Run an analysis to its end; ``rounded`` gives each number the grid 2^-40 of secure sums.

    ``away`` says by round which site does not answer.
    """
    levels = agreed_levels(analysis, frames)
    sites = [of(analysis.sums(frame, levels)) for frame in frames]
    state, rounds = analysis.begin(levels), 0
    while not state.done:
        rounds += 1
        assert rounds <= most, "it does not end"
        point, shapes = analysis.point(state), analysis.shapes(state)
        totals = {name: np.zeros(shape) for name, shape in shapes.items()}
        for place, site in enumerate(sites):
            if (away or {}).get(rounds) == place:
                continue
            statistics = site.statistics(point)
            assert list(statistics) == list(shapes)
            for name, value in statistics.items():
                assert np.shape(value) == shapes[name], name
                assert np.all(np.abs(value) < 2.0**20), name
                assert np.asarray(value).dtype == np.float64, name
                sent = np.rint(value * 2.0**40) / 2.0**40 if rounded else value
                totals[name] = totals[name] + sent
        state = analysis.step(state, totals)
        for field in fields(state):  # what a checkpoint can hold
            value = getattr(state, field.name)
            assert isinstance(value, (bool, int, float, np.ndarray)), field.name
    return Outcome(analysis.table(state), rounds, state)
