"""Run one algorithm on one federation until the gradient is small, and count the cost.

The measure is that of the Fed-PLT paper's Section VII: ||sum_i grad f_i||^2 at the mean of the
agents' models, or at the coordinator's model where the agents' models never meet there. Gradients
are counted where they are computed, and messages where they are answered, without formulas. A
product with a Hessian counts as a gradient: it takes the same two products with the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Context, RecordDict
from numpy.typing import NDArray

from privet.agents.base import ProblemFn
from privet.core import ConfigError, RunError
from privet.core.key import Config
from privet.core.log_level import SILENT, hushed
from privet.core.registry import DEFAULT_ALGORITHM
from privet.kernel import Problem
from privet.problems.stacks import Observed, total_gradient
from privet.rounds.collect.outcome import OverflowedError
from privet.server_apps.build import (
    agents_of,
    build_federation,
    build_strategy,
    starting_model,
)
from privet.server_apps.config import keys_of_algorithm, read_config
from privet.strategies import PrimalDualStrategy, Round

from .inline import grid_of

Vector = NDArray[Any]

TOLERANCE = 1e-5
"""The tolerance of the Fed-PLT paper."""
DIVERGED = 1e12
"""Factor by which the measure may grow before a run is given up."""
MODULI_KEYS = ("strong-convexity", "smoothness")


def read_searched(given: Mapping[str, Any]) -> Config:
    """Return the config of a search's runs, as `read_config`, without moduli they do not use.

    Moduli are inputs of the search, whose ranges are in units of them, whatever the algorithm.

    Raises
    ------
    ConfigError
    """
    keys = keys_of_algorithm(str(given.get("algorithm", DEFAULT_ALGORITHM)))
    values = {**{name: key.default for name, key in keys.items()}, **given}
    used = {name for name in MODULI_KEYS if name in keys and not keys[name].unused(values)}
    return read_config(
        {key: value for key, value in given.items() if key in used or key not in MODULI_KEYS}
    )


@dataclass(frozen=True, slots=True)
class RaceTask:
    """A problem on which algorithms are compared.

    Attributes
    ----------
    problems : sequence of Problem
        f_1 ... f_N.
    start : array (d,)
        Starting model of all agents.
    tolerance : float
        The measure at which a run has arrived.
    config : mapping
        Run-config keys that all runs share, such as ``participation`` and ``seed``; others have
        their defaults. With ``num-server-rounds`` a run ends after so many rounds at the latest.
    """

    problems: Sequence[Problem]
    start: Vector
    tolerance: float = TOLERANCE
    config: Mapping[str, Any] = field(default_factory=dict)
    _total: Callable[[Vector], Vector] = field(init=False, repr=False, compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any], app: ProblemFn | None = None) -> Self:
        """Return the task that run-config keys describe: their data, start and tolerance.

        Parameters
        ----------
        given : mapping
            The keys as they were given, which all runs get.
        app : callable, optional
            ``context -> Problem`` in place of the data that the keys name.

        Raises
        ------
        ConfigError
            If a key or the data cannot be used, or the measure does not fit the run.
        """
        config = read_searched(given)
        for key, idle in (("h", "zero"), ("clip", 0.0), ("resume", ""), ("unit", "")):
            if config.get(key, idle) != idle:
                raise ConfigError(f"{key} = {config[key]!r}: a race measures the gradient alone")
        problems = problems_of(config, app)
        first = problems[0]
        start = starting_model({**config, "dtype": str(first.dtype)}, first.dim)["x"].numpy()
        return cls(problems, start, max(config["tolerance"], 0.0) or TOLERANCE, given)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_total", total_gradient(self.problems))

    def measure(self, models: Mapping[str, Vector]) -> float:
        """Return ||sum_i grad f_i||^2 at the mean model."""
        with np.errstate(all="ignore"):
            slope = self._total(models.get("mean", models["last"]))
            return float(slope @ slope)


def problems_of(config: Mapping[str, Any], app: ProblemFn | None = None) -> Sequence[Problem]:
    """Return f_1 ... f_N of a resolved run config.

    With ``app``, a callable ``context -> Problem``, they are what it returns for each of the
    ``num-agents`` nodes of a simulation.
    """
    if app is None:
        return build_federation(config).problems
    count = agents_of(config)
    return [
        app(
            Context(
                run_id=0,
                node_id=index,
                node_config={"partition-id": index, "num-partitions": count},
                state=RecordDict(),
                run_config=dict(config),
            )
        )
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """The cost of a run to the tolerance, or to where it was stopped.

    Attributes
    ----------
    reached : bool
    iterations : int
        Of the method as its paper counts them: rounds / exchanges per iteration, rounded up.
    rounds : int
        Rounds of this library.
    gradients, messages : int
        Local gradients and answered messages of all agents together.
    measure : float
        The last one, infinite where the run diverged.
    smooth : tuple of two floats
        Gradients and messages to where the logarithm of the measure crosses the tolerance, between
        two rounds: what tuning compares, as whole iterations tie too often.
    chosen : mapping
        Run-config keys that were left open and chosen once the agents were known.
    """

    reached: bool
    iterations: int
    rounds: int
    gradients: int
    messages: int
    measure: float
    smooth: tuple[float, float]
    chosen: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def score(self, tolerance: float, cost: Callable[[float, float], float]) -> float:
        """Return the time to the tolerance between two rounds; longer the farther a run stopped.

        ``cost`` is what gradients and messages cost together.
        """
        if not math.isfinite(self.measure):
            return math.inf
        farther = 0.0 if self.reached else math.log10(self.measure / tolerance)
        return cost(*self.smooth) * (1 + farther)


class GivenUp(RunError):
    """The measure has grown beyond hope, or the run costs too much."""


class ConvergenceCurve:
    """A measure after every round, from the start until it is at most a tolerance.

    Parameters
    ----------
    start : float
        Before the first round.
    tolerance : float
    exchanges : int
        Rounds of this library in an iteration of the method.
    """

    def __init__(self, start: float, tolerance: float, exchanges: int) -> None:
        self.tolerance, self.exchanges = tolerance, exchanges
        self.values = [start]

    def watch(self, done: Round, strategy: PrimalDualStrategy) -> None:
        """Observe a round and record its measure (raises ``GivenUp`` if it diverges)."""
        self.values.append(done.stationarity)
        if not self.last < DIVERGED * self.values[0]:
            raise GivenUp("diverges")

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Suppress the error of a run that diverges, which is part of a search.

        Faults of the agents are raised.
        """
        with hushed(SILENT), np.errstate(all="ignore"):
            try:
                yield
            except RunError as error:
                blew_up = isinstance(error, OverflowedError)
                if not (self.rounds or blew_up):
                    raise

    @property
    def last(self) -> float:
        """The measure now."""
        return self.values[-1]

    @property
    def rounds(self) -> int:
        """Rounds played."""
        return len(self.values) - 1

    @property
    def iterations(self) -> int:
        """Iterations begun."""
        return -(-self.rounds // self.exchanges)

    @property
    def reached(self) -> bool:
        """True if the measure is at most the tolerance, after at least one round."""
        return self.rounds > 0 and self.last <= self.tolerance

    def between(self, spent: Sequence[float]) -> float:
        """Return what was spent where the logarithm of the measure crosses the tolerance.

        ``spent`` is after every round, from the start on. The measure is taken to fall evenly
        over the last iteration.
        """
        first = max(0, self.rounds - self.exchanges)
        before, share = self.values[first], 1.0
        if self.last > 0 and before > self.tolerance:
            share = math.log(before / self.tolerance) / math.log(before / self.last)
        return spent[first] + share * (spent[-1] - spent[first])


def race(
    name: str,
    settings: Mapping[str, Any],
    task: RaceTask,
    *,
    most: int = 500,
    too_dear: Callable[[int, int], bool] = lambda gradients, messages: False,
) -> RaceOutcome:
    """Run an algorithm on the in-process engine until the task's tolerance.

    Parameters
    ----------
    name : str
        Registered algorithm.
    settings : mapping
        Its run-config keys.
    most : int
        Iterations after which the run is stopped.
    too_dear : callable, optional
        ``(gradients, messages) -> bool``, called after every round above the tolerance: whether
        to stop the run for its cost.

    Raises
    ------
    ConfigError
        If the settings do not fit the algorithm.
    RunError
        If the agents cannot take part, for another reason than numbers that overflow.
    """
    count = len(task.problems)
    config = read_searched(
        {
            "min-agents": count,
            **task.config,
            **settings,
            "algorithm": name,
            "num-agents": count,
        }
    )
    strategy = build_strategy(
        config, monitor=lambda round_, models: {"stationarity": task.measure(models)}
    )
    stated = strategy.half.settings()
    exchanges = 1 if strategy.cost is None else strategy.cost.exchanges
    rounds = most * exchanges
    if "num-server-rounds" in task.config:
        rounds = min(rounds, config["num-server-rounds"])
    first = max(task.measure({"last": task.start}), task.tolerance)
    course = ConvergenceCurve(first, task.tolerance, exchanges)
    tally, gradients, messages = [0], [0], [0]

    def seen(x: Vector) -> None:
        tally[0] += 1

    problems: list[Any] = [Observed(problem, seen) for problem in task.problems]

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        gradients.append(tally[0])
        messages.append(messages[-1] + len(done.participants))
        course.watch(done, strategy)
        if not course.reached and too_dear(gradients[-1], messages[-1]):
            raise GivenUp("costs too much")

    with course.followed():
        strategy.start(
            grid_of(name, problems),
            ArrayRecord({"x": Array(np.asarray(task.start))}),
            num_rounds=rounds,
            tolerance=task.tolerance,
            observers=(watch,),
        )
    spent, smooth = (gradients[-1], messages[-1]), (float(gradients[-1]), float(messages[-1]))
    if course.reached:
        smooth = course.between(gradients), course.between(messages)
    measure = course.last if course.rounds and course.last < DIVERGED * first else math.inf
    settled = strategy.run.half.settings()
    chosen = {key: value for key, value in settled.items() if value != stated.get(key, value)}
    return RaceOutcome(
        course.reached, course.iterations, course.rounds, *spent, measure, smooth, chosen
    )
