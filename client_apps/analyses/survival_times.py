"""The run-config keys of times to an event, which several analyses have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.core.key import setting


@dataclass(frozen=True)
class SurvivalTimes:
    """The columns of times to an event."""

    topic: ClassVar[str] = "Analyses"

    time_column: str = setting(
        "", "column of the times until the event, or until censoring; not empty"
    )
    event_column: str = setting(
        "", "column that says whether the event was seen, 1 and 0 or two categories; not empty"
    )
    entry_column: str = setting(
        "", "column of the times from which a row is observed (left truncation); empty for none"
    )
    event_level: str = setting(
        "", "category of event-column that is the event; empty takes the second of two"
    )
    strata_column: str = setting("", "column of strata within each site; empty for none")
