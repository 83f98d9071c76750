"""Errata of the graph federated learning paper."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .counterexample import Counterexample, Erratum

Weights: TypeAlias = NDArray[Any]


def privacy_of_vectors(
    dim: int = 2, rounds: int = 5, mu: float = 0.7, epsilon: float = 1.0, convexity: float = 1e-6
) -> Counterexample:
    """Theorem 2 for vectors: ln p / p' of a unit's messages of rounds 1 ... i.

    One unit with one agent and the loss nu ||w||^2 / 2 - b <u, w> in D, + b <u, w> in D', where u
    has the entries 1 / sqrt(d). What the neighbours send keeps w at the last psi, and messages lie
    beyond both psi in every coordinate. B is the largest gradient norm on the way.
    """
    push, largest, w, apart = 1.0, 0.0, 0.0, 0.0
    for _ in range(rounds):
        # Along u; under D' all is the opposite. The l1 norm of u is sqrt(d).
        gradient = convexity * w - push
        largest = max(largest, abs(gradient))
        w = w - mu * gradient
        apart += 2 * w * math.sqrt(dim)
    deviation = math.sqrt(2) * mu * largest * (1 + rounds) * rounds / epsilon
    found = apart * math.sqrt(2) / deviation
    instance = {"dim": dim, "i": rounds, "mu": mu, "eps": epsilon, "nu": convexity}
    return Counterexample(instance, "ln p / p'", found, epsilon, math.sqrt(dim) * epsilon)


def complete_graph(units: int) -> Weights:
    """Return the Metropolis weights where every unit is every other's neighbour."""
    return np.full((units, units), 1 / units)


def steady_variance(weights: Weights, mu_h: float, *, homomorphic: bool) -> float:
    """Return the mean variance of the units' models after many rounds, over sigma_g^2.

    The noise's own recursion w <- (1 - mu h) A w + noise with one curvature h: independent noise
    on every link, or that of (47), which is (A - I) g.
    """
    eye = np.eye(len(weights))
    off = weights - np.diag(np.diag(weights))
    added = np.diag((off**2).sum(axis=1))
    if homomorphic:
        added = (weights - eye) @ (weights - eye).T
    covariance, step = added, (1 - mu_h) * weights
    for _ in range(60):  # twice as many rounds each time
        covariance, step = covariance + step @ covariance @ step.T, step @ step
    return float(np.trace(covariance)) / len(weights)


def threshold(units: int) -> float:
    """Return mu h below which homomorphic noise leaves less, complete graph."""
    return 1 - math.sqrt(1 - 1 / (units**2 - units + 1))


def single_units(units: int = 10, mu_h: float = 0.14) -> Counterexample:
    """Figure 3(b): what homomorphic noise leaves in single units, and what independent noise does.

    The default is the least mu h that the printed mu = .7 and rho = .1 allow: (54) has the
    curvature 2 rho and more.
    """
    weights = complete_graph(units)
    found = steady_variance(weights, mu_h, homomorphic=True)
    claimed = steady_variance(weights, mu_h, homomorphic=False)
    instance = {"P": units, "graph": "complete", "mu h": mu_h}
    measured = "variance of a unit over sigma_g^2"
    return Counterexample(instance, measured, found, claimed, (units - 1) / units)


ERRATA = (
    Erratum(
        "gfl/theorem-2",
        "Theorem 2: with sigma_g = sqrt(2) mu B (1 + i) i / eps(i) a trajectory is eps(i)-DP",
        "for models of d entries, each with noise of its own, sqrt(d) eps(i), and no less",
        privacy_of_vectors,
    ),
    Erratum(
        "gfl/figure-3b",
        "Figure 3(b): at a fixed variance homomorphic noise is the better one for single units",
        "on the complete graph it leaves (P - 1) / P sigma_g^2, less than independent noise only "
        "where 1 - (1 - mu h)^2 < 1 / (P^2 - P + 1), h the curvature",
        single_units,
    ),
)
