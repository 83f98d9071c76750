"""What a run says of its distance to the pooled optimum, by its own estimate.

Methods that estimate it have the measure `ESTIMATE` in their rounds; of the others nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .optimum_distance import ESTIMATE
from .session import Round

ENOUGH = 1e-6
"""Estimated error at which ``tolerance = auto`` ends a run: six digits of the model."""
REACHED = 1e-3
"""Estimated error up to which the pooled optimum counts as reached."""
_WINDOW = 10
"""Rounds from which the rate is taken."""
_SLOWEST = 0.995
"""Factor of a round above which the error counts as no longer falling."""


def estimated_error(history: Sequence[Round]) -> float:
    """Return the estimated error after the last round, NaN where there is none."""
    return history[-1].measures.get(ESTIMATE, math.nan) if history else math.nan


def rounds_to(history: Sequence[Round], goal: float) -> int | None:
    """Return about how many more rounds bring the estimated error to ``goal``.

    The error is taken to go on falling by the factor of the last rounds; None where it is unknown,
    or has not fallen.
    """
    known = [(done.round, done.measures[ESTIMATE]) for done in history if ESTIMATE in done.measures]
    known = known[-_WINDOW:]
    last = estimated_error(history)
    if len(known) < 2 or not last > 0 or not known[0][1] > 0:
        return None
    rate = math.log(last / known[0][1]) / (known[-1][0] - known[0][0])
    if rate > math.log(_SLOWEST):
        return None
    return max(0, math.ceil(math.log(goal / last) / rate))


def nearness(history: Sequence[Round]) -> str:
    """Return how far the model is from the pooled optimum and what to change, "" if unknown."""
    error = estimated_error(history)
    if math.isnan(error):
        return ""
    if error <= REACHED:
        return f"reached within {error:.1e} of the model's norm, by the run's own estimate"
    more = rounds_to(history, REACHED)
    if more is not None:
        total = history[-1].round + more
        remedy = f"about {more} more rounds give {REACHED:g} (num-server-rounds = {total})"
    else:
        remedy = (
            "it no longer falls: more rounds do not help, but a larger share of the agents in a "
            "round or dtype = float64 may"
        )
    return (
        f"not reached: at most about {error:.1e} of the model's norm away, by the run's own "
        f"estimate; {remedy}"
    )
