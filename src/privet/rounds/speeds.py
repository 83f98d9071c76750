"""How long simulated agents take: a clock that no machine's speed has a part in.

A task of s local steps takes ``(task-latency + s step-seconds) f_i u`` seconds, where f_i is the
agent's own factor and u of each task is lognormal with deviation ``speed-jitter`` and median 1.
Tasks are computed at once; the clock only says in which order their uploads are folded.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from privet.core import ConfigError
from privet.core.key import setting
from privet.kernel import stream

MODELS = ("equal", "lognormal", "stragglers")


@dataclass(frozen=True)
class SpeedSettings:
    """The speeds of simulated agents; the fields are run-config keys."""

    topic: ClassVar[str] = "Asynchronous runs"

    speeds: str = setting(
        "",
        "simulation: how long agents take: equal, lognormal, stragglers, or a CSV file with the "
        "columns agent and seconds (of its tasks in order, repeated), or agent, away-from and "
        "back-at; empty: rounds take no time",
        path=MODELS,
    )
    speed_spread: float = setting(
        0.5,
        "deviation of the logarithm of the agents' factors",
        low=0,
        high=5,
        needs={"speeds": "lognormal"},
    )
    speed_jitter: float = setting(
        0.2,
        "deviation of the logarithm of a task's time",
        low=0,
        high=5,
        needs={"speeds": ("lognormal", "stragglers")},
    )
    slow_share: float = setting(
        0.1, "share of the agents that are slow", low=0, high=1, needs={"speeds": "stragglers"}
    )
    slow_factor: float = setting(
        10.0, "how many times as long slow agents take", low=1, needs={"speeds": "stragglers"}
    )
    task_latency: float = setting(
        10.0, "seconds of a task without its steps", low=0, needs={"speeds": None}
    )
    step_seconds: float = setting(1.0, "seconds of a local step", low=0, needs={"speeds": None})
    absences: float = setting(
        0.0,
        "probability that a task ends with an absence",
        low=0,
        high=1,
        needs={"speeds": None},
    )
    absence_seconds: float = setting(
        150.0, "mean length of an absence", low=0, needs={"absences": None}
    )


@dataclass(frozen=True)
class Speeds:
    """When the tasks of simulated agents end.

    Parameters
    ----------
    settings : SpeedSettings
    seed : int
        The run's.
    names : sequence of str
        All agents, sorted.

    Raises
    ------
    ConfigError
        If the file of a trace cannot be used.
    """

    settings: SpeedSettings
    seed: int
    names: Sequence[str]
    _seconds: dict[str, list[float]] = field(default_factory=dict, init=False)
    _away: dict[str, list[tuple[float, float]]] = field(default_factory=dict, init=False)
    _factors: dict[str, float] = field(default_factory=dict, init=False)
    _jitters: dict[str, list[float]] = field(default_factory=dict, init=False)
    _slow: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if self.settings.speeds not in ("", *MODELS):
            self._read(Path(self.settings.speeds))
        draws = {name: stream(self.seed, "slow", name).random() for name in self.names}
        count = round(self.settings.slow_share * len(self.names))
        object.__setattr__(self, "_slow", frozenset(sorted(draws, key=draws.__getitem__)[:count]))

    def factor(self, name: str) -> float:
        """Return f_i."""
        if name not in self._factors:
            self._factors[name] = self._drawn(name)
        return self._factors[name]

    def _drawn(self, name: str) -> float:
        settings = self.settings
        if settings.speeds == "lognormal":
            draw = stream(self.seed, "speed", name).standard_normal()
            return math.exp(settings.speed_spread * draw)
        if settings.speeds == "stragglers" and name in self._slow:
            return settings.slow_factor
        return 1.0

    def _jitter(self, name: str, number: int) -> float:
        """Return the logarithm of u of an agent's ``number``-th task, in deviations."""
        drawn = self._jitters.get(name, ())
        if number > len(drawn):  # a longer draw of a stream begins with the shorter ones
            drawn = stream(self.seed, "task", name).standard_normal(2 * number + 14).tolist()
            self._jitters[name] = drawn
        return drawn[number - 1]

    def finish(self, name: str, number: int, begun: float, steps: int) -> float:
        """Return when an agent's task ends, its ``number``-th, counted from 1.

        An absence while it works lengthens it; one at its end delays the next task's end.
        """
        settings = self.settings
        if name in self._seconds:
            seconds = self._seconds[name][(number - 1) % len(self._seconds[name])]
        else:
            seconds = (settings.task_latency + steps * settings.step_seconds) * self.factor(name)
            if settings.speeds in ("lognormal", "stragglers"):
                seconds *= math.exp(settings.speed_jitter * self._jitter(name, number))
        if settings.absences:
            coin = stream(self.seed, "absence", name, number)
            if coin.random() < settings.absences:
                seconds += coin.exponential(settings.absence_seconds)
        end = begun + seconds
        for gone, back in self._away.get(name, ()):
            if begun < back and gone < end:
                end += back - max(gone, begun)
        return end

    def _read(self, path: Path) -> None:
        try:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"speeds = {path}: {why}") from None
        for number, row in enumerate(rows, 2):
            try:
                name = row["agent"]
                if row.get("seconds"):
                    self._seconds.setdefault(name, []).append(_seconds(row["seconds"]))
                else:
                    span = _seconds(row["away-from"]), _seconds(row["back-at"])
                    self._away.setdefault(name, []).append(span)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(
                    f"speeds = {path}: line {number} has no agent with seconds, or with away-from "
                    "and back-at"
                ) from None
        for name, spans in self._away.items():
            self._away[name] = _disjoint(spans)
        unknown = sorted({*self._seconds, *self._away} - set(self.names))
        if not rows or unknown:
            what = f"no agent is called {', '.join(unknown)}" if unknown else "it is empty"
            raise ConfigError(f"speeds = {path}: {what}")


def _disjoint(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans of time in order, those that overlap as one."""
    found: list[tuple[float, float]] = []
    for gone, back in sorted(spans):
        if found and gone <= found[-1][1]:
            found[-1] = found[-1][0], max(back, found[-1][1])
        else:
            found.append((gone, back))
    return found


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value
