"""Why a run ends."""

from __future__ import annotations

from enum import StrEnum


class Stop(StrEnum):
    """The reasons of this library; an observer may give another one, any text.

    >>> Stop.ROUNDS == "rounds"
    True
    """

    ROUNDS = "rounds"
    """All rounds that were asked for are played."""
    TOLERANCE = "tolerance"
    """The stationarity is small enough."""
    REQUEST = "request"
    """The operator asked for it: SIGTERM, ``control.toml`` or the strategy's ``stopping``."""
    SHOULD_STOP = "should_stop"
    """The function of that name was true of a round."""
    DIVERGENCE = "divergence"
    """The run blows up, and ``on-divergence`` is not ``warn``."""
