"""Logistic regression by objective perturbation, of all records in one place: a ceiling.

K. Chaudhuri, C. Monteleoni, A. Sarwate, "Differentially private empirical risk minimization"
(2011); D. Kifer, A. Smith, A. Thakurta, "Private convex empirical risk minimization" (2012). For
rows of norm at most R it returns the minimiser of

    sum_i loss(x; z_i) + lam/2 ||x||^2 + <b, x>,    b ~ N(0, sigma^2 I).

The minimiser gives b away, as b(x) = -(sum of the gradients) - lam x; so where record z becomes z'
its density changes by the factor det(H + lam I) / det(H' + lam I) times the ratio of the densities
of N(0, sigma^2 I) at b and at b' = b + v, v = grad loss(x; z) - grad loss(x; z'):

    log ratio <= log det(I + A / lam) + (2 <b, v> + ||v||^2) / (2 sigma^2),

A the Hessian of z's loss. A gradient is r (x) z with a residual r of k numbers, ||r|| <= g, and
<b, r (x) z> = <r, B z> is at most g ||B z||, where B z is N(0, sigma^2 ||z||^2 I_k). Both ||B z||
and ||B z'|| are at most sigma R q but with probability delta, q^2 the chi-squared quantile of k
degrees at delta / 2. The trace of A is at most R^2 t and its rank at most p, so that its
log det is at most p log(1 + R^2 t / (p lam)). For two classes k = p = 1, g = 1, t = 1/4; for a
softmax of K classes k = K, p = K - 1, g = sqrt(2), t = 1 - 1/K. With G = 2 g R this is

    epsilon = p log(1 + R^2 t / (p lam)) + G q / sigma + G^2 / (2 sigma^2),

at which the mechanism is (epsilon, delta) private for replace-one. It holds of the exact minimiser;
what is left of the gradient here is at most 1e-4 sigma in every coordinate, and not in the account.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.problems import LinearModel

Vector = NDArray[np.float64]


def noise_scale(epsilon: float, delta: float, radius: float, lam: float, classes: int) -> float:
    """Return sigma at epsilon, infinity where lam alone costs as much."""
    from scipy.stats import chi2

    binary = classes == 2
    rank, bound = (1, 1.0) if binary else (classes - 1, math.sqrt(2.0))
    trace = 0.25 if binary else 1.0 - 1.0 / classes
    left = epsilon - rank * math.log1p(radius**2 * trace / (rank * lam))
    if left <= 0:
        return math.inf
    tail = math.sqrt(chi2.isf(delta / 2.0, 1 if binary else classes))
    reach = 2.0 * bound * radius
    # left = reach tail u + reach^2 u^2 / 2, u = 1 / sigma
    return reach / (math.sqrt(tail**2 + 2.0 * left) - tail)


def perturbed(
    problem: LinearModel[Any], radius: float, lam: float, sigma: float, rng: np.random.Generator
) -> Vector:
    """Return the minimiser of the perturbed sum.

    Parameters
    ----------
    problem : LinearModel
        The records, in float64, without a regulariser.
    radius : float
        R, to which rows are scaled down.
    """
    from scipy.optimize import minimize

    count, own = problem.num_examples, problem.with_rows_within(radius)
    noise = sigma * rng.standard_normal(own.dim) / count

    def value(x: Vector) -> tuple[float, Vector]:
        return (
            own.value(x) + float(lam / count * (x @ x) / 2 + noise @ x),
            own.gradient(x) + lam / count * x + noise,
        )

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 0.0, "gtol": 1e-4 * sigma / count}
    return minimize(value, np.zeros(own.dim), jac=True, method="L-BFGS-B", options=options).x
