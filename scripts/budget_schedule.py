"""Squared error with equal noise in all rounds and with a geometric schedule, at one epsilon.

    .venv/bin/python scripts/budget_schedule.py RESULTS.jsonl

Logistic regression on 50 agents of 250 examples and 5 features. All sides choose the number of
rounds (DP-FedSGD its step, and the last row its ratio) by their mean squared distance to the
optimum over three seeds, whose cost in privacy is not counted. The table has the ratio of the mean
squared distances over other seeds, with a 95 % interval by bootstrap.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from resumable import Runs
from scipy.optimize import root

from privet.datasets import Federation, federation_from_config
from privet.server_apps import read_config
from privet.sim.inline import grid_of
from privet.strategies import DPFedSGD, FedPLT
from privet.wire import ConfigError

EPSILONS = (0.25, 1.0, 4.0)
RATIOS: dict[str, tuple[float, ...]] = {
    "even": (1.0,),
    "ratio of theory": (0.0,),
    "ratio tuned": (0.7, 0.8, 0.9),
}
ROUNDS = (5, 10, 20, 40)
STEPS = {"fed-plt": (0.0,), "dp-fedsgd": (1.0, 3.0)}
TUNING = range(3)
AGENTS = 50


@cache
def federation() -> tuple[Federation, NDArray[np.float64]]:
    """Return the agents and their optimum."""
    config = {
        "algorithm": "fed-plt",
        "dataset": "synthetic",
        "num-agents": AGENTS,
        "examples-per-agent": 250,
        "features": 5,
        "row-norm": 1.0,
    }
    made = federation_from_config(read_config(config), AGENTS)
    found = root(made.gradient, np.zeros(made.dim), tol=1e-12)
    assert found.success
    return made, found.x


def play(
    algorithm: str, epsilon: float, ratio: float, rounds: int, step: float, seed: int
) -> dict[str, Any]:
    """Return the squared distance to the optimum of one run's model."""
    agents, optimum = federation()
    common: dict[str, Any] = {
        "num_agents": AGENTS,
        "clip": 1.0,
        "target_epsilon": epsilon,
        "budget_schedule": "constant" if ratio == 1 else "geometric",
        "budget_ratio": 0.0 if ratio == 1 else ratio,
        "seed": seed,
    }
    strategy: Any
    if algorithm == "fed-plt":
        strategy = FedPLT(rho=1.0, local_epochs=5, local_solver="noisy-gd", row_norm=1.0, **common)
    else:
        strategy = DPFedSGD(momentum=0.5, step_size_base=step, step_size_rule="constant", **common)
    grid = grid_of(algorithm, agents.problems)
    start = ArrayRecord({"x": Array(np.zeros(agents.dim))})
    try:
        result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    except ConfigError:  # the noise of the first rounds would be too large for its grid
        return {"error": math.inf, "spent": 0.0, "ratio": ratio}
    assert result.privacy is not None
    gap = result.arrays["x"].numpy() - optimum
    taken = float(strategy.half.settings()["budget-ratio"])
    return {"error": float(gap @ gap), "spent": result.privacy.epsilon, "ratio": taken}


def errors(
    runs: Runs, algorithm: str, epsilon: float, ratios: tuple[float, ...], measured: range
) -> NDArray[np.float64]:
    """Return the squared distances of the best rounds, step and ratio, over the measured seeds."""

    def found(seeds: range, choice: tuple[int, float, float]) -> NDArray[np.float64]:
        names = dict(zip(("rounds", "step", "ratio"), choice, strict=True))
        every = (runs(algorithm=algorithm, epsilon=epsilon, seed=seed, **names) for seed in seeds)
        return np.array([one["error"] for one in every])

    choices = itertools.product(ROUNDS, STEPS[algorithm], ratios)
    best = min(choices, key=lambda choice: found(TUNING, choice).mean())
    print(f"{algorithm}, epsilon {epsilon:g}: rounds, step, ratio {best}", flush=True)
    return found(measured, best)


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--algorithms", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each cell")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    measured = range(TUNING.stop, TUNING.stop + arguments.seeds)
    runs, rng = Runs(arguments.file, play), np.random.default_rng(0)
    rows = []
    for algorithm in arguments.algorithms:
        cells: dict[str, list[str]] = {}
        for epsilon in EPSILONS:
            found = {
                name: errors(runs, algorithm, epsilon, ratios, measured)
                for name, ratios in RATIOS.items()
            }
            even = found.pop("even")
            for name, uneven in found.items():
                picks = rng.integers(len(measured), size=(2, 10_000, len(measured)))
                gains = even[picks[0]].mean(axis=1) / uneven[picks[1]].mean(axis=1)
                low, high = np.quantile(gains, (0.025, 0.975))
                cell = f"{even.mean() / uneven.mean():.2f} ({low:.2f}-{high:.2f})"
                cells.setdefault(name, []).append(cell)
        rows += [f"| {algorithm}, {name} | {' | '.join(line)} |" for name, line in cells.items()]
    print("| even / geometric | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |")
    print("|---" * (len(EPSILONS) + 1) + "|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
