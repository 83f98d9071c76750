"""A description of all columns: counts, missing values, moments, quantiles and categories.

Nothing is merged but sums. Means are those of all rows; squares are summed about the pooled mean of
the round before, so that nothing cancels:

    round 1   rows, values and missing values of each column; of numbers, how many lie between which
              powers of two; of categories, how many have each
    round 2   sums of the numbers, in units of the largest of these powers, and finer counts
    round 3   squares about the mean, and finer counts
    round 4   the last of these

A quantile is searched between public edges. Each round divides the interval that holds it into 64:
after three it is known to a 2^-18th of the distance of the powers of two that it lies between. The
q-quantile is the smallest value that at least a share q of the rows do not exceed; the lower end of
its interval is told, and how much larger it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .analysis import Analysis, Arrays, Progress, Shapes
from .frame import FloatArray, Frame, Levels

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PARTS = 64
"""Into how many parts a round divides the interval of a quantile, and the range of a column."""
ROUNDS = 4
_LOW, _HIGH = -40, 60
_POWERS = 2.0 ** np.arange(_LOW, _HIGH + 1)
EDGES: FloatArray = np.concatenate([-_POWERS[::-1], [0.0], _POWERS])
"""Public edges: 0, and the powers of two from 2^-40 to 2^60 with both signs."""
_START = float(2**20)
_KINDS = ("values", "missing", "other")


@dataclass(slots=True)
class Described(Progress):
    """What is known of the columns; C are those of numbers, K all categories one after the other.

    Attributes
    ----------
    phase : int
        Rounds that were summed.
    rows : float
        Of all sites.
    counts : array (columns, 3)
        Values, missing values, and values of another kind or in a table without the column.
    cells : array (K,)
    coarse : array (C, len(EDGES) + 1)
    unit : array (C,)
        The power of two that numbers are divided by.
    mean, square : array (C,)
        In these units.
    low, high : array (C,)
        Public edges between which all numbers lie.
    bins : array (C, PARTS)
        Between them.
    left, right : array (C, Q)
        The interval of each quantile.
    below : array (C, Q)
        The numbers below it.
    """

    phase: int
    rows: float
    counts: FloatArray
    cells: FloatArray
    coarse: FloatArray
    unit: FloatArray
    mean: FloatArray
    square: FloatArray
    low: FloatArray
    high: FloatArray
    bins: FloatArray
    left: FloatArray
    right: FloatArray
    below: FloatArray


@dataclass(frozen=True)
class Describe(Analysis[Described]):
    """The description of a table's columns.

    Attributes
    ----------
    only : str
        Names of columns, separated by commas; empty for all.
    """

    name: ClassVar[str] = "describe"
    needs_levels: ClassVar[bool] = False

    only: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (one.strip() for one in self.only.split(","))))

    def sums(self, frame: Frame, levels: Levels) -> DescribedSite:
        return DescribedSite(frame, levels or _own(frame))

    def begin(self, levels: Levels) -> Described:
        numbers = sum(not known for known in levels.values())
        cells = sum(map(len, levels.values()))
        shape = (numbers, len(QUANTILES))
        zeros = np.zeros
        return Described(
            *(math.nan, False, 0, 0.0),
            *(zeros((len(levels), len(_KINDS))), zeros(cells), zeros((numbers, len(EDGES) + 1))),
            *(np.ones(numbers), zeros(numbers), zeros(numbers), zeros(numbers), zeros(numbers)),
            *(zeros((numbers, PARTS)), zeros(shape), zeros(shape), zeros(shape)),
        )

    def point(self, state: Described) -> dict[str, FloatArray]:
        asked: dict[str, FloatArray] = {
            "phase": np.array([float(state.phase)]),
            "unit": np.array(_unit_of(state.rows)),
        }
        if state.phase:
            asked |= {"units": state.unit, "centre": state.mean}
            asked |= {"low": state.low, "high": state.high}
            asked |= {"left": state.left.ravel(), "right": state.right.ravel()}
        return asked

    def shapes(self, state: Described) -> Shapes:
        if not state.phase:
            return {
                "rows": (1,), "counts": state.counts.shape, "cells": state.cells.shape,
                "coarse": state.coarse.shape,
            }  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = {"parts": (*state.left.shape, PARTS)}
        if state.phase == 1:
            shapes |= {"sums": state.mean.shape, "bins": state.bins.shape}
        if state.phase == 2:
            shapes["squares"] = state.square.shape
        return shapes

    def step(self, state: Described, totals: Arrays) -> Described:
        back = _unit_of(state.rows)
        sums = {name: array * back for name, array in totals.items()}
        if not state.phase:
            new = _first(state, {name: np.rint(array) for name, array in sums.items()})
        else:
            new = _refined(state, np.rint(sums["parts"]))
        values = np.maximum(new.coarse.sum(axis=1), 1.0)
        if state.phase == 1:
            new = replace(new, mean=sums["sums"] / values, bins=np.rint(sums["bins"]))
        if state.phase == 2:
            new = replace(new, square=sums["squares"])
        done = state.phase + 1 == ROUNDS
        return replace(new, phase=state.phase + 1, done=done, gap=0.0 if done else math.nan)

    def table(self, state: Described, levels: Levels) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        number = cell = 0
        for place, (name, known) in enumerate(levels.items()):
            values, missing, other = (int(one) for one in state.counts[place])
            shown: dict[str, Any] = {"n": values, "missing": missing, "other": other}
            if known:
                counts = state.cells[cell : cell + len(known)]
                shown |= {"kind": "categories"}
                shown["categories"] = {
                    text: int(count) for text, count in zip(known, counts, strict=True)
                }
                cell += len(known)
            else:
                shown |= {"kind": "numbers", **_numbers(state, number)}
                number += 1
            columns[name] = shown
        return {"analysis": self.name, "rows": int(state.rows), "columns": columns}


def _own(frame: Frame) -> Levels:
    return {
        name: frame.factors[name].levels if name in frame.factors else ()
        for name in sorted(frame.names)
    }


def _unit_of(rows: float) -> float:
    """Return the power of two that sums are divided by, so that they fit a secure sum."""
    return float(2.0 ** math.ceil(math.log2(rows))) if rows >= 1 else _START


def _first(state: Described, sums: Mapping[str, FloatArray]) -> Described:
    """Return the state after the counts: units, ranges, and where the quantiles lie."""
    coarse = sums["coarse"]
    known = np.concatenate([[2.0 * EDGES[0]], EDGES, [2.0 * EDGES[-1]]])
    filled = coarse > 0
    first = np.where(filled.any(axis=1), filled.argmax(axis=1), len(EDGES) // 2)
    last = np.where(
        filled.any(axis=1), filled.shape[1] - 1 - filled[:, ::-1].argmax(axis=1), len(EDGES) // 2
    )
    low, high = known[first], known[last + 1]
    unit = np.maximum(np.maximum(abs(low), abs(high)), _POWERS[0])
    places, below = _places(coarse, coarse.sum(axis=1))
    return replace(
        state,
        rows=float(sums["rows"][0]),
        counts=sums["counts"],
        cells=sums["cells"],
        coarse=coarse,
        unit=unit,
        low=low,
        high=high,
        left=known[places],
        right=known[places + 1],
        below=below,
    )


def _places(
    counts: FloatArray, values: FloatArray, before: FloatArray | None = None
) -> tuple[NDArray[np.intp], FloatArray]:
    """Return in which part each quantile lies, and the numbers below that part.

    ``counts`` (C, parts) or (C, Q, parts), ``values`` (C,) how many numbers a column has, and
    ``before`` (C, Q) the numbers below the first part.
    """
    wanted = np.ceil(np.multiply.outer(values, QUANTILES))
    wanted = np.maximum(wanted, 1.0)
    if counts.ndim == 2:
        counts = np.repeat(counts[:, None], len(QUANTILES), axis=1)
    start = np.zeros(wanted.shape) if before is None else before
    running = start[..., None] + np.cumsum(counts, axis=2)
    reached = running >= wanted[..., None]
    places = np.where(reached.any(axis=2), reached.argmax(axis=2), counts.shape[2] - 1)
    shifted = np.concatenate([start[..., None], running], axis=2)
    return places, np.take_along_axis(shifted, places[..., None], axis=2)[..., 0]


def _refined(state: Described, parts: FloatArray) -> Described:
    """Return the state with the part of each quantile's interval that holds it."""
    places, below = _places(parts, state.coarse.sum(axis=1), state.below)
    width = (state.right - state.left) / PARTS
    left = state.left + places * width
    right = np.where(places == PARTS - 1, state.right, left + width)
    return replace(state, left=left, right=right, below=below)


def _numbers(state: Described, at: int) -> dict[str, Any]:
    values = float(state.coarse[at].sum())
    if not values:
        return {}
    unit = float(state.unit[at])
    spread = float(state.square[at]) / (values - 1.0) if values > 1 else math.nan
    return {
        "mean": float(state.mean[at]) * unit,
        "sd": None if math.isnan(spread) else math.sqrt(spread) * unit,
        "quantiles": {
            f"{q:g}": float(left) for q, left in zip(QUANTILES, state.left[at], strict=True)
        },
        "quantile_errors": {
            f"{q:g}": float(right - left)
            for q, left, right in zip(QUANTILES, state.left[at], state.right[at], strict=True)
        },
        "histogram": {
            "low": float(state.low[at]),
            "high": float(state.high[at]),
            "counts": [int(one) for one in state.bins[at]],
        },
    }


class DescribedSite:
    """What a site counts and sums of its own columns."""

    def __init__(self, frame: Frame, levels: Levels) -> None:
        self.frame, self.levels = frame, levels
        self.num_examples = frame.rows
        self.left_out: Mapping[str, int] = {}

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        share = 1.0 / float(point["unit"])
        phase = int(point["phase"][0])
        sums = self._counts() if not phase else self._sums(phase, point)
        return {name: array * share for name, array in sums.items()}

    def _numbers(self) -> list[FloatArray]:
        """Return the numbers of each column that is agreed to be of numbers, those that are."""
        none = np.empty(0)
        return [
            _known(self.frame.numbers.get(name, none))
            for name, known in self.levels.items()
            if not known
        ]

    def _counts(self) -> dict[str, FloatArray]:
        counts, cells, coarse = [], [], []
        rows = float(self.frame.rows)
        for name, known in self.levels.items():
            found = _cells(self.frame, name, known) if known else None
            if known:
                codes = np.full(0, -1) if found is None else found
                cells.append(np.bincount(codes[codes >= 0], minlength=len(known)).astype(float))
                missing = float((codes < 0).sum())
                here = found is not None
            else:
                values = self.frame.numbers.get(name)
                here = values is not None
                numbers = _known(np.empty(0) if values is None else values)
                missing = float(len(values) - len(numbers)) if values is not None else 0.0
                places = np.searchsorted(EDGES, numbers, side="right")
                coarse.append(np.bincount(places, minlength=len(EDGES) + 1).astype(float))
            counts.append([rows - missing if here else 0.0, missing, 0.0 if here else rows])
        return {
            "rows": np.array([rows]),
            "counts": np.array(counts).reshape(-1, len(_KINDS)),
            "cells": np.concatenate([np.empty(0), *cells]),
            "coarse": np.array(coarse).reshape(-1, len(EDGES) + 1),
        }

    def _sums(self, phase: int, point: Arrays) -> dict[str, FloatArray]:
        numbers = self._numbers()
        units, centre = point["units"], point["centre"]
        shape = (len(numbers), len(QUANTILES))
        left, right = (point[name].reshape(shape) for name in ("left", "right"))
        sums: dict[str, FloatArray] = {
            "parts": np.array(
                [
                    [_parts(column, *ends) for ends in zip(left[at], right[at], strict=True)]
                    for at, column in enumerate(numbers)
                ]
            ).reshape(*shape, PARTS)
        }
        scaled = [column / unit for column, unit in zip(numbers, units, strict=True)]
        if phase == 1:
            ends = zip(numbers, point["low"], point["high"], strict=True)
            sums["sums"] = np.array([column.sum() for column in scaled])
            sums["bins"] = np.array([_parts(*one) for one in ends]).reshape(-1, PARTS)
        if phase == 2:
            pairs = zip(scaled, centre, strict=True)
            sums["squares"] = np.array([((column - mean) ** 2).sum() for column, mean in pairs])
        return sums


def _known(values: FloatArray) -> FloatArray:
    known: FloatArray = values[np.isfinite(values)]
    return known


def _cells(frame: Frame, name: str, known: Any) -> NDArray[np.int32] | None:
    """Return the codes of a column by the agreed categories, -1 for any other text."""
    factor = frame.factors.get(name)
    if factor is None:
        return None
    places = {level: place for place, level in enumerate(known)}
    moved = np.array([places.get(level, -1) for level in factor.levels] + [-1], np.int32)
    codes: NDArray[np.int32] = moved[factor.codes]
    return codes


def _parts(values: FloatArray, low: float, high: float) -> FloatArray:
    """Return how many values lie in each of `PARTS` equal parts of [low, high)."""
    inside = values[(values >= low) & (values < high)]
    if not len(inside) or not high > low:
        return np.zeros(PARTS)
    edges = low + np.arange(1, PARTS) * ((high - low) / PARTS)
    places = np.searchsorted(edges, inside, side="right")
    return np.bincount(places, minlength=PARTS).astype(float)
