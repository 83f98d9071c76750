"""The one rule by which an entry is judged, written before the runs it is used on.

An entry says that a quantity lies in a region: a printed number v in [.8 v, 1.2 v], which is the
tolerance; a claim that a is above b, a - b in (0, inf). Ours is an interval from the spread over
the seeds, by Student's t, at the level 1 - .05 / m: m is the number of entries of the paper that
are so judged (Bonferroni), which its data file states, so that of a paper's verdicts none is wrong
by chance in 19 of 20 repetitions of them all. What its seeds left open may have a second look by
further seeds alone (`study.Study.judge`): over both looks it is 18 of 20. The interval is

    inside the region                   the entry agrees,
    outside of it                       the entry differs,
    across an end of it, or missing     the entry is not determined.

The two sides are alike, for tables, figures and numbers. An entry that agrees is *reproduced*, one
that differs *contradicted*, where everything that it depends on is printed and was run as printed.
Where a setting is not printed, or ours is another, it *agrees* or *differs under changed settings*,
and no more is said. Where what is not printed has several readings, it agrees (differs) if it does
so under each. A claim about several gaps agrees if all of them do, and differs if one does, at the
level 1 - .05 / (m k) for k gaps. A value of one run has no interval, unless nothing in the run is
random; a run that does not arrive has none either. What was tuned to an end of its grid is not
tuned: the entry is not determined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .statistics import Estimate

FAMILY = 0.05
"""Chance of a wrong verdict among all entries of a paper."""
TOLERANCE = 0.2
"""Share of a printed number by which ours may be off."""
BETTER, UNDECIDED, WORSE = "better", "undecided", "worse"
"""What the interval of a difference to a reference says."""


class Side(StrEnum):
    """Where the interval lies."""

    INSIDE = "as printed"
    OUTSIDE = "the opposite was measured"
    OPEN = "alike within the spread"
    MISSING = "not all arrive"
    SINGLE = "one run has no interval"


@dataclass(frozen=True, slots=True)
class Gap:
    """A quantity of ours and the region that an entry says it lies in.

    Attributes
    ----------
    ours : Estimate
    low, high : float
        The region's ends.
    exact : bool
        Whether nothing in ours is random.
    """

    ours: Estimate
    low: float = 0.0
    high: float = math.inf
    exact: bool = False

    @classmethod
    def around(cls, printed: float, ours: Estimate, within: float, *, exact: bool = False) -> Gap:
        """Return ours beside a printed number and its tolerance."""
        reach = within * abs(printed) + 1e-12
        return cls(ours, printed - reach, printed + reach, exact)

    def side(self, tests: int) -> Side:
        """Return where the interval at the level 1 - .05 / ``tests`` lies."""
        if not self.ours.complete or math.isnan(self.ours.mean):
            return Side.MISSING
        if self.ours.tried == 1 and not self.exact:
            return Side.SINGLE
        own = self.ours.at(FAMILY / tests)
        return side_of(own.low, own.high, self.low, self.high)


def side_of(low: float, high: float, least: float, most: float = math.inf) -> Side:
    """Return where the interval (low, high) lies of the region (least, most)."""
    if low > least and high < most:
        return Side.INSIDE
    return Side.OUTSIDE if high < least or low > most else Side.OPEN


def better_or_worse(low: float, high: float, equal: float = 0.0) -> str:
    """Return what an interval says of a difference or (``equal`` = 1) of a ratio, in a word."""
    return {Side.INSIDE: BETTER, Side.OUTSIDE: WORSE}.get(side_of(low, high, equal), UNDECIDED)


def standing(gaps: Sequence[Estimate], family: float = FAMILY) -> list[str]:
    """Return in a word what each of several differences says, by Holm's procedure.

    They are taken by their chance p under no difference, the smallest first: the k-th of m stands
    while p <= family / (m - k + 1), and none after the first that does not. So the chance of any
    wrong word among all of them is at most ``family`` (S. Holm, Scandinavian Journal of Statistics
    6, 1979, 65-70).
    """
    words = [UNDECIDED] * len(gaps)
    known = [at for at, one in enumerate(gaps) if not math.isnan(one.chance)]
    for rank, at in enumerate(sorted(known, key=lambda one: gaps[one].chance)):
        if gaps[at].chance > family / (len(gaps) - rank):
            break
        words[at] = BETTER if gaps[at].mean > 0 else WORSE
    return words


def all_of(gaps: Sequence[Gap], entries: int) -> Side:
    """Return where a claim about several gaps lies."""
    if any(gap.side(entries * len(gaps)) is Side.OUTSIDE for gap in gaps):
        return Side.OUTSIDE
    return _worst(gap.side(entries) for gap in gaps)


def _worst(sides: Iterable[Side]) -> Side:
    """Return INSIDE where all are, else what is in the way."""
    own = list(sides)
    for side in (Side.MISSING, Side.SINGLE, Side.OPEN, Side.OUTSIDE):
        if side in own:
            return Side.OPEN if side is Side.OUTSIDE else side
    return Side.INSIDE


def under_each(readings: Mapping[str, Sequence[Gap]], entries: int) -> tuple[Side, str]:
    """Return where an entry lies under all readings, and in words what was found under which."""
    sides = {name: all_of(gaps, entries) for name, gaps in readings.items()}
    found = set(sides.values())
    if len(found) == 1:
        (side,) = found
        return side, "" if side in (Side.INSIDE, Side.OUTSIDE) else str(side)
    return Side.OPEN, "; ".join(f"{name}: {side}" for name, side in sides.items())
