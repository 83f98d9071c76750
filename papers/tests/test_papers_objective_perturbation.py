"""The account of the ceiling in docs/results/private.md, against the exact law of its output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import root
from scipy.special import expit, softmax
from scipy.stats import norm

from privet.problems import BinaryLogistic, NoRegularizer
from results.objective_perturbation import noise_scale, perturbed

RADIUS = 1.5


def log_density(x: Any, labels: Any, rows: Any, lam: float, sigma: float) -> Any:
    """Log density of the minimiser at x: that of b(x) times |b'(x)|, in one dimension."""
    margins = labels * rows * x[:, None]
    b = (labels * rows * expit(-margins)).sum(axis=1) - lam * x
    slope = (rows**2 * expit(margins) * expit(-margins)).sum(axis=1) + lam
    return norm.logpdf(b / sigma) - math.log(sigma) + np.log(slope)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("lam", [0.7, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_two_classes_in_one_dimension_by_the_exact_law(
    epsilon: float, lam: float, delta: float
) -> None:
    """delta(epsilon) = integral of (p - e^epsilon p')_+ over neighbours, both ways round."""
    sigma = noise_scale(epsilon, delta, RADIUS, lam, 2)
    if math.isinf(sigma):
        assert math.log1p(RADIUS**2 / 4 / lam) >= epsilon
        return
    rng = np.random.default_rng(0)
    widest = (RADIUS * 5 + 10 * sigma) / lam
    x = np.linspace(-widest, widest, 400_001)
    for own in (1.0, RADIUS, 0.2):
        rows = np.r_[own, rng.uniform(-RADIUS, RADIUS, 4)]
        labels = np.r_[1.0, np.sign(rng.standard_normal(4))]
        other = labels * np.r_[-1.0, np.ones(4)]
        one, two = (log_density(x, which, rows, lam, sigma) for which in (labels, other))
        step = x[1] - x[0]
        assert np.exp(one).sum() * step == pytest.approx(1.0, abs=1e-6)
        for first, second in ((one, two), (two, one)):
            excess = np.maximum(np.exp(first) - np.exp(epsilon + second), 0.0).sum() * step
            assert excess <= delta


def test_three_classes_by_their_privacy_loss() -> None:
    """The loss of 400 outputs is above epsilon less often than delta allows (here: never)."""
    epsilon, delta, lam, classes = 2.0, 0.1, 6.0, 3
    sigma = noise_scale(epsilon, delta, RADIUS, lam, classes)
    rng = np.random.default_rng(1)
    rows, labels = np.full(4, RADIUS), np.array([0, 1, 2, 0])
    other = np.array([1, 1, 2, 0])

    def slope(x: Any, which: Any) -> Any:
        return ((softmax(np.outer(rows, x), axis=1) - np.eye(classes)[which]).T * rows).sum(1)

    def log_law(x: Any, which: Any) -> float:
        p = softmax(np.outer(rows, x), axis=1)
        hessian = sum(
            r * r * (np.diag(one) - np.outer(one, one)) for r, one in zip(rows, p, strict=True)
        )
        b = -slope(x, which) - lam * x
        logdet = float(np.linalg.slogdet(hessian + lam * np.eye(classes))[1])
        return logdet - float(b @ b) / (2 * sigma**2)

    losses = []
    for _ in range(400):
        b = sigma * rng.standard_normal(classes)
        found = root(lambda x, b=b: slope(x, labels) + lam * x + b, np.zeros(classes), tol=1e-12)
        assert found.success
        losses.append(log_law(found.x, labels) - log_law(found.x, other))
    assert max(losses) > 0.1
    assert sum(loss > epsilon for loss in losses) <= 20


def test_the_minimiser_is_that_of_the_perturbed_sum() -> None:
    rng = np.random.default_rng(2)
    rows, labels = rng.standard_normal((30, 3)), np.sign(rng.standard_normal(30))
    problem = BinaryLogistic(rows, labels, regularizer=NoRegularizer())
    found = perturbed(problem, 100.0, 2.0, 3.0, np.random.default_rng(3))
    noise = 3.0 * np.random.default_rng(3).standard_normal(3)
    slope = -(labels * expit(-labels * (rows @ found))) @ rows + 2.0 * found + noise
    assert np.abs(slope).max() < 1e-3
