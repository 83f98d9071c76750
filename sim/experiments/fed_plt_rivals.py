"""Fed-PLT and its rivals, all tuned alike: Tables II to V of the Fed-PLT paper, and beyond them.

The problem is that of ``fed_plt.IidProblem``. Every algorithm's parameters are searched by the one
tuner of ``privet.sim.tuning`` with the same number of settings on the same draws of the problem;
what is reported comes from other draws. The nonconvex problem is begun at N(0, I): from ten times
as far, where the convex one begins, the regulariser is flat and most runs of every algorithm stay
for hundreds of iterations. Beyond the paper: the same with one class an agent, and with the number
of local steps tuned as well, for each cost of communication.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from privet.sim.experiments.fed_plt import AGENTS, TOLERANCE, IidProblem
from privet.sim.race import Task, race
from privet.sim.tuning import Budget, axes, fixed, moduli_of, tune
from privet.strategies import Fraction

LOCAL_EPOCHS = 5
ALGORITHMS = ("fed-pd", "fed-lin", "tamuna", "led", "five-gcs", "fed-plt", "fed-split")
COSTS = (0.1, 1.0, 10.0, 100.0)
"""t_C of Table III, where t_G = 1."""
FIRST_DRAW = 100
"""Seed of the first draw that is reported; tuning uses those from 0 on."""


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes
    ----------
    title : str
    algorithms : tuple of str
    printed : mapping of str to int
        Iterations that the paper's computation times stand for.
    costs : tuple of float
        t_C; tuning minimises the time at the one named ``tuned_at``.
    free : bool
        Whether the number of local steps is tuned too.
    given : mapping
        Settings that are not tuned.
    """

    title: str
    algorithms: tuple[str, ...] = ALGORITHMS
    printed: Mapping[str, int] = field(default_factory=dict)
    regularizer: str = "l2"
    features: int = 5
    classes_per_agent: int = 0
    start_scale: float = 10.0
    fraction: float = 1.0
    solver: str = "gd"
    gradient_cost: float = 1.0
    costs: tuple[float, ...] = COSTS
    tuned_at: float = 10.0
    free: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)

    def task(self, seed: int) -> Task:
        """Return the race on a draw of the problem."""
        draw = _draw(
            seed, self.regularizer, self.features, self.classes_per_agent, self.start_scale
        )
        who = Fraction(self.fraction) if self.fraction < 1 else None
        return Task(draw.federation.problems, draw.start, TOLERANCE, who, seed)


PARTIAL = ("tamuna", "five-gcs", "fed-plt")
IN_THEORY: Mapping[str, Any] = {"dual-step-size": 0.0}
"""What tells TAMUNA to take the largest that its theory allows."""
CASES: dict[str, Case] = {
    "table-2-convex": Case(
        "Tables II and III, convex",
        printed={
            "fed-pd": 47,
            "fed-lin": 6,
            "tamuna": 17,
            "led": 34,
            "five-gcs": 38,
            "fed-plt": 9,
        },
    ),
    "table-2-nonconvex": Case(
        "Table II, nonconvex, from N(0, I)",
        printed={"fed-pd": 149, "fed-lin": 12, "led": 292, "five-gcs": 26, "fed-plt": 14},
        regularizer="nonconvex",
        start_scale=1.0,
    ),
    "table-4-partial": Case(
        "Table IV, half of the agents in a round",
        PARTIAL,
        {"tamuna": 71, "five-gcs": 30, "fed-plt": 29},
        fraction=0.5,
    ),
    "table-4-agd": Case(
        "Table IV, accelerated local steps",
        ("five-gcs", "fed-plt"),
        {"five-gcs": 38, "fed-plt": 10},
        solver="agd",
    ),
    "table-4-agd-partial": Case(
        "Table IV, accelerated local steps, half of the agents",
        ("five-gcs", "fed-plt"),
        {"five-gcs": 31, "fed-plt": 38},
        fraction=0.5,
        solver="agd",
    ),
    "table-5": Case(
        "Table V, 100 features, t_G = 20",
        printed={
            "fed-pd": 68,
            "fed-lin": 7,
            "tamuna": 24,
            "led": 34,
            "five-gcs": 30,
            "fed-plt": 10,
        },
        features=100,
        gradient_cost=20.0,
        costs=(2.0, 20.0, 200.0, 2000.0),
        tuned_at=200.0,
    ),
    "one-class": Case("One class an agent (not in the paper), convex", classes_per_agent=1),
    "theory": Case(
        "Tables II and III, convex, dual step within TAMUNA's theory",
        ("tamuna",),
        {"tamuna": 17},
        given=IN_THEORY,
    ),
    "theory-partial": Case(
        "Table IV, half of the agents in a round, dual step within TAMUNA's theory",
        ("tamuna",),
        {"tamuna": 71},
        fraction=0.5,
        given=IN_THEORY,
    ),
    **{
        f"free-{cost:g}": Case(
            f"Local steps tuned too (not in the paper), convex, t_C = {cost:g}",
            costs=(cost,),
            tuned_at=cost,
            free=True,
        )
        for cost in COSTS
    },
}
MOST_EPOCHS = 30


@cache
def _draw(seed: int, regularizer: str, features: int, classes: int, scale: float) -> IidProblem:
    return IidProblem.draw(
        seed,
        regularizer=regularizer,
        features=features,
        classes_per_agent=classes,
        start_scale=scale,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm in one case, measured on draws it was not tuned on.

    Attributes
    ----------
    settings : dict
        As tuned.
    iterations, deviation : float
        Mean and standard deviation over the draws that arrived; NaN where none did.
    reached, draws : int
        How many draws arrived, of how many.
    exchanges : int
        Messages to an agent and back in an iteration.
    gradients : float
        Local gradients of an active agent in an iteration, as counted.
    times : dict of str to float
        t_C -> N (gradients t_G + exchanges t_C) iterations, N the active agents.
    tried, arrived : int
        Settings that were run in tuning, and how many of them arrived.
    tuning_draws : int
        Draws they were run on.
    printed : int or None
        Iterations in the paper.
    """

    case: str
    algorithm: str
    settings: dict[str, Any]
    iterations: float
    deviation: float
    reached: int
    draws: int
    exchanges: int
    gradients: float
    times: dict[str, float]
    tried: int
    arrived: int
    tuning_draws: int
    printed: int | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings of an algorithm in one case, and what the search was.

    Attributes
    ----------
    settings : dict
    tried, arrived : int
        Settings that were run, and how many of them arrived.
    draws : int
        Draws they were run on.
    """

    settings: dict[str, Any]
    tried: int
    arrived: int
    draws: int


def search(
    name: str,
    algorithm: str,
    *,
    settings: int = 30,
    tuning_draws: int = 4,
    workers: int | None = 1,
    address: str | None = None,
) -> Tuned:
    """Tune one algorithm for one case.

    Parameters
    ----------
    name : str
        Of ``CASES``.
    settings : int
        Budget of the tuner.
    tuning_draws : int
        Of the problem, from seed 0 on.
    """
    case = CASES[name]
    tasks = [case.task(seed) for seed in range(tuning_draws)]
    moduli = moduli_of(tasks)
    given = {**fixed(algorithm, moduli, LOCAL_EPOCHS, case.solver), **case.given}
    most_epochs = MOST_EPOCHS if case.free else 0
    searched = axes(algorithm, moduli, LOCAL_EPOCHS, solver=case.solver, most_epochs=most_epochs)
    searched = tuple(axis for axis in searched if axis.key not in case.given)
    budget = Budget(settings, case.gradient_cost, case.tuned_at)
    trials = tune(algorithm, tasks, searched, given, budget, workers=workers, address=address)
    arrived = sum(trial.reached for trial in trials)
    return Tuned(trials[0].settings, len(trials), arrived, tuning_draws)


def measure(name: str, algorithm: str, tuned: Tuned, *, draws: int = 10, most: int = 300) -> Row:
    """Measure a tuned algorithm on draws it was not tuned on.

    Parameters
    ----------
    most : int
        Iterations after which a run is stopped as not arrived.
    """
    case = CASES[name]
    found = [
        race(algorithm, tuned.settings, case.task(FIRST_DRAW + seed), most=most)
        for seed in range(draws)
    ]
    arrived = [one for one in found if one.reached]
    counts = [one.iterations for one in arrived]
    exchanges = max((round(one.rounds / one.iterations) for one in found), default=1)
    return Row(
        name,
        algorithm,
        tuned.settings,
        float(np.mean(counts)) if counts else float("nan"),
        float(np.std(counts)) if counts else float("nan"),
        len(arrived),
        draws,
        exchanges,
        sum(one.gradients for one in found) * exchanges / sum(one.messages for one in found),
        {
            f"{cost:g}": float(np.mean([one.time(case.gradient_cost, cost) for one in arrived]))
            if arrived
            else float("nan")
            for cost in case.costs
        },
        tuned.tried,
        tuned.arrived,
        tuned.draws,
        case.printed.get(algorithm),
    )


def run(
    names: Sequence[str] = tuple(CASES),
    *,
    done: Sequence[Row] = (),
    on_row: Callable[[list[Row]], None] | None = None,
    draws: int = 10,
    **options: Any,
) -> list[Row]:
    """Return the rows of some cases.

    Parameters
    ----------
    done : sequence of Row
        Rows that are there already and are not measured again.
    on_row : callable, optional
        Called with all rows so far after every new one.
    draws : int
        Of ``measure``.
    options
        Of ``search``.
    """
    rows = list(done)
    known = {(row.case, row.algorithm) for row in rows}
    for name in names:
        for algorithm in CASES[name].algorithms:
            if (name, algorithm) in known:
                continue
            tuned = search(name, algorithm, **options)
            rows.append(measure(name, algorithm, tuned, draws=draws))
            if on_row is not None:
                on_row(rows)
    return rows


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a JSON file written by ``write_rows``; none where there is no file."""
    return [Row(**_numbers(one, None, math.nan)) for one in _entries(path)]


def _entries(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return entries


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON, null for what did not arrive."""
    entries = [_numbers(asdict(row), math.nan, None) for row in rows]
    path.write_text(json.dumps(entries, indent=1, allow_nan=False) + "\n")


def write_tuned(path: Path, rows: Sequence[Row]) -> None:
    """Write what the searches found, by case and algorithm, as ``privet reproduce`` reads it."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not CASES[row.case].free:
            tuned = Tuned(row.settings, row.tried, row.arrived, row.tuning_draws)
            found.setdefault(row.case, {})[row.algorithm] = asdict(tuned)
    path.write_text(json.dumps(found, indent=1) + "\n")


def _numbers(entry: Mapping[str, Any], old: float | None, new: float | None) -> dict[str, Any]:
    """Return the entry with its measured figures changed from one sign of absence to another."""

    def changed(value: Any) -> Any:
        absent = value is None if old is None else isinstance(value, float) and math.isnan(value)
        return new if absent else value

    times = {cost: changed(time) for cost, time in entry["times"].items()}
    figures = {name: changed(entry[name]) for name in ("iterations", "deviation")}
    return {**entry, **figures, "times": times}


__all__ = [
    "AGENTS",
    "CASES",
    "Case",
    "Row",
    "Tuned",
    "measure",
    "read_rows",
    "run",
    "search",
    "write_rows",
    "write_tuned",
]
