"""The format of worked instances, and the in-process engine that plays one.

An instance gives the problem, the parameters, the starting state, who takes part and the arrays
after every round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import DTypeLike, NDArray

from privet.agents.guard import NoiseFactory
from privet.core import ConfigError
from privet.core.errors import near_path
from privet.kernel import Problem
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    Regularizer,
    RidgeRegression,
    make_h,
    make_regularizer,
)
from privet.sim.engine import InlineGrid
from privet.sim.grid import NodeConfig
from privet.sim.inline import grid_of
from privet.strategies import All, Participation, PrimalDualStrategy, Schedule

FORMAT = 1
SAID = {"format", "title", "note", "told", "optimum"}
"""Fields that tell a reader of an instance; what is played stands in the others."""
OF_TASKS = {"agent", "told", "folded", "withdrawn"}
Arrays = dict[str, NDArray[Any]]
Found = dict[str, list[NDArray[Any]]]
"""Every copy of an array after a round, by name."""

MODELS: Mapping[str, tuple[Any, bool]] = {
    "logistic": (BinaryLogistic, False),
    "multinomial": (MultinomialLogistic, True),
    "one-class-logistic": (OneClassLogistic, True),
    "ridge": (RidgeRegression, False),
}
"""Kind of problem -> model, and whether it has classes."""


class ExplicitNoise:
    """The draws of an instance for one agent and round, handed out one after the other."""

    private = False

    def __init__(self, draws: NDArray[Any]) -> None:
        self._draws = draws.reshape(-1)
        self._taken = 0

    def gaussian(
        self, size: int | tuple[int, ...], scale: float, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Return the given draws, whatever the scale."""
        count = int(np.prod(size))
        self._taken += count
        return self._draws[self._taken - count : self._taken].reshape(size).astype(dtype)

    laplace = gaussian


@dataclass(frozen=True, slots=True)
class Instance:
    """One worked instance as read from its file."""

    algorithm: str
    compare: Sequence[str]
    problem: Mapping[str, Any]
    config: Mapping[str, Any]
    init: Mapping[str, Any]
    rounds: list[Mapping[str, Any]]
    participation: list[list[int]] | None = None
    noise: Any = None
    batches: Any = None
    tasks: Sequence[Mapping[str, Any]] = ()

    @contextmanager
    def delays(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of an asynchronous strategy, whose tasks end when the instance says.

        Version t is folded at second t. A task that is never folded ends after all versions.
        """
        if not self.tasks:
            yield {}
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / "tasks.csv"
            lines = ["agent,seconds"]
            for task in self.tasks:
                folded = task["folded"] or 2 * len(self.rounds)
                lines.append(f"{task['agent']},{folded - (task['told'] - 1)}")
            path.write_text("\n".join(lines) + "\n")
            yield {"asynchronous": True, "speeds": str(path)}

    def _away(self, version: int) -> frozenset[str]:
        """Return the agents that are away in a version.

        An agent goes away in the version in which its task is withdrawn, and is back in the one in
        which it is given another.
        """
        away: dict[str, bool] = {}
        for task in self.tasks:
            if task["told"] <= version:
                away[str(task["agent"])] = task.get("withdrawn", version + 1) <= version
        return frozenset(agent for agent, gone in away.items() if gone)

    @property
    def schedule(self) -> Participation:
        """Who takes part: everybody, or the given agents of every round."""
        if self.participation is None or self.tasks:
            return All()
        return Schedule(tuple(tuple(str(agent) for agent in own) for own in self.participation))

    def draws(self, pick: Callable[[Any, int], Any]) -> NoiseFactory | None:
        """Return what hands the given draws out; ``pick`` finds an agent's in those of a round."""
        if self.noise is None:
            return None
        return lambda agent, round_: ExplicitNoise(
            np.asarray(pick(self.noise[round_ - 1], int(agent)), float)
        )

    def grid(
        self, problems: Sequence[Problem], nodes: Sequence[NodeConfig] = (), **more: Any
    ) -> InlineGrid:
        """Return the engine whose agents hold the problems; ``more`` goes to the ClientApp."""
        return grid_of(self.algorithm, problems, nodes, **more)

    def play(
        self,
        strategy: PrimalDualStrategy,
        grid: InlineGrid,
        start: NDArray[Any],
        state: Any = None,
    ) -> Iterator[Any]:
        """Play the instance's rounds and yield the server's state after each."""
        session = strategy.begin(grid, ArrayRecord({"x": Array(start)}), state=state)
        for number in range(1, len(self.rounds) + 1):
            session.roster.excluded = self._away(number)
            strategy.play_round(grid, number)
            yield session.state


def load_instance(path: Path) -> Instance:
    """Read an instance.

    Raises
    ------
    ConfigError
        If the file is missing or not of this format, or has a field that is not played.
    """
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}{near_path(path)}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ConfigError(f"{path}: not a worked instance of format {FORMAT}")
    for one in fields(Instance):
        if one.default is MISSING and one.name not in raw:
            raise ConfigError(f"{path}: field {one.name!r} is missing")
    known = {one.name for one in fields(Instance)} | SAID
    unknown = [name for name in raw if name not in known]
    unknown += [f"tasks.{name}" for task in raw.get("tasks", ()) for name in task.keys() - OF_TASKS]
    if unknown:
        raise ConfigError(f"{path}: field {unknown[0]!r} is not played, and may change the result")
    return Instance(**{one.name: raw[one.name] for one in fields(Instance) if one.name in raw})


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config keys as arguments of a Strategy, those of h as one function."""
    plain = {key: value for key, value in config.items() if key != "h" and not key.startswith("h-")}
    found: dict[str, Any] = {key.replace("-", "_"): value for key, value in plain.items()}
    if "h" in config:
        weights = {key: value for key, value in config.items() if key.startswith("h-")}
        found["h"] = make_h(config["h"], **weights)
    return found


def build_problems(
    spec: Any, *, regularizer: Regularizer | None = None, divisor: float | None = None
) -> list[Problem]:
    """Return the agents' problems of an instance (raises ``ConfigError`` for an unknown kind).

    ``regularizer`` replaces the instance's own; ``divisor`` is that of all agents.
    """
    if regularizer is None and "beta" in spec:
        regularizer = make_regularizer("nonconvex", spec["beta"])
    elif regularizer is None:
        regularizer = make_regularizer(spec.get("regularizer", "none"), spec.get("weight", 0.0))
    kind = spec["kind"]
    if kind not in MODELS:
        raise ConfigError(f"problem kind {kind!r}: known are {', '.join(MODELS)}")
    model, classes = MODELS[kind]
    more: Any = (spec["classes"],) if classes else ()
    return [
        model(
            np.asarray(rows, float),
            np.asarray(targets, int if classes else float),
            *more,
            regularizer=regularizer,
            divisor=divisor,
        )
        for rows, targets in zip(
            spec["features"], spec.get("labels", spec.get("targets")), strict=True
        )
    ]
