"""A description of all columns: counts, missing values, moments, quantiles and categories.

Nothing is merged but sums. Means are those of all rows; squares are summed about the pooled mean of
the round before, so that nothing cancels:

    round 1   rows, values and missing values of each column; of numbers, how many lie between which
              powers of two; of categories, how many have each
    round 2   sums of the numbers, in units of the largest of these powers, and finer counts
    round 3   how large the distances to the mean are, and finer counts
    round 4   these distances and their squares, in units of that size, and the last counts

A quantile is searched between public edges. Each round divides the interval that holds it into 64:
after three it is known to a 2^-18th of the distance of the powers of two that it lies between. The
q-quantile is the smallest value that at least a share q of the rows do not exceed; the lower end of
its interval is told, and how much larger it may be.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privet.core.mapped import blocks

from .analysis import Analysis, Arrays, Claim, Shapes
from .description_groups import nested, parted, with_groups
from .description_state import EDGES, PARTS, QUANTILES, SMALLEST, DescribeState
from .description_table import described_table, factor_of
from .frame import FloatArray, Frame, Levels
from .glm_state import packed
from .noised_description import NoisedLayout, Ranges
from .points import require_point, require_powers
from .possible import below_0, few_squares, no_counts
from .shown_columns import ShownColumns

log = logging.getLogger("flwr.privet")

ROUNDS = 4
_START = float(2**20)
_KINDS = ("values", "missing", "other")


@dataclass(frozen=True)
class DescribeAnalysis(Analysis[DescribeState]):
    """The description of a table's columns.

    Attributes
    ----------
    only : str
        Names of columns, separated by commas; empty for all.
    by : str
        A column of categories, by whose groups the others are described as well; empty for none.
    """

    name: ClassVar[str] = "describe"
    progress: ClassVar[type[Any]] = DescribeState
    needs_levels: ClassVar[bool] = False

    only: str = ""
    by: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        named = tuple(filter(None, (one.strip() for one in self.only.split(","))))
        return tuple(dict.fromkeys((*named, self.by))) if named and self.by else named

    @property
    def grouped_by(self) -> str:
        return self.by

    def factors(self, frame: Frame) -> tuple[str, ...]:
        texts = super().factors(frame)
        return (*texts, self.by) if self.by and self.by not in texts else texts

    def sums(self, frame: Frame, levels: Levels) -> DescribedSite:
        return DescribedSite(frame, levels, self.by)

    def noised(self, levels: Levels, ranges: Ranges) -> NoisedLayout:
        return NoisedLayout(levels, ranges)

    def guarded(self, sums: DescribedSite, least: int) -> DescribedSite:
        """Hide cells of 1 to ``least`` - 1 records; see `small_cells`.

        A column with fewer values, or of a few numbers with fewer rows of one of them, is one
        without any.
        """
        return DescribedSite(sums.frame, sums.levels, self.by, least)

    def unseen(self, sums: DescribedSite) -> DescribedSite:
        return DescribedSite(sums.frame, sums.levels, self.by, compares=True)

    def begin(self, levels: Levels) -> DescribeState:
        levels = with_groups(levels, self.by)
        numbers = sum(not known for known in levels.values())
        cells = sum(map(len, levels.values()))
        shape = (numbers, len(QUANTILES))
        zeros = np.zeros
        return DescribeState(
            *(math.nan, False, 0, 0.0, 0.0, 0.0),
            *(zeros((len(levels), len(_KINDS))), zeros(cells), zeros(cells)),
            zeros((numbers, len(EDGES) + 1)),
            *(np.ones(numbers), zeros(numbers), zeros(numbers)),
            *(np.ones(numbers), zeros(numbers), zeros(numbers)),
            *(zeros((numbers, PARTS)), zeros(shape), zeros(shape), zeros(shape)),
            *(zeros((0, len(levels), len(_KINDS))), zeros((0, cells)), zeros((0, cells))),
            *(zeros((0, numbers)), zeros((0, numbers)), packed(levels)),
        )

    def point(self, state: DescribeState) -> dict[str, FloatArray]:
        asked: dict[str, FloatArray] = {
            "phase": np.array([float(state.phase)]),
            "unit": np.array(_unit_of(state.rows)),
        }
        if state.phase:
            asked |= {"units": state.unit, "centre": state.mean, "sizes": state.size}
            asked |= {"low": state.low, "high": state.high}
            asked |= {"left": state.left.ravel(), "right": state.right.ravel()}
        return asked

    def shapes(self, state: DescribeState) -> Shapes:
        if not state.phase:
            return {
                "rows": (1,), "persons": (1,), "least": (1,), "counts": state.counts.shape,
                "cells": state.cells.shape, "hidden": state.hidden.shape,
                "coarse": state.coarse.shape,
            }  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = {"parts": (*state.left.shape, PARTS)}
        if state.phase == 1:
            shapes |= {"sums": state.mean.shape, "bins": state.bins.shape}
        if state.phase == 2:
            shapes["sizes"] = (len(state.mean), len(_SIZES))
        if state.phase >= ROUNDS - 1:  # at its end it is asked so again, while a site is away
            shapes |= {"sums": state.mean.shape, "squares": state.square.shape}
        return shapes

    def step(self, state: DescribeState, totals: Arrays) -> DescribeState:
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
            new = replace(new, size=_size(sums["sizes"] / values[:, None]))
        if state.phase == 3:
            moved = sums["sums"] / values
            square = np.maximum(sums["squares"] - values * moved**2, 0.0)
            mean = state.mean + moved * state.size
            new = replace(new, mean=mean, square=square * state.size**2)
        done = state.phase + 1 == ROUNDS
        return replace(new, phase=state.phase + 1, done=done, gap=0.0 if done else math.nan)

    def rows_said(self, state: DescribeState, sums: Arrays) -> float:
        """Return the rows of the table, which the first round alone counts."""
        return float(sums["rows"][0]) * _unit_of(state.rows) if not state.phase else math.nan

    def impossible(self, state: DescribeState, claim: Claim) -> str:
        """Say what the counts and squares of a site cannot be."""
        back, rows = _unit_of(state.rows), claim.rows
        sums = {name: array * back for name, array in claim.sums.items()}
        if not state.phase:
            return self._no_first(state, sums, rows, claim.sites)
        if math.isnan(rows):  # nothing is known of the site, such as one that came later
            rows = math.inf
        found = [no_counts("parts", sums["parts"])]
        found.append(no_counts("parts", sums["parts"].sum(axis=-1), rows))
        if "bins" in sums:
            found.append(no_counts("bins", sums["bins"]))
            found.append(no_counts("bins", sums["bins"].sum(axis=-1), rows))
        if "squares" in sums:
            found.append(below_0("squares", claim.sums["squares"]))
            found.append(few_squares(claim.sums["squares"], claim.sums["sums"], rows / back))
        if "sizes" in sums:
            found.append(below_0("sizes", sums["sizes"]))
        return next(filter(None, found), "")

    def _no_first(self, state: DescribeState, sums: Arrays, rows: float, sites: int) -> str:
        """Say what the counts of the first round cannot be: parts add up to their whole."""
        levels = json.loads(state.levels.tobytes())
        counts, of_factor = sums["counts"], np.array([bool(known) for known in levels.values()])
        ends = np.cumsum([len(known) for known in levels.values() if known], dtype=int)
        of_columns = [part.sum() for part in np.split(sums["cells"], ends)[:-1]]
        values = counts[~of_factor, 0]
        off = np.abs(sums["coarse"].sum(axis=1) - values) > 0.5
        return (
            no_counts("rows", sums["rows"])
            or no_counts("persons", sums["persons"], rows)
            or no_counts("least", sums["least"])
            or no_counts("counts", counts)
            or no_counts("counts", counts.sum(axis=1), rows)
            or no_counts("cells", sums["cells"])
            or no_counts("cells", np.array(of_columns), counts[of_factor, 0])
            or no_counts("hidden", sums["hidden"], sites)
            or no_counts("coarse", sums["coarse"])
            or ("coarse does not add up to the values" if off.any() else "")
        )

    def by_site(
        self, before: DescribeState, after: DescribeState, sites: Sequence[Arrays]
    ) -> DescribeState:
        back = _unit_of(before.rows)
        kept = _OF_SITES[before.phase]
        arrays: dict[str, Any] = {
            field: np.array([site[name] * back for site in sites]) for field, name in kept.items()
        }
        return replace(after, **arrays)

    def table(self, state: DescribeState) -> dict[str, Any]:
        levels = json.loads(state.levels.tobytes())
        table = described_table(state, levels)
        if self.by:
            table |= {"by": self.by, "columns": nested(table["columns"], levels[self.by])}
        return table


def _unit_of(rows: float) -> float:
    """Return the power of two that sums are divided by, so that they fit a secure sum."""
    return float(2.0 ** math.ceil(math.log2(rows))) if rows >= 1 else _START


_LOWEST, _HIGHEST = (int(math.log2(one)) for one in (SMALLEST, 2.0 * EDGES[-1]))
"""The powers of two that units of columns are."""
_SIZES = 2.0 ** (1.0 - 6.0 * np.arange(10))
"""Sizes of distances that are tried; all distances are below the first."""
_FINEST = -80
"""Sizes are at least 2^-80: the root mean square of the finest, on a grid of 2^-40."""


def _size(shares: FloatArray) -> FloatArray:
    """Return powers of two (C,) near the root mean square of distances.

    ``shares`` (C, sizes) are means of min(1, (distance / size)^2), on a grid of 2^-40. That of the
    first size above 2^-16 is taken: by the size before it, of 2^6 as much, the mean square without
    the 1 is at most 2^-4 of it, so that no squares in the result's unit exceed 2^12 a row.
    """
    found = np.ones(len(shares))
    for place, column in enumerate(shares):
        enough = np.flatnonzero(column > 2.0**-16)
        at = enough[0] if len(enough) else len(_SIZES) - 1
        if column[at] > 0:
            found[place] = 2.0 ** np.rint(np.log2(_SIZES[at] * np.sqrt(column[at])))
    return found


def _first(state: DescribeState, sums: Mapping[str, FloatArray]) -> DescribeState:
    """Return the state after the counts: units, ranges, and where the quantiles lie."""
    coarse = sums["coarse"]
    known = np.concatenate([[2.0 * EDGES[0]], EDGES, [2.0 * EDGES[-1]]])
    filled = coarse > 0
    first = np.where(filled.any(axis=1), filled.argmax(axis=1), len(EDGES) // 2)
    last = np.where(
        filled.any(axis=1), filled.shape[1] - 1 - filled[:, ::-1].argmax(axis=1), len(EDGES) // 2
    )
    low, high = known[first], known[last + 1]
    unit = np.maximum(np.maximum(abs(low), abs(high)), SMALLEST)
    places, below = _places(coarse, coarse.sum(axis=1))
    return replace(
        state,
        rows=float(sums["rows"][0]),
        persons=float(sums["persons"][0]),
        least=float(sums["least"][0]),
        counts=sums["counts"],
        cells=sums["cells"],
        hidden=sums["hidden"],
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


def _refined(state: DescribeState, parts: FloatArray) -> DescribeState:
    """Return the state with the part of each quantile's interval that holds it."""
    places, below = _places(parts, state.coarse.sum(axis=1), state.below)
    width = (state.right - state.left) / PARTS
    left = state.left + places * width
    right = np.where(places == PARTS - 1, state.right, left + width)
    return replace(state, left=left, right=right, below=below)


_OF_SITES: tuple[Mapping[str, str], ...] = (
    {"site_counts": "counts", "site_cells": "cells", "site_hidden": "hidden"},
    {"site_sums": "sums"},
    {},
    {"site_squares": "squares"},
)
"""What is kept of each site, by round."""


class DescribedSite:
    """What a site counts and sums of its own columns.

    ``levels`` are the agreed columns, and ``least`` the rows that a cell has at least. A site that
    ``compares`` says in its own log where its mean is the pooled one in another unit.
    """

    def __init__(
        self,
        frame: Frame,
        levels: Levels,
        by: str = "",
        least: int = 1,
        *,
        compares: bool = False,
    ) -> None:
        self.frame, self.levels, self._compares = frame, levels, compares
        self.num_examples = frame.rows
        self.left_out: Mapping[str, int] = {}
        self._least = least
        self._all = with_groups(levels, by)
        self._columns = ShownColumns(frame, levels, by, least)
        self._of_numbers = [name for name, known in self._all.items() if not known]

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        numbers = len(self._of_numbers)
        shapes: Shapes = dict.fromkeys(("units", "centre", "sizes", "low", "high"), (numbers,))
        ends: Shapes = dict.fromkeys(("left", "right"), (numbers * len(QUANTILES),))
        require_point(point, {**shapes, **ends, "phase": (1,)})
        share = 1.0 / float(point["unit"])
        phase = int(point["phase"][0])
        if phase:
            require_powers(point, "units", _LOWEST, _HIGHEST)
            require_powers(point, "sizes", _FINEST, 1)
        sums = self._counts() if not phase else self._sums(phase, point)
        return {name: array * share for name, array in sums.items()}

    @property
    def _persons(self) -> int:
        """Whose rows they are: few rows beyond one a person would be a cell, and count as none."""
        rows, persons = self.frame.rows, self.frame.persons
        return rows if 0 < rows - persons < self._least else persons

    def _counts(self) -> dict[str, FloatArray]:
        counts, cells, unknown, coarse = [], [], [], []
        for name, known in self._all.items():
            rows, here = self._columns.rows(name), self._columns.is_here(parted(name)[0])
            if known:
                values, of_column, out = self._columns.cells(name)
                cells.append(of_column)
                unknown.append(out.astype(float))
            else:
                values = float(len(self._columns.numbers(name)))
                places, numbers = self._columns.places(name)
                parts = np.searchsorted(EDGES, places, side="right")
                coarse.append(np.bincount(parts, numbers, len(EDGES) + 1).astype(float))
            counts.append([values, rows - values if here else 0.0, 0.0 if here else rows])
        return {
            "rows": np.array([float(self.frame.rows)]),
            "persons": np.array([float(self._persons)]),
            "least": np.array([self._least - 1.0]),
            "counts": np.array(counts).reshape(-1, len(_KINDS)),
            "cells": np.concatenate([np.empty(0), *cells]),
            "hidden": np.concatenate([np.empty(0), *unknown]),
            "coarse": np.array(coarse).reshape(-1, len(EDGES) + 1),
        }

    def _compare(self, units: FloatArray, centre: FloatArray) -> None:
        """Write into the site's own log where its mean is the pooled one in another unit."""
        for name, unit, mean in zip(self._of_numbers, units, centre, strict=True):
            own, pooled = self._columns.moments(name), float(mean * unit)
            guess = factor_of(own.mean / pooled, math.nan) if own.number and pooled else ""
            if guess and parted(name)[1] < 0:
                log.warning(
                    "column %s: the mean is %.4g here, and %.4g of all sites: another unit? "
                    "(%s)", name, own.mean, pooled, guess,
                )  # fmt: skip

    def _sums(self, phase: int, point: Arrays) -> dict[str, FloatArray]:
        units, centre, sizes = point["units"], point["centre"], point["sizes"]
        shape = (len(self._of_numbers), len(QUANTILES))
        left, right = (point[name].reshape(shape) for name in ("left", "right"))
        low, high = point["low"], point["high"]
        parts: FloatArray = np.zeros((*shape, PARTS))
        bins: FloatArray = np.zeros((len(self._of_numbers), PARTS))
        for at, name in enumerate(self._of_numbers):
            places = self._columns.places(name)
            for of_quantile, ends in enumerate(zip(left[at], right[at], strict=True)):
                parts[at, of_quantile] = _parts(*places, *ends)
            if phase == 1:
                bins[at] = _parts(*places, low[at], high[at])
        sums = {"parts": parts}
        moments = [self._columns.moments(name) for name in self._of_numbers]
        if phase == 1:
            scaled = zip(moments, units, strict=True)
            sums["sums"] = np.array([one.distances(0.0, unit) for one, unit in scaled])
            sums["bins"] = bins
        elif phase == 2:
            if self._compares:
                self._compare(units, centre)
            sums["sizes"] = self._sizes(units, centre)
        else:
            asked = list(zip(moments, centre * units, sizes * units, strict=True))
            sums["sums"] = np.array([one.distances(*point) for one, *point in asked])
            sums["squares"] = np.array([one.squares(*point) for one, *point in asked])
        return sums

    def _sizes(self, units: FloatArray, centre: FloatArray) -> FloatArray:
        """Return the sums of min(1, (distance / size)^2): of places alone, where these are shown,
        as they would say how many numbers equal a centre."""
        found: FloatArray = np.zeros((len(self._of_numbers), len(_SIZES)))
        for at, name in enumerate(self._of_numbers):
            places, numbers = self._columns.places(name)
            distances = places / units[at]
            distances -= centre[at]
            np.abs(distances, out=distances)
            near = np.empty_like(distances)
            for of_size, size in enumerate(_SIZES):
                np.divide(distances, size, out=near)
                np.minimum(near, 1.0, out=near)
                np.square(near, out=near)
                found[at, of_size] = near.sum() if numbers is None else near @ numbers
        return found


def _parts(places: FloatArray, numbers: FloatArray | None, low: float, high: float) -> FloatArray:
    """Return how many numbers lie in each of `PARTS` equal parts of [low, high)."""
    found = np.zeros(PARTS)
    if not high > low:
        return found
    edges = low + np.arange(1, PARTS) * ((high - low) / PARTS)
    for rows in blocks(places):  # of counts any order of summing is exact
        some = places[rows]
        inside = (some >= low) & (some < high)
        parts = np.searchsorted(edges, some[inside], side="right")
        found += np.bincount(parts, None if numbers is None else numbers[rows][inside], PARTS)
    return found
