"""The regression table by Newton's steps against a pooled fit, Fed-PLT and FedAvg.

Sites have as many rows each, of columns whose means differ between them, so that agents who count
alike end at the pooled estimate. An error is that of the worst coefficient, in standard errors of
the pooled fit: statsmodels' where it is installed. Fed-PLT and FedAvg have no standard errors; they
play until their error is `CLOSE`, or `MOST` rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.analyses import Frame
from privet.kernel import stream
from privet.problems import BinaryLogistic
from privet.problems.regularizers import NoRegularizer
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.strategies import DPFedAvg, FedPLT
from privet.strategies.analyses import GLM

from .coordinator import peak_kilobytes
from .figure import Figure, Show

CASES = ((5, 3), (5, 30), (5, 300), (5, 1000), (50, 3), (50, 30), (200, 3), (200, 30))
"""Columns and sites."""
CLOSE, MOST = 1e-6, 300
ERROR_GOAL, ROUNDS_GOAL = 1e-8, 8
ROWS = 10_000_000
_MANY = "import json; from benchmarks.glm import many; print(json.dumps(many({})))"


@dataclass(frozen=True)
class Sites:
    """The rows of all sites, and the pooled fit.

    Attributes
    ----------
    columns : float64 array (sites, rows, p)
    outcome : array (sites, rows), 0 and 1
    coef, errors : float64 arrays (p + 1,)
        Of the intercept and the columns.
    seconds : float
        What the pooled fit took.
    """

    columns: Any
    outcome: Any
    coef: Any
    errors: Any
    seconds: float

    def off(self, coef: Any) -> float:
        """Return the error of the worst coefficient, in standard errors."""
        return float((np.abs(coef - self.coef) / self.errors).max())


def sites_of(width: int, count: int) -> Sites:
    """Return sites of 200 rows, or of ten times the columns where that is more."""
    rng = stream(0, "glm")
    rows = max(200, 10 * width)
    columns = rng.standard_normal((count, rows, width)) + 0.5 * rng.standard_normal(
        (count, 1, width)
    )
    slopes = rng.standard_normal(width) / np.sqrt(width)
    chance = 1.0 / (1.0 + np.exp(0.5 - columns @ slopes))
    outcome = (rng.random((count, rows)) < chance).astype(float)
    pooled = np.hstack([np.ones((count * rows, 1)), columns.reshape(-1, width)])
    begin = time.perf_counter()
    coef, errors = pooled_fit(pooled, outcome.ravel())
    return Sites(columns, outcome, coef, errors, time.perf_counter() - begin)


def pooled_fit(columns: Any, outcome: Any) -> tuple[Any, Any]:
    """Return coefficients and standard errors of all rows, by statsmodels where it is there."""
    try:
        api = import_module("statsmodels.api")
    except ImportError:
        return _newton(columns, outcome)
    fit = api.GLM(outcome, columns, family=api.families.Binomial()).fit(tol=1e-14)
    return np.asarray(fit.params), np.asarray(fit.bse)


def _newton(columns: Any, outcome: Any) -> tuple[Any, Any]:
    coef = np.zeros(columns.shape[1])
    for _ in range(20):
        mean = 1.0 / (1.0 + np.exp(-columns @ coef))
        inverse = np.linalg.inv((columns * (mean * (1.0 - mean))[:, None]).T @ columns)
        coef = coef + inverse @ (columns.T @ (outcome - mean))
    return coef, np.sqrt(np.diag(inverse))


def bench_glm(show: Show, *, quick: bool = False) -> None:
    """Measure rounds, bytes, seconds and errors by columns and sites; then memory."""
    quiet()
    try:
        import_module("statsmodels.api")
    except ImportError:
        print(
            "not installed: statsmodels; Newton's method on all rows stands for it", file=sys.stderr
        )
    for width, count in CASES[:1] if quick else CASES:
        sites = sites_of(width, count)
        case = f"{width} columns, {count} sites"
        show(Figure("glm", case, "pooled fit, seconds", sites.seconds))
        _table(show, case, sites)
        _method(show, case, "Fed-PLT", FedPLT(num_agents=count), "fed-plt", sites)
        _method(show, case, "FedAvg", DPFedAvg(num_agents=count), "dp-fedavg", sites)
    rows = ROWS // 100 if quick else ROWS
    done = subprocess.run(
        [sys.executable, "-c", _MANY.format(rows)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    case = f"one site, {rows:g} rows, 5 columns"
    for name, value in found.items():
        show(Figure("glm", case, name, value))


def _table(show: Show, case: str, sites: Sites) -> None:
    """Measure the regression by messages in this process."""
    names = [f"x{place}" for place in range(sites.columns.shape[2])]
    frames = [
        Frame(len(y), {**dict(zip(names, x.T, strict=True)), "y": y})
        for x, y in zip(sites.columns, sites.outcome, strict=True)
    ]
    strategy = GLM(formula=f"y ~ {' + '.join(names)}")
    grid = grid_of("glm", frames)
    begin = time.perf_counter()
    result = strategy.start(grid, log_rounds=False)
    seconds = time.perf_counter() - begin
    table = result.table
    errors = np.abs(np.array(table["se"]["nonrobust"]) / sites.errors - 1.0).max()
    sent = sum(one.bytes_up + one.bytes_down for one in result.history) / len(frames)
    off = sites.off(np.array(table["coef"]))
    show(Figure("glm", case, "Privet, rounds", table["rounds"], ROUNDS_GOAL, at_least=False))
    show(Figure("glm", case, "Privet, kB a site", sent / 1e3))
    show(Figure("glm", case, "Privet, seconds", seconds))
    show(Figure("glm", case, "Privet, error in se", off, ERROR_GOAL, at_least=False))
    show(Figure("glm", case, "Privet, error of the se", float(errors), ERROR_GOAL, at_least=False))


def _method(show: Show, case: str, name: str, strategy: Any, algorithm: str, sites: Sites) -> None:
    """Measure a method of training until it is as close as it will be."""
    count, rows, width = sites.columns.shape
    ones = np.ones((count, rows, 1))
    problems = [
        BinaryLogistic(x, np.where(y > 0, 1, -1), regularizer=NoRegularizer())
        for x, y in zip(np.concatenate([ones, sites.columns], 2), sites.outcome, strict=True)
    ]
    grid = grid_of(algorithm, problems)
    begin = time.perf_counter()
    session = strategy.begin(grid, ArrayRecord({"x": Array(np.zeros(width + 1))}))
    off: Callable[[], float] = lambda: sites.off(strategy.run.models()["last"])  # noqa: E731
    for number in range(1, MOST + 1):
        strategy.play_round(grid, number)
        if off() <= CLOSE:
            break
    seconds = time.perf_counter() - begin
    sent = sum(one.bytes_up + one.bytes_down for one in session.history) / count
    show(Figure("glm", case, f"{name}, rounds", session.round))
    show(Figure("glm", case, f"{name}, kB a site", sent / 1e3))
    show(Figure("glm", case, f"{name}, seconds", seconds))
    show(Figure("glm", case, f"{name}, error in se", off()))


def many(rows: int) -> dict[str, float]:
    """Return the seconds of a regression of one site's rows, and its memory beside the table."""
    quiet()
    rng = stream(0, "glm")
    numbers = {f"x{place}": rng.standard_normal(rows) for place in range(5)}
    chance = 1.0 / (1.0 + np.exp(-numbers["x0"]))
    numbers["y"] = (rng.random(rows) < chance).astype(float)
    del chance
    held = peak_kilobytes()
    frame = Frame(rows, numbers)
    begin = time.perf_counter()
    result = GLM(formula="y ~ x0 + x1 + x2 + x3 + x4").start(grid_of("glm", [frame]))
    return {
        "rounds": float(result.table["rounds"]),
        "seconds": time.perf_counter() - begin,
        "the table, MB": sum(one.nbytes for one in numbers.values()) / 1e6,
        "memory beside it, MB": (peak_kilobytes() - held) / 1e3,
    }
