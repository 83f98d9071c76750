"""How far a model is from the pooled optimum, from the solutions and gradients that agents sent.

F = (1/N) sum_i f_i + h / N, and f_i is mu-strongly convex with L-Lipschitz gradient; x* minimises
F. Known are points x_i, the gradients u_i of f_i at them, and of the model p a subgradient s of
h / N at p. With u = mean u_i, r = ||u + s||, S^2 = mean ||x_i - p||^2, delta = ||mean x_i - p||:

    F(p) - F(x*) >= mu ||p - x*||^2 / 2
    f_i(p)  <= f_i(x_i) + <u_i, p - x_i> + L ||p - x_i||^2 / 2
    f_i(x*) >= f_i(x_i) + <u_i, x* - x_i> + mu ||x* - x_i||^2 / 2
    h(p) - h(x*) <= N <s, p - x*>

The mean of the middle two, with mean ||x* - x_i||^2 >= (D - delta)^2 + S^2 - delta^2, gives
for D = ||p - x*|| the inequality mu D^2 - b D <= (L - mu) S^2 / 2, b = r + mu delta, hence

    D <= (b + sqrt(b^2 + 2 mu (L - mu) S^2)) / (2 mu).

So L counts by its root alone: where r is small, D <= sqrt((L - mu) / (2 mu)) S. Where u_i differs
from the gradient by at most e_i, b has the mean e_i more. The points may be of different rounds.
The standard inequalities are those of Y. Nesterov, "Lectures on Convex Optimization" (2018), 2.1.
"""

from __future__ import annotations

import math

import numpy as np

from .half import Vector, mean_row

ESTIMATE = "estimated-error"
"""Name of the measure of a round: an estimate of ||p - x*|| / ||p||."""


def distance_bound(
    x: Vector,
    u: Vector,
    point: Vector,
    *,
    convexity: float,
    smoothness: float,
    slope: Vector | float = 0.0,
    inexactness: float = 0.0,
) -> float:
    """Return an upper bound of ||p - x*||, see the module.

    It is a bound where its arguments are what they are said to be; of an estimated modulus it is
    an estimate. Privacy: it is computed from what agents sent.

    Parameters
    ----------
    x, u : arrays (N, d)
        Points, and the gradients of the f_i at them.
    point : array (d,)
        p.
    convexity, smoothness : float
        mu > 0 and L of every f_i.
    slope : array (d,) or 0
        s, a subgradient of h / N at p.
    inexactness : float
        The mean of the e_i.
    """
    mean = mean_row(x)
    smoothness = max(smoothness, convexity)
    with np.errstate(over="ignore", invalid="ignore"):
        linear = float(np.linalg.norm(mean_row(u) + slope)) + inexactness
        linear += convexity * float(np.linalg.norm(mean - point))
        spread = float(np.sum((x - point).astype(np.float64) ** 2)) / len(x)
    curved = math.sqrt(2.0 * convexity) * math.sqrt(smoothness - convexity) * math.sqrt(spread)
    root = math.hypot(linear, curved)
    return (linear + root) / (2.0 * convexity)
