"""The reasons why a run ends."""

from __future__ import annotations

from enum import StrEnum


class Stop(StrEnum):
    """The reasons of this library; an observer may give another one, any text.

    Examples
    --------
    >>> Stop.ROUNDS == "rounds"
    True
    """

    ROUNDS = "rounds"
    """All requested rounds are played."""
    TOLERANCE = "tolerance"
    """The stationarity is small enough."""
    BUDGET = "budget"
    """What was paid leaves nothing of ``target-epsilon`` for the next round."""
    UPLOADS = "uploads"
    """Every agent has sent ``max-uploads`` uploads."""
    REQUEST = "request"
    """The operator's request: SIGTERM, ``control.toml`` or the strategy's ``stopping``."""
    SHOULD_STOP = "should_stop"
    """The function of that name was true of a round."""
    DIVERGENCE = "divergence"
    """The run diverges, and ``on-divergence`` is not ``warn``."""
