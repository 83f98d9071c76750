"""A description by the groups of one column, as a paper's table 1 has it.

Each column is described once more within each group: as a further column, named by the group's
place, whose rows are those of the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .description_state import PARTS, QUANTILES
from .frame import AnalysisError, Levels

MOST_NUMBERS = 2**20
"""That a site sends in a round."""

SEPARATOR = "\x1f"
"""Between the name of a column and the place of a group; no header of a table has it."""


def numbers_of(levels: Levels, by: str) -> int:
    """Return how many numbers a site sends in the longest round of a description.

    Of a column of c categories they are c, of one of numbers as many as the parts that its
    quantiles' intervals are divided into; all but ``by`` once more within each of its groups.
    """
    of_numbers = len(QUANTILES) * PARTS
    every = sum(len(known) or of_numbers for known in levels.values())
    groups = len(levels.get(by, ()))
    return every * (groups + 1) - groups * groups


def with_groups(levels: Levels, by: str) -> Levels:
    """Return the columns with those within each group.

    Raises
    ------
    AnalysisError
        Where there are no groups, or before any work where a site would send too many numbers.
    """
    numbers, groups = numbers_of(levels, by), len(levels.get(by, ()))
    if numbers > MOST_NUMBERS:
        within = f" in {groups} groups of {by}" if groups else ""
        raise AnalysisError(
            f"only, by: {len(levels)} columns{within} take {numbers} numbers of a site in a "
            f"round, at most {MOST_NUMBERS}: name fewer"
        )
    if not by:
        return levels
    if not levels.get(by):
        there = [name for name, texts in levels.items() if texts]
        raise AnalysisError(
            f"by: {by} is no column of categories at every site; there are {', '.join(there)}"
        )
    found = dict(levels)
    for name, known in levels.items():
        if name != by:
            for place in range(len(levels[by])):
                found[f"{name}{SEPARATOR}{place}"] = known
    return found


def parted(name: str) -> tuple[str, int]:
    """Return a column's own name and its group's place, -1 where it is of all rows."""
    own, mark, place = name.partition(SEPARATOR)
    return own, int(place) if mark else -1


def nested(columns: Mapping[str, dict[str, Any]], groups: Sequence[str]) -> dict[str, Any]:
    """Return described columns with those of groups within them, and how far two groups differ."""
    found: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        own, place = parted(name)
        if place < 0:
            found[own] = {**column, "groups": {}}
        else:
            of_group = {key: value for key, value in column.items() if key != "by_site"}
            found[own]["groups"][groups[place]] = of_group
    for column in found.values():
        if len(column["groups"]) == 2:
            column["standardised_difference"] = _difference(*column["groups"].values())
        elif not column["groups"]:
            del column["groups"]
    return found


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> float | None:
    """Return the standardised difference of the second group to the first; None if unknown.

    Of numbers (m_2 - m_1) / sqrt((s_1^2 + s_2^2) / 2), of categories Mahalanobis' distance of the
    shares of all but the first: D. Yang and J. E. Dalton, SAS Global Forum 2012, paper 335.
    """
    if first["kind"] == "numbers":
        deviations = [float(one.get("sd") or 0.0) for one in (first, second)]
        if not any(deviations) or any("mean" not in one for one in (first, second)):
            return None
        spread = math.sqrt(sum(one * one for one in deviations) / 2)
        return float((second["mean"] - first["mean"]) / spread)
    counts = [list(one["categories"].values()) for one in (first, second)]
    if any(None in one or not sum(one) for one in counts):
        return None
    shares = [np.array(one, float)[1:] / sum(one) for one in counts]
    if not len(shares[0]):
        return 0.0
    covariances = [np.diag(one) - np.outer(one, one) for one in shares]
    apart = shares[1] - shares[0]
    middle = (covariances[0] + covariances[1]) / 2
    distance = math.sqrt(max(float(apart @ np.linalg.pinv(middle) @ apart), 0.0))
    return math.copysign(distance, apart[0]) if len(apart) == 1 else distance
