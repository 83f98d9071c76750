"""The one runner of all cases: a Strategy built by keyword arguments, on the in-process engine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedProx
from numpy.typing import NDArray

from privet.agents.guard import NoiseFactory
from privet.client_apps import sparse_mod
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import ConfigError, algorithm
from privet.core.log_level import SILENT, hushed
from privet.kernel import Problem
from privet.problems import make_h, public_facts
from privet.problems.stacks import Observed
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.sim.race import ConvergenceCurve, RaceTask
from privet.strategies import (
    GFL,
    Balanced,
    Fraction,
    Participation,
    PrimalDualStrategy,
    Round,
    SparseUplink,
)

from .noises import Recorder
from .study import Case, Result
from .workloads import Workload, build

Vector = NDArray[Any]
Models = Mapping[str, Vector]

FLOWER = ("fed-avg", "fed-prox")
PARTICIPATION: Mapping[str, Callable[[float], Participation]] = {
    "fraction": Fraction,
    "balanced": Balanced,
}


def play(case: Case) -> Result:
    """Run a case and return its JSON values.

    ``options`` of a case, all of them optional: ``participation`` {kind: share}, ``every`` rounds
    between evaluations, ``tail`` rounds that a final mean is taken over, ``tolerance``, ``at``
    "last-gradient" to measure at the mean of the agents' last gradient points, ``noise`` "authors"
    for the deviation of the authors' OutP, ``epsilon`` a total to calibrate Gaussian noise to,
    ``over-smoothness`` {setting: factor} for settings in units of 1/L, ``closing`` exchanges that
    a deviation is measured after.

    Raises
    ------
    ConfigError
        If the settings do not fit the algorithm.
    RunError
        If agents cannot take part, for another reason than numbers that overflow.
    """
    if case.measure == "theorem":
        from .theorems import judged

        return judged(case.algorithm, case.seed)
    if case.measure not in MEASURES:
        raise ConfigError(f"measure {case.measure!r}: known are {', '.join(MEASURES)}")
    with hushed(SILENT), np.errstate(all="ignore"):
        found = MEASURES[case.measure](case, build(case.workload))
    return {**found, "settings": dict(case.settings)}


# ------------------------------------------------------------------ building a run


def build_strategy(case: Case, workload: Workload, **more: Any) -> PrimalDualStrategy:
    """Return the Strategy of a case; "inf" stands for infinity, ``h`` for gamma ||x||_1."""
    options = {
        key: math.inf if isinstance(value, str) and value == "inf" else value
        for key, value in {**workload.strategy, **case.settings}.items()
    }
    for key, factor in case.options.get("over-smoothness", {}).items():
        options[key] = factor / max(problem.moduli.smoothness for problem in workload.problems)
    if "h" in options:
        weight = options.pop("h")
        options["h"] = make_h("l1", **{"h-weight": weight}) if weight else make_h("zero")
    for kind, share in case.options.get("participation", {}).items():
        options["participation"] = PARTICIPATION[kind](share)
    if "epsilon" in case.options:
        options["noise_scale"] = calibrated(case, workload)
    count = len(workload.problems)
    built: PrimalDualStrategy = algorithm(case.algorithm).load_strategy()(
        **options,
        num_agents=count,
        min_agents=count if "tolerance" in case.options else 1,
        seed=case.seed,
        **more,
    )
    return built


def calibrated(case: Case, workload: Workload) -> float:
    """Return the smallest noise whose certified total over a balanced schedule is ``epsilon``."""
    from privet.kernel import AgentLedger
    from privet.rounds.calibration import Plan, smallest

    settings = {
        key.replace("_", "-"): value
        for key, value in case.settings.items()
        if key not in ("h", "noise_seed")  # what is charged for is noise without a seed
    }
    share = case.options["participation"]["balanced"]
    rounds = tuple(range(1, round(share * case.rounds) + 1))
    plans = [Plan(AgentLedger(), public_facts(problem), rounds) for problem in workload.problems]
    epsilon, delta = case.options["epsilon"], settings["delta"]
    return float(smallest(case.algorithm, settings, plans, epsilon, delta))


def run(
    case: Case,
    workload: Workload,
    monitor: Callable[[int, Models], Mapping[str, float]],
    *,
    watch: Callable[[Round, PrimalDualStrategy], None] | None = None,
    problems: tuple[Problem, ...] = (),
    noise_factory: NoiseFactory | None = None,
    tolerance: float = 0.0,
    rounds_each: int = 1,
) -> PrimalDualStrategy:
    """Play a case's rounds and return its Strategy."""
    strategy = build_strategy(case, workload, monitor=monitor)
    grid = grid_of(
        case.algorithm,
        problems or workload.problems,
        workload.nodes or (),
        noise_factory=noise_factory,
    )
    strategy.start(
        grid,
        ArrayRecord({"x": Array(np.asarray(workload.start))}),
        num_rounds=case.rounds * rounds_each,
        tolerance=tolerance,
        observers=() if watch is None else (watch,),
    )
    return strategy


# ------------------------------------------------------------------ what is measured


def iterations(case: Case, workload: Workload) -> Result:
    """Count iterations until ||sum_i grad f_i(mean x)||^2 <= tolerance (Fed-PLT, Section VII).

    ``value`` is None where a run does not arrive, ``smooth`` the place between two iterations
    where the logarithm of the measure crosses the tolerance; FedLin has two rounds an iteration.
    """
    problems: tuple[Any, ...] = tuple(workload.problems)
    last: dict[int, Vector] = {}  # where each agent's last gradient was taken
    at_last = case.options.get("at") == "last-gradient"
    if at_last:
        problems = tuple(Observed(f, partial(last.__setitem__, i)) for i, f in enumerate(problems))
    task = RaceTask(workload.problems, workload.start, case.options["tolerance"])
    exchanges = algorithm(case.algorithm).load_strategy().cost.exchanges
    course = ConvergenceCurve(task.measure({"last": task.start}), task.tolerance, exchanges)

    def monitor(number: int, models: Models) -> dict[str, float]:
        if at_last and number:
            models = {"last": np.mean([last[agent] for agent in sorted(last)], axis=0)}
        return {"stationarity": task.measure(models)}

    with course.followed():
        run(
            case,
            workload,
            monitor,
            watch=course.watch,
            problems=problems,
            tolerance=task.tolerance,
            rounds_each=exchanges,
        )
    if not course.reached:
        return {"value": None, "smooth": None, "last": course.last}
    smooth = course.between([float(number) for number in range(course.rounds + 1)]) / exchanges
    return {"value": course.iterations, "smooth": smooth, "last": course.last}


def distance(case: Case, workload: Workload) -> Result:
    """Return ||x - x*|| over all agents' x, the mean of the last ``tail`` rounds (Table VII).

    The run begins at the optimum, so that what is left is the noise.
    """
    errors: list[float] = []
    optimum = workload.optimum

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        assert strategy.session is not None
        errors.append(float(np.linalg.norm(strategy.session.state.x - optimum)))

    centred = replace(workload, start=optimum.copy())
    run(case, centred, lambda number, models: {}, watch=watch)
    return {"value": float(np.mean(errors[-case.options["tail"] :]))}


@dataclass(slots=True)
class Scores:
    """Accuracies by round, every so often and in the last ``tail`` rounds; not of the start."""

    case: Case
    workload: Workload
    rounds: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def monitor(self, number: int, models: Models) -> dict[str, float]:
        """Score the coordinator's model where it is time; a Strategy's ``monitor``."""
        assert self.workload.score is not None
        last = self.case.rounds - self.case.options["tail"]
        if number and (number > last or number % self.case.options["every"] == 0):
            self.rounds.append(number)
            self.values.append(self.workload.score(models["last"]))
        return {}

    def result(self, **more: Any) -> Result:
        """Return the course, and the mean of the last rounds as ``value``."""
        last = self.values[-self.case.options["tail"] :]
        course = {"rounds": self.rounds, "course": self.values}
        return {"value": float(np.mean(last)), **course, **more}


def accuracy(case: Case, workload: Workload) -> Result:
    """Return accuracies of the coordinator's model by round, and the bytes that travelled up."""
    if case.algorithm in FLOWER:
        return _flowers_own(case, workload)
    scores, sent = Scores(case, workload), [0]

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        sent[0] += done.bytes_up

    run(case, workload, scores.monitor, watch=watch)
    return scores.result(bytes=sent[0])


def _flowers_own(case: Case, workload: Workload) -> Result:
    """Run Flower's FedAvg or FedProx (``mu``) with this library's local steps.

    ``share`` < 1 sends the largest coordinates of what changed only.
    """
    settings = dict(case.settings)
    mu, share = settings.pop("mu", 1.0), settings.pop("share", 1.0)
    scores = Scores(case, workload)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        scores.monitor(number, {"last": arrays["x"].numpy()})
        return None

    common: dict[str, Any] = {
        "fraction_train": case.options["participation"]["fraction"],
        "fraction_evaluate": 0.0,
        "min_available_nodes": len(workload.problems),
    }
    flower = FedProx(proximal_mu=mu, **common) if case.algorithm == "fed-prox" else FedAvg(**common)
    random.seed(case.seed)  # Flower samples nodes with the global generator
    mods = [sparse_mod(share)] if share < 1 else None
    problems = workload.problems
    app = local_sgd_app(
        lambda context: problems[int(context.node_config["partition-id"])],
        mods=mods,
        seed=case.seed,
        **settings,
    )
    outer = SparseUplink(flower) if share < 1 else flower
    start = ArrayRecord({"x": Array(np.asarray(workload.start))})
    grid = InlineGrid(app, len(problems))
    outer.start(grid, start, num_rounds=case.rounds, evaluate_fn=evaluate)
    return scores.result()


def error_and_noise(case: Case, workload: Workload) -> Result:
    """Return test errors in per cent and the mean magnitude of the noise that arrives in z_p."""
    scores, noise = Scores(case, workload), Recorder(case, workload)
    run(case, workload, scores.monitor, noise_factory=noise)
    errors = [100.0 * (1.0 - score) for score in scores.values]
    tail = case.options["tail"]
    return {
        "value": float(np.mean(errors[-tail:])),
        "best": min(errors),
        "rounds": scores.rounds,
        "course": errors,
        "noise": [noise.mean(number) for number in scores.rounds],
        "examples": sum(problem.num_examples for problem in workload.problems),
    }


def deviation(case: Case, workload: Workload) -> Result:
    """Return the squared deviations of the centroid (58) and of the units' mean (59) by round.

    With ``closing`` they are taken after so many exchanges without noise.
    """
    courses = {"centroid": list[float](), "units": list[float]()}

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        assert isinstance(strategy, GFL)
        assert strategy.session is not None
        exchanges = np.linalg.matrix_power(
            strategy.server.mixer.weights, case.options.get("closing", 0)
        )
        gaps = exchanges @ strategy.session.state.models - workload.optimum
        centre = gaps.mean(axis=0)
        courses["centroid"].append(float(centre @ centre))
        courses["units"].append(float(np.mean(np.sum(gaps * gaps, axis=1))))

    run(case, workload, lambda number, models: {}, watch=watch)
    return dict(courses)


MEASURES: Mapping[str, Callable[[Case, Workload], Result]] = {
    "iterations": iterations,
    "distance": distance,
    "accuracy": accuracy,
    "error-and-noise": error_and_noise,
    "deviation": deviation,
}
