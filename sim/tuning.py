"""One tuner for all algorithms: the same budget of settings, the same search, the same measure.

Every algorithm's Strategy names one or two of its parameters (``search``), each with a range in
units of the problem's moduli, searched on a logarithmic scale: the first part of the budget is
spread over the whole box (a Latin hypercube), the rest in batches around the best setting so far,
each batch in a box half as wide. A setting's score is the mean time to the tolerance over the tasks
(``race``); settings that arrive everywhere come before those that do not. One that does not arrive
on a task, or is far behind the best, is not run on the tasks that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.solver_agents import SolverAgent
from privet.core import ConfigError, algorithm
from privet.core.key import AUTO, read, same
from privet.kernel import Moduli, stream
from privet.kernel.programs.steps import STEPLESS
from privet.problems import SlopesL2
from privet.strategies import SearchAxis

from .race import RaceOutcome, RaceTask, race, read_searched

SPREAD = 0.4
"""Share of the budget that is spread over the whole box."""
BATCH = 6
"""Settings of a batch around the best."""
FAR = 1.5
"""A setting is far behind when its score so far is this many times the best."""
MOST = 300
"""Iterations at which a run is stopped."""
DEAR = 2.0
"""A run is also stopped at this many times the cost of the best setting's costliest run."""
UNKNOWN_MODULI = (
    "which these problems do not know: give smoothness, and strong-convexity where there is some"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter: run-config key and range, on a logarithmic scale.

    ``unit`` returns the unit of the range from the settings of the axes before it.
    """

    key: str
    low: float
    high: float
    whole: bool = False
    unit: Callable[[Mapping[str, Any]], float] | None = None

    def at(self, share: float, before: Mapping[str, Any]) -> float | int:
        """Return the value at a share (0 to 1) of the range, given the earlier settings."""
        value = self.low * (self.high / self.low) ** share
        if self.unit is not None:
            value *= self.unit(before)
        return max(1, round(value)) if self.whole else float(value)


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting that was tried, and its outcomes on the tasks it was run on."""

    settings: dict[str, Any]
    outcomes: tuple[RaceOutcome, ...]
    score: float

    @property
    def reached(self) -> bool:
        """True if all runs reached the tolerance."""
        return all(one.reached for one in self.outcomes)


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of trials and the cost that is minimised.

    Attributes
    ----------
    settings : int
        Settings that are run, for every algorithm alike.
    gradient_cost, communication_cost : float
        t_G and t_C of the time model.
    seed : int
        Seed of the search.
    """

    settings: int = 40
    gradient_cost: float = 1.0
    communication_cost: float = 10.0
    seed: int = 0

    def cost(self, gradients: float, messages: float) -> float:
        """Return gradients t_G + messages t_C, the Fed-PLT paper's computation time."""
        return gradients * self.gradient_cost + messages * self.communication_cost


def moduli_of(problems: Iterable[Any]) -> Moduli | None:
    """Return the least strong convexity and the largest smoothness, None where one is not known.

    Where a penalty leaves the intercept out it is the strong convexity in the other coordinates.
    """
    given = [_moduli(problem) for problem in problems]
    known = [moduli for moduli in given if isinstance(moduli, Moduli)]
    if len(known) < len(given):
        return None
    return Moduli(
        min(moduli.strong_convexity for moduli in known),
        max(moduli.smoothness for moduli in known),
    )


def _moduli(problem: Any) -> Any:
    moduli, term = getattr(problem, "moduli", None), getattr(problem, "regularizer", None)
    if isinstance(moduli, Moduli) and isinstance(term, SlopesL2):
        return Moduli(max(moduli.strong_convexity, term.weight), moduli.smoothness)
    return moduli


@dataclass(frozen=True)
class ModuliKeys:
    """The keys that give the moduli to a search, whether or not its runs use them."""

    strong_convexity: float = same(SolverAgent, "strong_convexity")
    smoothness: float = same(SolverAgent, "smoothness")


def given_moduli(given: Mapping[str, Any]) -> Moduli | None:
    """Return the moduli given by run-config keys, or None.

    Raises
    ------
    ConfigError
        If they cannot be moduli.
    """
    keys = read(ModuliKeys, given)
    low, high = keys.strong_convexity, keys.smoothness
    if not (math.isfinite(high) and math.isfinite(low)):
        raise ConfigError(f"smoothness = {high:g}, strong-convexity = {low:g}: must be finite")
    if high == 0 and low != 0:
        raise ConfigError(f"strong-convexity = {low:g}: give smoothness as well")
    if high < low:
        raise ConfigError(f"smoothness = {high:g}: must be >= strong-convexity = {low:g}")
    return Moduli(low, high) if high > 0 else None


def axes(
    name: str,
    moduli: Moduli | None,
    local_steps: int,
    *,
    solver: str = "gd",
    most_epochs: int = 0,
    given: Container[str] = (),
) -> tuple[Axis, ...]:
    """Return the parameters of an algorithm that are searched, with their ranges.

    Parameters
    ----------
    name : str
        Registered algorithm, whose Strategy has ``search``.
    moduli : Moduli, optional
        Moduli of the problem, the units of the ranges: `privet.strategies.SearchAxis`.
    local_steps : int
        Local steps of a round.
    solver : str
        The local solver; ``agd`` and ``newton`` have no step size to search.
    most_epochs : int
        Where > 0, the number of local steps is searched too, from 1 to this.
    given : container of str
        Keys that are given and not searched.

    Raises
    ------
    ConfigError
        If nothing is left to search, or a unit is not known.
    """
    kind = algorithm(name).load_strategy()
    if most_epochs and not kind.local_steps:
        raise ConfigError(f"tune {name!r}: it has no number of local steps to search")
    searched = [
        _in_units(axis, moduli, local_steps)
        for axis in kind.search
        if axis.key not in given and not (axis.key == "step-size" and solver in STEPLESS)
    ]
    if most_epochs:
        searched.append(Axis(kind.local_steps, 1, most_epochs, whole=True))
    if not searched and kind.search:
        raise ConfigError(f"tune {name!r}: nothing is left to search; leave one of its keys out")
    if not searched:
        raise ConfigError(
            f"tune {name!r}: its Strategy names nothing to search; give the class "
            "search = (SearchAxis(key, low, high, unit), ...), of privet.strategies"
        )
    return tuple(searched)


def _in_units(axis: SearchAxis, moduli: Moduli | None, local_steps: int) -> Axis:
    if axis.unit in ("plain", "epochs"):
        unit = 1.0 if axis.unit == "plain" else 1.0 / local_steps
        return Axis(axis.key, axis.low * unit, axis.high * unit)
    if moduli is None:
        raise ConfigError(f"{axis.key} is searched in units of the moduli, {UNKNOWN_MODULI}")
    if axis.unit == "subproblem":
        return Axis(axis.key, axis.low, axis.high, unit=partial(_subproblem_step, moduli))
    least = moduli.strong_convexity if moduli.strong_convexity > 0 else moduli.smoothness
    root = math.sqrt(least * moduli.smoothness)
    unit = {"smoothness": 1.0 / moduli.smoothness, "splitting": 1.0 / root, "curvature": root}[
        axis.unit
    ]
    return Axis(axis.key, axis.low * unit, axis.high * unit)


def _subproblem_step(moduli: Moduli, before: Mapping[str, Any]) -> float:
    convexity = max(0.0, moduli.strong_convexity)
    return 2.0 / (moduli.smoothness + convexity + 2.0 / float(before["rho"]))


def fixed(name: str, moduli: Moduli | None, local_steps: int, solver: str = "gd") -> dict[str, Any]:
    """Return the settings that are given and not searched."""
    kind = algorithm(name).load_strategy()
    settings: dict[str, Any] = {kind.local_steps: local_steps} if kind.local_steps else {}
    if solver != "gd":
        settings["local-solver"] = solver
    return settings if moduli is None else {**settings, **kind.assumed(moduli)}


def tune(
    name: str,
    tasks: Sequence[RaceTask],
    searched: Sequence[Axis],
    given: Mapping[str, Any],
    budget: Budget,
    *,
    workers: int | None = 1,
    address: str | None = None,
    progress: bool = False,
) -> list[Trial]:
    """Search an algorithm's settings; return all trials, the best first.

    Parameters
    ----------
    tasks : sequence of Task
        The score is the mean over these.
    searched, given
        Results of ``axes`` and ``fixed``.
    workers, address, progress
        Of ``privet.sim.sweep.sweep``, which runs the settings of a batch side by side.
    """
    from .sweep import sweep

    rng = stream(budget.seed, "tuning", name)
    spread = hypercube(rng, max(1, math.ceil(SPREAD * budget.settings)), len(searched))
    trials: list[Trial] = []
    points: list[NDArray[Any]] = []
    width, limit, dear = 1.0, math.inf, math.inf
    while (left := budget.settings - len(trials)) > 0:
        batch = spread[len(trials) :][: min(left, BATCH)]
        if not len(batch):
            width /= 2
            around = hypercube(rng, min(left, BATCH), len(searched)) - 0.5
            batch = np.clip(points[_best(trials)] + width * around, 0.0, 1.0)
        cases = [placed(given, searched, row) for row in batch]
        run = partial(_try, name, tuple(tasks), budget, limit, dear)
        trials += sweep(run, cases, workers=workers, address=address, progress=progress)
        points += list(batch)
        best = trials[_best(trials)]
        if best.reached:
            limit = FAR * best.score
            dear = DEAR * max(budget.cost(one.gradients, one.messages) for one in best.outcomes)
    return sorted(trials, key=_rank)


def tune_task(
    task: RaceTask, budget: Budget, *, most_epochs: int = 0, **processes: Any
) -> tuple[Moduli | None, list[Trial]]:
    """Search the settings of the algorithm that a task's config names, around those it gives.

    Where these leave the local solver open, the first run has no other settings: the answer is no
    worse than what a run chooses by itself. If that solves the subproblems, so do all runs, unless
    the number of local steps is searched.

    Parameters
    ----------
    task : Task
        As ``RaceTask.of`` makes it.
    most_epochs : int
        As in ``axes``.
    processes
        ``workers``, ``address`` and ``progress``, as in ``tune``.

    Returns
    -------
    moduli : Moduli or None
        Moduli that were the units of the search.
    trials : list of Trial
        The best first; the run without other settings has none.
    """
    given, config = task.config, read_searched(task.config)
    name, solver = config["algorithm"], config.get("local-solver", "gd")
    is_open, solver = solver == AUTO, "gd" if solver == AUTO else solver
    kind = algorithm(name).load_strategy()
    moduli = given_moduli(given) or moduli_of(task.problems)
    steps = config[kind.local_steps] if kind.local_steps else 1
    searched = axes(name, moduli, steps, solver=solver, most_epochs=most_epochs, given=given)
    usual: list[Trial] = []
    chosen: Mapping[str, Any] = {}
    if is_open:
        usual = [_try(name, (task,), budget, math.inf, math.inf, {})]
        chosen = usual[0].outcomes[0].chosen
    if chosen.get("local-solver") in STEPLESS and not most_epochs:
        solver = chosen["local-solver"]
        searched = axes(name, moduli, steps, solver=solver, given=given)
    settings = fixed(name, moduli, steps, solver)
    algorithm_keys = {*settings, *(axis.key for axis in kind.search)}
    settings |= {key: config[key] for key in given if key in algorithm_keys}
    if solver == chosen.get("local-solver"):
        settings = {**chosen, **settings}
    left = replace(budget, settings=budget.settings - len(usual))
    trials = tune(name, [task], searched, settings, left, **processes)
    return moduli, sorted([*usual, *trials], key=_rank)


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.reached, trial.score


def _best(trials: Sequence[Trial]) -> int:
    return min(range(len(trials)), key=lambda index: _rank(trials[index]))


def placed(
    given: Mapping[str, Any], searched: Sequence[Axis], shares: NDArray[Any]
) -> dict[str, Any]:
    """Return settings with the searched keys at these shares of their ranges."""
    settings = dict(given)
    for axis, share in zip(searched, shares, strict=True):
        settings[axis.key] = axis.at(share, settings)
    return settings


def hypercube(rng: np.random.Generator, count: int, dim: int) -> NDArray[Any]:
    """Return points of [0, 1]^dim, shape (count, dim), one in each of ``count`` slices per axis."""
    slices = np.stack([rng.permutation(count) for _ in range(dim)], axis=1)
    points: NDArray[Any] = (slices + rng.random((count, dim))) / count
    return points


def _try(
    name: str,
    tasks: tuple[RaceTask, ...],
    budget: Budget,
    limit: float,
    dear: float,
    settings: dict[str, Any],
) -> Trial:
    outcomes: list[RaceOutcome] = []
    scores: list[float] = []
    for task in tasks:
        one = race(
            name,
            settings,
            task,
            most=MOST,
            too_dear=lambda gradients, messages: budget.cost(gradients, messages) > dear,
        )
        outcomes.append(one)
        scores.append(one.score(task.tolerance, budget.cost))
        # Stopping early cannot make a setting win: it ranks after all that reach the tolerance, or
        # its mean is above the limit, which is above the best.
        if not one.reached or np.mean(scores) > limit:
            break
    return Trial(settings, tuple(outcomes), float(np.mean(scores)))
