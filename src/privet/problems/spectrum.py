"""Extreme eigenvalues of A^T A, from which the moduli of linear models follow."""

from __future__ import annotations

import math

import numpy as np

from privet.kernel.records import FloatArray

EXACT_UP_TO = 1024
"""Smaller side of A up to which the eigenvalues are computed exactly."""

_SLACK = 0.02
_FAILURE_PROBABILITY = 1e-12


def gram_extremes(features: FloatArray) -> tuple[float, float]:
    """Return bounds (low, high) of the spectrum of A^T A for A of shape (n, d), in float64.

    Exact when min(n, d) <= ``EXACT_UP_TO`` (eigenvalues of the smaller Gram matrix; low is 0
    when n < d). Above, low is the trivial bound 0 and high an upper bound at most 2 % too
    large, see `largest_eigenvalue_bound`.
    """
    count, width = features.shape
    if min(count, width) > EXACT_UP_TO:
        return 0.0, largest_eigenvalue_bound(features)
    matrix = features.astype(np.float64, copy=False)
    eigenvalues = np.linalg.eigvalsh(matrix.T @ matrix if width <= count else matrix @ matrix.T)
    low = max(float(eigenvalues[0]), 0.0) if width <= count else 0.0
    return low, max(float(eigenvalues[-1]), 0.0)


def largest_eigenvalue_bound(features: FloatArray) -> float:
    """Return an upper bound of the largest eigenvalue of A^T A without forming it.

    Lanczos from a random start underestimates the eigenvalue by more than the factor 1 - s
    with probability at most 1.648 sqrt(d) exp(-sqrt(s) (2k - 1)) after k steps (Kuczynski and
    Wozniakowski, SIAM J. Matrix Anal. Appl. 13, 1992). The k that makes this 1e-12 for s = 0.02
    is used and the estimate divided by 1 - s. The trace and the product of the row-sum and
    column-sum norms are certain bounds and cap the result.
    """
    matrix = features.astype(np.float64, copy=False)
    magnitude = np.abs(matrix)
    certain = min(
        float(np.sum(magnitude * magnitude)),
        float(magnitude.sum(axis=0).max() * magnitude.sum(axis=1).max()),
    )
    width = matrix.shape[1]
    odds = 1.648 * math.sqrt(width) / _FAILURE_PROBABILITY
    steps = min(width, math.ceil(0.5 * (math.log(odds) / math.sqrt(_SLACK) + 1.0)))
    return min(certain, _lanczos_largest(matrix, steps) / (1.0 - _SLACK))


def _lanczos_largest(matrix: FloatArray, steps: int) -> float:
    """Return the largest Ritz value of A^T A after ``steps`` steps, fully reorthogonalised."""
    basis = np.empty((steps, matrix.shape[1]))
    diagonal, off_diagonal = np.zeros(steps), np.zeros(steps)
    vector = np.random.default_rng(0).standard_normal(matrix.shape[1])
    for k in range(steps):
        length = float(np.linalg.norm(vector))
        if length <= 1e-12 * float(np.max(diagonal, initial=0.0)):
            steps = k
            break
        if k:
            off_diagonal[k - 1] = length
        basis[k] = vector / length
        vector = (matrix @ basis[k]) @ matrix
        diagonal[k] = basis[k] @ vector
        known = basis[: k + 1]
        for _ in range(2):
            vector = vector - (known @ vector) @ known
    off = off_diagonal[: steps - 1]
    tridiagonal = np.diag(diagonal[:steps]) + np.diag(off, 1) + np.diag(off, -1)
    return float(np.linalg.eigvalsh(tridiagonal)[-1])
