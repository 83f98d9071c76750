"""What a site sums for survival curves: counts by group and time, and its own log-rank sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privet.kernel import Told

from .analysis import Arrays
from .disclosure import require_large_left_out, require_large_strata
from .frame import AnalysisError, Codes, FloatArray
from .grid import DOUBLINGS, GridTimes
from .kaplan_meier_table import numbers_at_risk
from .log_rank import log_rank_sums
from .points import require_grid, require_point

MOST_CELLS = 2**20
"""Counts of a grid by group and time, at most."""


def require_cells(times: int, groups: int) -> None:
    """Refuse a grid of too many times and groups (raises ``AnalysisError``)."""
    if times * groups > MOST_CELLS:
        raise AnalysisError(
            f"time-unit: a grid of {times} times for {groups} groups is over {MOST_CELLS} counts: "
            "set a larger time-unit, or a horizon"
        )


@dataclass(frozen=True, eq=False)
class CurveSums:
    """A site's times on the grid, by group and the site's own strata.

    Attributes
    ----------
    times : GridTimes
    groups, strata : int32 arrays (n,)
    num_groups : int
    last : int
        The cell of a public horizon; 0 without one.
    truncated : bool
        Whether there are times of entry.
    left_out : mapping of str to int
    dropped : tuple of int
        Those of them that lack no value: who enter after the horizon, whose times or events cannot
        be used, and `follow_up.late_rows`.
    """

    times: GridTimes
    groups: Codes
    strata: Codes
    num_groups: int
    last: int
    truncated: bool
    left_out: Mapping[str, int]
    dropped: tuple[int, ...] = ()

    @property
    def num_examples(self) -> int:
        """The complete cases that are at risk before the horizon."""
        return len(self.groups)

    def merged(self, least: int) -> CurveSums:
        """Return these with intervals of the grid merged until no count is 1 to ``least`` - 1.

        It is the site that merges, before anything leaves it: the rule is the site's own and
        cannot count on the rows of others, with and without secure sums, and a merge of the sums
        would have shown the coordinator what it is to hide. All sums then are of the moved times,
        the log-rank's too.

        Raises
        ------
        AnalysisError
            Without a public horizon, or if a stratum or the whole grid has too few rows of a kind.
        """
        if least <= 1:
            return self
        if not self.last:
            raise AnalysisError(
                "horizon: a node with min-cell needs a public horizon, since the largest time of "
                "its rows is a record's",
                Told.HORIZON,
            )
        require_large_left_out(self.dropped, least)
        if self.strata.any():
            factors = (("the group", self.groups), ("the event", self.times.event.astype(np.int32)))
            require_large_strata(self.strata, (), factors, least)
        merged = replace(self, times=self.times.merged(self.groups, self.last, least))
        if any(((counts > 0) & (counts < least)).any() for counts in merged._counts(self.last)):
            raise AnalysisError(
                f"min-cell: a group has fewer than {least} events, censored rows or entries at "
                "this site",
                Told.SMALL_CELL,
            )
        times = merged.times
        if 0 < times.off_grid < least:  # that there are some is what the table says
            times = replace(times, off_grid=least)
        return replace(merged, times=times)

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        require_point(point, {})
        unit = float(point["unit"])
        if "cells" not in point:
            return {name: value / unit for name, value in self._bound().items()}
        most = self.last or MOST_CELLS // self.num_groups
        cells = require_grid(float(point["cells"]), self.last or 1, most)
        events, censored, entries = self._counts(cells)
        excess, variance = np.zeros(self.num_groups), np.zeros((self.num_groups,) * 2)
        order = np.argsort(self.strata, kind="stable")
        starts = np.flatnonzero(np.diff(self.strata[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            if len(rows) < 2:
                continue  # nobody is compared with another
            one = log_rank_sums(*self._at_risk(rows))
            excess += one.excess
            variance += one.variance
        sums = {
            "events": events,
            "censored": censored,
            "entries": entries if self.truncated else entries[:0, :0],
            "off_grid": np.array(float(self.times.off_grid)),
            "excess": excess,
            "variance": variance,
        }
        return {name: value / unit for name, value in sums.items()}

    def _bound(self) -> dict[str, FloatArray]:
        """Return the number of rows, and of those who leave after 2^k units for k = 0, 1, ..."""
        edges = 1 << np.arange(0 if self.last else DOUBLINGS, dtype=np.int64)
        later = (self.times.cell[:, None] > edges).sum(axis=0).astype(float)
        return {
            "rows": np.array(float(self.num_examples)),
            "later": later,
            "left_out": np.array(list(self.left_out.values()), np.float64),
        }

    def _counts(self, cells: int) -> tuple[FloatArray, ...]:
        """Return events, censored rows and entries, each (groups, cells + 1)."""
        return self._counted(self.times, self.groups, cells)

    def _counted(self, times: GridTimes, groups: Codes, cells: int) -> tuple[FloatArray, ...]:
        kinds = (
            (times.event, times.cell),
            (~times.event, times.cell),
            (times.entry >= 0, times.entry),
        )
        counts = [np.zeros((self.num_groups, cells + 1)) for _ in kinds]
        for count, (chosen, places) in zip(counts, kinds, strict=True):
            # No time passes the grid of who follows the protocol, and no error says so to others.
            np.add.at(count, (groups[chosen], np.minimum(places[chosen], cells)), 1.0)
        return tuple(counts)

    def _at_risk(self, rows: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return events and numbers at risk of some rows, at the times that these have alone.

        So a stratum of few rows costs as little, however long the grid is.
        """
        own = self.times.taken(rows)
        entered = own.entry >= 0
        places = np.union1d(own.cell, own.entry[entered])
        entry = np.where(entered, np.searchsorted(places, own.entry), -1)
        times = replace(own, cell=np.searchsorted(places, own.cell), entry=entry)
        events, censored, entries = self._counted(times, self.groups[rows], len(places))
        return events, numbers_at_risk(events, censored, entries)
