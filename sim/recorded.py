"""Play the history of a run again whose uploads were folded as they came.

``history.jsonl`` says of every upload which version folded it and which one its agent had been
sent. That is all that such a run depends on beside its config: agents are asked in the versions
recorded, and their uploads come when the recorded version ends. Tasks that were lost or withdrawn
moved nothing, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from privet.core import ConfigError, RunError
from privet.rounds.collect.round import OpenRound
from privet.rounds.collect.tasks import Tasks
from privet.rounds.options import RunOptions
from privet.rounds.run import Run
from privet.rounds.session import Session
from privet.server_apps.build import build_federation, build_strategy, starting_model
from privet.server_apps.config import read_config
from privet.server_apps.model_file import load_model
from privet.server_apps.report.runs import HISTORY, SUMMARY, read_history, read_json
from privet.strategies import Round
from privet.wire.contract import means_privacy

from .engine import InlineGrid
from .inline import configured_app

PLACES = ("output-dir", "resume", "track")
"""Keys of a run that its replay has no use for."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of a replay.

    Attributes
    ----------
    folder : Path
        The run's.
    algorithm : str
    versions : int
        The number of them.
    max_abs_error : float
        The largest absolute difference of the last models, and of the residuals of all versions.
    """

    folder: Path
    algorithm: str
    versions: int
    max_abs_error: float

    def to_dict(self) -> dict[str, Any]:
        """Return the line that ``privet replay`` prints."""
        error = self.max_abs_error
        return {
            "file": str(self.folder),
            "algorithm": self.algorithm,
            "rounds": self.versions,
            "max-abs-error": error if np.isfinite(error) else "inf",
        }


def replay_run(folder: Path) -> Recorded:
    """Play a run's history again in this process.

    Raises
    ------
    ConfigError
        If the run was private, or waited for all replies: there is nothing to be played again.
    RunError
        If its folder lacks a history, a summary or a model, or they are damaged or do not fit.
    """
    history, repairs = read_history(folder / HISTORY)
    settings = read_json(folder / SUMMARY).get("config")
    if settings is None or repairs:
        why = repairs[0] if repairs else f"{SUMMARY} with an entry 'config' was expected"
        raise RunError(f"{folder} cannot be played again: {why}")
    config = read_config({k: v for k, v in settings.items() if k not in PLACES})
    if not history or not all(done.versions for done in history):
        raise ConfigError(f"{folder}: its rounds waited for all replies: there is no schedule")
    _require_schedule(folder, history)
    strategy = build_strategy(config)
    if means_privacy(strategy.half.settings()):
        raise ConfigError(f"{folder}: a private run's noise cannot be drawn again")
    strategy.options = replace(strategy.options, round_timeout=float("inf"))
    grid = InlineGrid(configured_app(), int(config["num-agents"]), config)
    run = strategy.run = Run.begin(
        strategy.half,
        replace(strategy.options, rounds=len(history)),
        grid,
        starting_model(config, build_federation(config).dim),
    )
    unknown = {
        name for done in history for name in done.participants
    } - run.session.roster.agents.keys()
    if unknown:
        raise RunError(f"{folder}: no agent of the replay is called {', '.join(sorted(unknown))}")
    run.collector = _Schedule(run.options, history)
    differences = []
    for done in history:
        again = strategy.play_round(grid, done.round)
        pair = np.array([done.residual, again.residual])
        if np.isnan(pair).all():
            continue
        differences.append(abs(float(pair[0] - pair[1])))
    model, recorded = run.session.restore(run.model), load_model(folder).arrays
    for name, array in model.items():
        if recorded.get(name, np.empty(0)).shape != tuple(array.shape):
            raise RunError(f"{folder}: its model.npz has no array {name!r} of {array.shape}")
        difference = np.abs(recorded[name] - array.numpy())
        differences.append(float(np.max(difference, initial=0.0)))
    return Recorded(folder, strategy.half.name, len(history), float(np.max(differences)))


def _require_schedule(folder: Path, history: Sequence[Round]) -> None:
    """Refuse a history that no run leaves: a replay would wait for its uploads for ever."""
    folded: dict[str, int] = {}
    for number, done in enumerate(history, 1):
        for name, sent in zip(done.participants, done.versions, strict=True):
            if done.round != number or not folded.get(name, 0) < sent <= number:
                raise RunError(
                    f"{folder} cannot be played again: {HISTORY} says that in round {done.round}, "
                    f"the {number}th, agent {name} was folded, which was asked in round {sent}"
                )
            folded[name] = number


class _Ends:
    """In place of `Speeds`: an agent's upload comes when the version ends that folded it."""

    def __init__(self, names: Sequence[str], folded: Mapping[str, list[int]]) -> None:
        self.names, self._folded = names, folded

    def finish(self, name: str, number: int, begun: float, steps: int) -> float:
        return float(self._folded[name][number - 1])


class _Schedule(Tasks):
    """Tasks by a recorded history; the clock counts versions."""

    def __init__(self, options: RunOptions, history: Sequence[Round]) -> None:
        super().__init__(options)
        self._asked: dict[int, set[str]] = {}
        self._folded: dict[str, list[int]] = {}
        self._count = {done.round: len(done.participants) for done in history}
        for done in history:
            for name, sent in zip(done.participants, done.versions, strict=True):
                self._asked.setdefault(sent, set()).add(name)
                self._folded.setdefault(name, []).append(done.round)

    def choose(self, options: RunOptions, session: Session, number: int) -> list[str]:
        names = session.roster.names
        self._available = len(names)
        self._speeds = cast(Any, _Ends(names, self._folded))
        return [name for name in names if name in self._asked.get(number, ())]

    def _missing(self, opened: OpenRound) -> int:
        return min(len(opened.session.tasks), self._count[opened.number] - len(self.ended))
