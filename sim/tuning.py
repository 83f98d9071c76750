"""One tuner for all algorithms: the same budget of settings, the same search, the same measure.

Every algorithm has one or two parameters of its own, each with a range in units of the problem's
moduli, searched on a logarithmic scale: the first part of the budget is spread over the whole box
(a Latin hypercube), the rest in batches around the best setting so far, each batch in a box half
as wide. A setting's score is the mean time to the tolerance over the tasks (``race``); settings
that arrive everywhere come before those that do not. One that does not arrive on a task, or is far
behind the best, is not run on the tasks that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.problems import Moduli
from privet.sim.race import Outcome, Task, race
from privet.wire import ConfigError, stream

SPREAD = 0.4
"""Share of the budget that is spread over the whole box."""
BATCH = 6
"""Settings of a batch around the best."""
FAR = 1.5
"""A setting is far behind when its score so far is this many times the best."""
MOST = 300
"""Iterations at which a run is stopped."""
DEAR = 2.0
"""It is stopped as well at this many times the cost of the best setting's dearest run."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter: run-config key and range, on a logarithmic scale.

    ``unit`` gives, from the settings of the axes before it, what the range is in units of.
    """

    key: str
    low: float
    high: float
    whole: bool = False
    unit: Callable[[Mapping[str, Any]], float] | None = None

    def at(self, share: float, before: Mapping[str, Any]) -> float | int:
        """Return the value at a share (0 to 1) of the range, beside settings chosen before."""
        value = self.low * (self.high / self.low) ** share
        if self.unit is not None:
            value *= self.unit(before)
        return max(1, round(value)) if self.whole else float(value)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that was tried, and what it took on the tasks it was run on."""

    settings: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    score: float

    @property
    def reached(self) -> bool:
        """Whether all runs reached the tolerance."""
        return all(one.reached for one in self.outcomes)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is tried and what is minimised.

    Attributes
    ----------
    settings : int
        Settings that are run, for every algorithm alike.
    gradient_cost, communication_cost : float
        t_G and t_C of the time model.
    seed : int
        Of the search.
    """

    settings: int = 40
    gradient_cost: float = 1.0
    communication_cost: float = 10.0
    seed: int = 0

    def cost(self, gradients: float, messages: float) -> float:
        """Return what gradients and messages cost together."""
        return gradients * self.gradient_cost + messages * self.communication_cost


RHO = ("rho", 0.05, 20.0, "splitting")
STEP = ("step-size", 0.05, 3.0, "smoothness")
PROXIMAL_STEP = ("step-size", 0.25, 1.5, "subproblem")
SPACES: Mapping[str, tuple[tuple[str, float, float, str], ...]] = {
    "fed-plt": (RHO, PROXIMAL_STEP),
    "fed-split": (RHO, PROXIMAL_STEP),
    "fed-pd": (RHO, PROXIMAL_STEP),
    "fed-lin": (STEP,),
    "led": (STEP, ("dual-step-size", 0.1, 10.0, "epochs")),
    "tamuna": (STEP, ("dual-step-size", 0.1, 10.0, "epochs")),
    "five-gcs": (RHO, ("server-step-size", 0.05, 20.0, "splitting")),
}
"""Algorithm -> (key, low, high, unit of the range). 5GCS's local step is the best fixed one of its
subproblem: a third parameter cost it more, at the same number of settings, than it gained."""


def moduli_of(tasks: Sequence[Task]) -> Moduli:
    """Return the least strong convexity and the largest smoothness over all agents."""
    own: list[Any] = [problem for task in tasks for problem in task.problems]
    return Moduli(
        min(problem.moduli.strong_convexity for problem in own),
        max(problem.moduli.smoothness for problem in own),
    )


def axes(
    name: str, moduli: Moduli, local_epochs: int, *, solver: str = "gd", most_epochs: int = 0
) -> tuple[Axis, ...]:
    """Return the parameters of an algorithm that are searched, with their ranges.

    Parameters
    ----------
    moduli : Moduli
        Of the problem: step sizes are in units of 1/L, those on subproblems f + ||x - v||^2 /
        (2 rho) of the best fixed one there, 2 / (L + lambda + 2/rho); penalties of 1/sqrt(lambda
        L), or 1/L where f is not strongly convex; dual step sizes of 1/N_e.
    solver : str
        ``agd`` has no step size of its own.
    most_epochs : int
        Where > 0, the number of local steps is searched too, from 1 to this.

    Raises
    ------
    ConfigError
        If the algorithm has no parameters to search here.
    """
    require_tunable(name)
    least = moduli.strong_convexity if moduli.strong_convexity > 0 else moduli.smoothness
    unit = {
        "smoothness": 1.0 / moduli.smoothness,
        "splitting": 1.0 / math.sqrt(least * moduli.smoothness),
        "epochs": 1.0 / local_epochs,
    }
    own = [
        Axis(key, low, high, unit=partial(_subproblem_step, moduli))
        if scale == "subproblem"
        else Axis(key, low * unit[scale], high * unit[scale])
        for key, low, high, scale in SPACES[name]
        if not (key == "step-size" and solver == "agd")
    ]
    if most_epochs:
        own.append(Axis("local-epochs", 1, most_epochs, whole=True))
    return tuple(own)


def _subproblem_step(moduli: Moduli, before: Mapping[str, Any]) -> float:
    convexity = max(0.0, moduli.strong_convexity)
    return 2.0 / (moduli.smoothness + convexity + 2.0 / float(before["rho"]))


def require_tunable(name: str) -> None:
    """Raise ``ConfigError`` for an algorithm that has no parameters to search here."""
    if name not in SPACES:
        raise ConfigError(f"tune {name!r}: choose one of {', '.join(sorted(SPACES))}")


def fixed(name: str, moduli: Moduli, local_epochs: int, solver: str = "gd") -> dict[str, Any]:
    """Return the settings that are given and not searched."""
    settings: dict[str, Any] = {"local-epochs": local_epochs}
    if solver != "gd":
        settings["local-solver"] = solver
    if name == "five-gcs":  # what its paper takes to be known
        settings["common-convexity"] = max(0.0, moduli.strong_convexity)
    return settings


def tune(
    name: str,
    tasks: Sequence[Task],
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
        As of ``axes`` and ``fixed``.
    workers, address, progress
        Of ``privet.sim.sweep.sweep``, which runs the settings of a batch side by side.
    """
    from privet.sim.sweep import sweep

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
        cases = [_settings(given, searched, row) for row in batch]
        run = partial(_try, name, tuple(tasks), budget, limit, dear)
        trials += sweep(run, cases, workers=workers, address=address, progress=progress)
        points += list(batch)
        best = trials[_best(trials)]
        if best.reached:
            limit = FAR * best.score
            dear = DEAR * max(budget.cost(one.gradients, one.messages) for one in best.outcomes)
    return sorted(trials, key=_rank)


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.reached, trial.score


def _best(trials: Sequence[Trial]) -> int:
    return min(range(len(trials)), key=lambda index: _rank(trials[index]))


def _settings(
    given: Mapping[str, Any], searched: Sequence[Axis], shares: NDArray[Any]
) -> dict[str, Any]:
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
    tasks: tuple[Task, ...],
    budget: Budget,
    limit: float,
    dear: float,
    settings: dict[str, Any],
) -> Trial:
    outcomes: list[Outcome] = []
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
        costs = budget.gradient_cost, budget.communication_cost
        scores.append(one.score(task.tolerance, *costs))
        # Its mean over fewer tasks does not win: it comes after all that arrive, or is above the
        # limit, which is above the best.
        if not one.reached or np.mean(scores) > limit:
            break
    return Trial(settings, tuple(outcomes), float(np.mean(scores)))


__all__ = [
    "SPACES",
    "Axis",
    "Budget",
    "Trial",
    "axes",
    "fixed",
    "moduli_of",
    "require_tunable",
    "tune",
]
