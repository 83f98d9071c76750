"""The graph federated learning recursion (6)-(8) on arrays of all agents at once, for sweeps.

It computes what `runner.deviation` plays with Strategy, ClientApps and messages; a test holds the
two against each other where nothing is random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from privet.problems import RidgeRegression
from privet.strategies.gfl.graph import lazy

from .study import Case, Result
from .workloads import Vector, Workload

SHRINK = 0.2
"""Modulus of the regulariser rho ||w||^2 with the printed rho = .1."""


def deviations_on_arrays(case: Case, workload: Workload) -> Result:
    """Return squared deviations by round, of the centroid (58) and the units' mean (59).

    Settings: ``mu``, ``kind`` of the noise, ``variance``; and, of choice, ``lazy`` weights
    (A + I)/2, ``closing`` exchanges without noise before the deviations are taken, and ``whole``
    batches of all agents with one epoch.
    """
    rng = np.random.default_rng([case.seed, 1])
    ridges = [problem for problem in workload.problems if isinstance(problem, RidgeRegression)]
    features = np.stack([problem.features for problem in ridges])
    targets = np.stack([np.asarray(problem.targets) for problem in ridges])
    epochs = np.array([int(node["local-epochs"]) for node in workload.nodes])
    batches = np.array([int(node["batch-size"]) for node in workload.nodes])
    settings = case.settings
    if settings.get("whole"):
        epochs[:], batches[:] = 1, features.shape[1]
    weights: Vector = np.asarray(workload.strategy["weights"])
    weights = lazy(weights) if settings.get("lazy") else weights
    taken = len(ridges) // len(weights)
    if not settings.get("whole"):
        taken = int(workload.strategy["participants"])
    after = np.linalg.matrix_power(weights, settings.get("closing", 0))
    w = np.zeros((len(weights), features.shape[2]))
    courses = np.empty((2, case.rounds))
    for number in range(case.rounds):
        agents = _participants(rng, len(weights), len(ridges) // len(weights), taken)
        psi = _local(rng, w, agents, (features, targets), (epochs, batches), settings["mu"])
        w = weights @ psi + _noise(rng, weights, settings, w.shape[1])
        gaps = after @ w - workload.optimum
        centre = gaps.mean(axis=0)
        courses[:, number] = centre @ centre, np.mean(np.sum(gaps * gaps, axis=1))
    courses = np.where(np.isfinite(courses), courses, np.inf)
    return {
        name: [float(min(value, 1e300)) for value in course]
        for name, course in zip(("centroid", "units"), courses, strict=True)
    }


def _participants(rng: np.random.Generator, units: int, each: int, taken: int) -> Vector:
    if taken == each:
        return np.arange(units * each)
    ranks: Vector = rng.random((units, each)).argpartition(taken - 1, axis=1)[:, :taken]
    return (ranks + each * np.arange(units)[:, None]).ravel()


def _local(
    rng: np.random.Generator,
    w: Vector,
    agents: Vector,
    data: tuple[Vector, Vector],
    sizes: tuple[Vector, Vector],
    mu: float,
) -> Vector:
    """Return psi: the units' means after E_k steps of mu/E_k on batches of B_k."""
    (features, targets), (epochs, batches) = data, (sizes[0][agents], sizes[1][agents])
    x = np.repeat(w, len(agents) // len(w), axis=0)
    examples, largest = features.shape[1], int(batches.max())
    share = (np.arange(largest) < batches[:, None]) / batches[:, None]
    for epoch in range(int(epochs.max())):
        if largest == examples:
            rows = np.broadcast_to(np.arange(examples), (len(agents), examples))
        else:
            rows = rng.integers(examples, size=(len(agents), largest))
        u = features[agents[:, None], rows]
        errors = np.einsum("abd,ad->ab", u, x) - targets[agents[:, None], rows]
        slope = 2.0 * np.einsum("ab,abd->ad", errors * share, u) + SHRINK * x
        x = x - ((epoch < epochs) * (mu / epochs))[:, None] * slope
    psi: Vector = x.reshape(len(w), -1, x.shape[1]).mean(axis=1)
    return psi


def _noise(
    rng: np.random.Generator, weights: Vector, settings: Mapping[str, Any], dim: int
) -> Vector:
    """Return what (8) and (47) add to w: Laplace noise of a variance, per link or cancelling."""
    units, scale = len(weights), np.sqrt(settings.get("variance", 0.0) / 2.0)
    if settings["kind"] == "none":
        return np.zeros((units, dim))
    if settings["kind"] == "homomorphic":
        added: Vector = (weights - np.eye(units)) @ rng.laplace(0.0, scale, (units, dim))
        return added
    links = rng.laplace(0.0, scale, (units, units, dim))
    total: Vector = np.einsum("pm,pmd->pd", weights - np.diag(np.diag(weights)), links)
    return total
