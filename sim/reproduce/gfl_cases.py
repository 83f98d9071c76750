"""One setting of the graph federated learning paper's experiments, and what it gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privet.sim.experiments.gfl import Course, regression_network, run
from privet.sim.experiments.gfl_adult import adult_network, clean_error
from privet.sim.experiments.gfl_simulated import Quick, simulate
from privet.strategies.gfl.graph import lazy

from .study import Case, Options, Result

KINDS = ("none", "homomorphic", "random")
NOISY = KINDS[1:]
VARIANCES = (0.001, 0.01, 0.1, 1.0, 2.0, 10.0)
DIVERGED = 1e6
OWN_NOISE = (
    "the own share -(1 - a_pp) g_p stays in every unit's model and cancels only over all of them"
)

Key = tuple[str, float, float]


def deviations(case: Case) -> Result:
    """Simulate one setting; steady states, or the whole course."""
    network = regression_network()
    if case["weights"] == "lazy":
        network = replace(network, weights=lazy(network.weights))
    with np.errstate(over="ignore", invalid="ignore"):
        found = simulate(
            network,
            case["rounds"],
            mu=case["mu"],
            variance=case["variance"],
            kind=case["kind"],
            chance=Quick(network, case["seed"]),
            closing=case["closing"],
        )
    if case["burn-in"]:
        centroid, units = found.steady(case["burn-in"])
        return {"centroid": _finite(centroid), "units": _finite(units)}
    return _course(found)


def played(case: Case) -> Result:
    """Play one setting of Section V-A with the real Strategy, ClientApps and messages."""
    return _course(
        run(
            regression_network(),
            case["rounds"],
            mu=case["mu"],
            variance=case["variance"],
            kind=case["kind"],
            seed=case["seed"],
        )
    )


def classified(case: Case) -> Result:
    """Play one setting of Section V-B; test errors of the centroid by round."""
    network = adult_network(case["data"])
    found = run(
        network,
        case["rounds"],
        mu=case["mu"],
        variance=case["variance"],
        kind=case["kind"],
        seed=case["seed"],
        evaluate=lambda model: clean_error(case["data"], model),
    )
    return {"errors": [float(value) for value in found.centroid]}


def _course(found: Course) -> Result:
    return {
        "centroid": [_finite(float(value)) for value in found.centroid],
        "units": [_finite(float(value)) for value in found.units],
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) and value < DIVERGED else "diverges"


def setting(kind: str, variance: float, mu: float, rounds: int, seed: int, **more: Any) -> Case:
    shown = "no noise" if kind == "none" else f"{kind}, sigma^2 {variance:g}"
    return {
        "case": f"GFL: {shown}, mu {mu:g}, seed {seed}",
        "kind": kind,
        "variance": variance,
        "mu": mu,
        "rounds": rounds,
        "seed": seed,
        **more,
    }


def seeds_of(options: Options) -> range:
    return range(1, 11) if options.full else range(1, 4)


def by_setting(cases: Sequence[Case], results: Sequence[Result]) -> dict[Key, list[Result]]:
    found: dict[Key, list[Result]] = {}
    for case, result in zip(cases, results, strict=True):
        key = (case["kind"], case["variance"], case["mu"])
        found.setdefault(key, []).append(result)
    return found
