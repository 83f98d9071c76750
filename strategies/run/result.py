"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from .account import Privacy
from .history import Round


@dataclass
class PrivetResult(Result):
    """Flower's result with everything else a primal-dual run knows.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        Besides ``"last"`` (= ``arrays``), e.g. the mean of the agents' models.
    history : list of Round
        One entry per round, those before a resume included.
    stopped : str
        Why the run ended: ``"rounds"``, ``"tolerance"``, or the reason an observer gave.
    privacy : Privacy, optional
        What the run promises, and what every agent released.
    """

    models: dict[str, ArrayRecord] = field(default_factory=dict)
    history: list[Round] = field(default_factory=list)
    stopped: str = "rounds"
    privacy: Privacy | None = None


__all__ = ["PrivetResult"]
