"""A federation in one process for analyses: sums of the sites' statistics, and the step."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet.analyses.analysis import Analysis
from privet.analyses.frame import Frame

TABLES = Path(__file__).parents[1] / "data" / "inference"

PATIENTS = """
[columns]
age = [0, 120]
bmi = [5, 100]
crp = [0, 1000]
sex = ["F", "M"]
smoker = ["current", "former", "never"]
died = [0, 1]
"""
"""A schema of the worked tables' columns, but for times."""

GRID = 2.0**-40
LARGEST = 2.0**20


def table_columns(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a CSV file: numbers where all values are, texts otherwise."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, list[Any]] = {}
    for column in rows[0]:
        texts = [row[column] for row in rows]
        try:
            columns[column] = [float(text) for text in texts]
        except ValueError:
            columns[column] = list(texts)
    return columns


def table_of(name: str) -> dict[str, list[Any]]:
    """Return the columns of a worked table."""
    return table_columns(TABLES / name)


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


def own_tables(
    folder: Path,
    change: Callable[[str, list[dict[str, str]]], list[dict[str, str]]] = lambda site, rows: rows,
    schema: str = PATIENTS,
    name: str = "glm-binomial-1",
    **keys: Any,
) -> list[dict[str, Any]]:
    """Write each site's rows of a worked table to a file of its own; return node configs."""
    with (TABLES / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    if schema:
        (folder / "schema.toml").write_text(schema)
    nodes = []
    for number, site in enumerate(sorted({row["site"] for row in rows})):
        own = [{k: v for k, v in row.items() if k != "site"} for row in rows if row["site"] == site]
        own = change(site, own)
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, own[0].keys())
            writer.writeheader()
            writer.writerows(own)
        node: dict[str, Any] = {"partition-id": number, "agent": site, "dataset": "csv"}
        node |= {"data-path": str(folder / f"{site}.csv")}
        node |= {"schema": str(folder / "schema.toml")} if schema else {}
        nodes.append({**node, **{k.replace("_", "-"): v for k, v in keys.items()}})
    return nodes


def frames_by(columns: Mapping[str, Sequence[Any]], by: str = "site") -> list[Frame]:
    """Return the frames of the sites by a column, which stays in them; sites in sorted order."""
    return list(dealt(columns, columns[by]).values())


def agreed(analysis: Analysis[Any], frames: Iterable[Frame]) -> dict[str, tuple[str, ...]]:
    """Return the categories of all sites, sorted; numbers as written shortest."""
    found: dict[str, set[str]] = {}
    for frame in frames:
        for name in analysis.factors(frame):
            found.setdefault(name, set()).update(frame.factor(name).levels)
    return {name: tuple(sorted(levels)) for name, levels in found.items()}


class Outcome(NamedTuple):
    table: dict[str, Any]
    rounds: int
    state: Any


def federate(
    analysis: Analysis[Any],
    frames: Sequence[Frame],
    *,
    rounded: bool = False,
    seen: bool = False,
    ordered: bool = True,
    most: int = 40,
    of: Callable[[Any], Any] = lambda sums: sums,
    away: Mapping[int, int] | None = None,
) -> Outcome:
    """Run an analysis to its end.

    ``rounded`` sums as secure sums do, to multiples of 2^-40; ``seen`` shows each site's sums to
    the analysis, and ``ordered`` asks for them in the order of their shapes. ``away`` says by
    round which site does not answer.
    """
    levels = agreed(analysis, frames)
    sites = [of(analysis.sums(frame, levels)) for frame in frames]
    state, rounds = analysis.begin(levels), 0
    while not state.done:
        rounds += 1
        assert rounds <= most, f"not done in {most} rounds, gap {state.gap}"
        point, shapes = analysis.point(state), analysis.shapes(state)
        totals = {name: np.zeros(shape) for name, shape in shapes.items()}
        there = [site for place, site in enumerate(sites) if (away or {}).get(rounds) != place]
        replies = [site.statistics(point) for site in there]
        for statistics in replies:
            assert set(statistics) == set(shapes)
            assert list(statistics) == list(shapes) or not ordered
            for name, value in statistics.items():
                assert np.shape(value) == shapes[name], name
                assert np.all(np.abs(value) < LARGEST), name
                assert np.asarray(value).dtype == np.float64, name
                sent = np.rint(value / GRID) * GRID if rounded else value
                totals[name] = totals[name] + sent
        before, state = state, analysis.step(state, totals)
        if seen:
            state = analysis.by_site(before, state, replies)
        require_storable(state)
    return Outcome(analysis.table(state), rounds, state)


def require_storable(state: Any) -> None:
    """Check that a checkpoint can hold a state."""
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            require_storable(value)
        else:
            assert isinstance(value, bool | int | float | np.ndarray), field.name


def play(
    analysis: Analysis[Any], frames: Mapping[str, Frame], rounded: bool = True, most: int = 60
) -> Any:
    """Return the last state; sums that are not rounded are seen site by site."""
    ordered = [frames[name] for name in sorted(frames)]
    return federate(
        analysis, ordered, rounded=rounded, seen=not rounded, ordered=False, most=most
    ).state


def fitted(
    analysis: Analysis[Any],
    columns: Mapping[str, Sequence[Any]],
    sites: Sequence[Any],
    rounded: bool = True,
) -> dict[str, Any]:
    """Return the table of an analysis of columns whose rows are dealt to sites."""
    return analysis.table(play(analysis, dealt(columns, sites), rounded))
