"""What a run knows between its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from privet.wire import Layout

from .history import Round
from .roster import Roster


@dataclass
class Session:
    """The state of one run on the server."""

    experiment: str
    layout: Layout
    start: NDArray[Any]
    state: Any
    roster: Roster
    round: int = 0
    history: list[Round] = field(default_factory=list)
    settings_before: Mapping[str, Any] = field(default_factory=dict)
    """The agents' settings before a resume, empty in a run that was not resumed."""

    @classmethod
    def of(cls, experiment: str, arrays: ArrayRecord) -> Session:
        """Return the session of a run that starts from a model: without state and agents yet."""
        layout = Layout.of(arrays)
        return cls(experiment, layout, layout.flatten(arrays), None, Roster())


__all__ = ["Session"]
